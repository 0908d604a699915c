"""Rules about what the emulator computes, against ONNX Runtime on the CPU. Codes ORT120 to ORT122."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.accuracy.judge.verdicts import JudgedNumber, Verdict
from deploykit.backend.backend import Seen
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES", "NumericScope"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericScope:
    """What the emulator gave, judged against two references, and where it begins to differ.

    ``device`` is against the same file on the CPU: what is missing there was lost by the device. ``quantization`` is
    against the float model, None where there is none beside the file. ``first`` is the first node after which emulator
    and CPU differ ("" when it was not looked for or not found). ``not_run`` is why there are no numbers. ``seen`` are
    the emulator's outputs for the first samples.
    """

    device: Verdict | None = None
    quantization: Verdict | None = None
    first: str = ""
    first_type: str = ""
    first_db: float | None = None
    not_run: str = ""
    seen: Seen | None = None


RULES: Registry[NumericScope] = Registry("numerics")


@RULES.rule(
    "ORT120",
    "outputs-differ",
    "error",
    what="The compiled model and ONNX Runtime on the CPU disagree on an output: this was lost by the device.",
    why="Some kernels give wrong numbers without a message; only running them shows it.",
    fix="Look at the first node that differs; rewrite it, widen its range, or leave it float.",
    sources=[_LAB],
)
def check_outputs(scope: NumericScope) -> Iterator[Found]:
    """Outputs that miss what is asked of their kind, and outputs that are not finite."""
    verdict = scope.device
    if verdict is None or verdict.right is not False:
        return
    where = f"; they differ from {scope.first_type} {scope.first} on" if scope.first else ""
    place = {"first_node": scope.first, "first_node_db": scope.first_db}
    for odd in verdict.oddities:
        yield Found(
            kind=SubjectKind.TENSOR,
            name=odd.output,
            message=f"{odd.output}: {odd.count} values are {odd.what} on the emulator, behind {odd.operator}{where}",
            evidence={**odd.to_json(), **place},
        )
    for output, numbers in _by_output(verdict):
        yield Found(
            kind=SubjectKind.TENSOR,
            name=output,
            message=f"{output}: {_told(numbers)}, between emulator and CPU{where}",
            evidence={"numbers": [number.to_json() for number in numbers], **place},
        )


@RULES.rule(
    "ORT122",
    "far-from-float",
    "warning",
    what="The emulator computes what the file says, and that is far from the float model: lost by quantization.",
    why="What quantization loses no device gives back; a range that is too narrow or too wide somewhere is enough.",
    fix="deploykit accuracy locate names the operator; widen its range, calibrate anew, or leave it in float",
    sources=[_LAB],
)
def check_quantization(scope: NumericScope) -> Iterator[Found]:
    """Outputs that miss what is asked of them against float although the device is not to blame."""
    verdict = scope.quantization
    if verdict is None or verdict.right is not False or (scope.device is not None and scope.device.right is False):
        return
    for output, numbers in _by_output(verdict):
        yield Found(
            kind=SubjectKind.TENSOR,
            name=output,
            message=f"{output}: {_told(numbers)}, between emulator and float model",
            evidence={"numbers": [number.to_json() for number in numbers]},
        )


def _by_output(verdict: Verdict) -> Iterator[tuple[str, list[JudgedNumber]]]:
    for output in dict.fromkeys(number.output for number in verdict.failures):
        yield output, [number for number in verdict.failures if number.output == output]


def _told(numbers: list[JudgedNumber]) -> str:
    return "; ".join(f"{n.limit.measure}{f' ({n.where})' if n.where else ''} {n}" for n in numbers)


@RULES.rule(
    "ORT121",
    "not-emulated",
    "warning",
    what="The compiled model was not run on the emulator.",
    why="Then wrong numbers, which compile without a message, stay unknown.",
    fix="Run scripts/run.py --compare model/model.onnx where there is more time, or compare on the device.",
    sources=[_LAB],
)
def check_not_run(scope: NumericScope) -> Iterator[Found]:
    """A run that failed or took too long."""
    if scope.not_run:
        yield Found(kind=SubjectKind.MODEL, name="model", message=f"not run on the emulator: {scope.not_run}")

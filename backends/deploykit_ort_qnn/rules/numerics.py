"""Rules about what the emulator computes, against ONNX Runtime on the CPU. Codes ORT120 and ORT121."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploykit.findings import SubjectKind
from deploykit.rules import Found, Registry

__all__ = ["RULES", "NumericScope"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericScope:
    """Emulator against CPU: per output its numbers, the threshold that counts, and where the two begin to differ.

    ``first`` is the first node after which they differ ("" when it was not looked for or not found). ``not_run`` is why
    there are no numbers.
    """

    outputs: Mapping[str, Mapping[str, Any]]
    threshold_db: float
    failed: tuple[str, ...] = ()
    first: str = ""
    first_type: str = ""
    first_db: float | None = None
    not_run: str = ""


RULES: Registry[NumericScope] = Registry("numerics")


@RULES.rule(
    "ORT120",
    "outputs-differ",
    "error",
    what="The compiled model and ONNX Runtime on the CPU disagree on an output.",
    why="Some kernels give wrong numbers without a message; only running them shows it.",
    fix="Look at the first node that differs; rewrite it, widen its range, or leave it float.",
    sources=[_LAB],
)
def check_outputs(scope: NumericScope) -> Iterator[Found]:
    """Outputs below the threshold."""
    for name in scope.failed:
        numbers = scope.outputs[name]
        where = f"; they differ from {scope.first_type} {scope.first} on" if scope.first else ""
        agreement = f"{_db(numbers['sqnr_db'])} between emulator and CPU"
        yield Found(
            kind=SubjectKind.TENSOR,
            name=name,
            message=f"{name}: {agreement}, below {scope.threshold_db:g} dB{where}",
            evidence={
                **numbers,
                "threshold_db": scope.threshold_db,
                "first_node": scope.first,
                "first_node_db": scope.first_db,
            },
        )


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


def _db(value: Any) -> str:
    return f"{value:.1f} dB" if isinstance(value, float) else f"{value}"

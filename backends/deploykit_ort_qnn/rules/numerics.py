"""Rules about the types of the compiled model, and about its outputs on the emulator. Codes ORT101 to ORT122."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from deploykit.findings import Severity, listed
from deploykit.findings.records import Record
from deploykit.findings.rules import Finds, Found, Registry
from deploykit_ort_qnn.compiler.precision import FloatNode, float_nodes, narrowed

if TYPE_CHECKING:
    from deploykit.accuracy.judge.verdict import Verdict
    from deploykit.backend.backend import Seen
    from deploykit_ort_qnn.compiler.precision import PrecisionScope

__all__ = ["PRECISION_RULES", "RULES", "NumericScope"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"

_MOST_NODES = 20
_DOUBTFUL = 6.0  # dB: half as much noise as signal; with made-up inputs the packages of the zoo have 48 and more


PRECISION_RULES: Registry[PrecisionScope] = Registry("precision")
_of_types = partial(PRECISION_RULES.rule, sources=[_LAB])


@_of_types("ORT101", "float-island", "warning")
def check_float_islands(scope: PrecisionScope) -> Finds:
    """A node of a quantized model is compiled in float.

    One missing or unfitting Q/DQ pair turns a node and its neighbours into float, with conversions around them.

    Fix: Give every input and output of the node an encoding of one width; see docs/ort-qnn.md.
    """
    # One finding for each float node with an intended integer type, and one for all nodes without an intended type.
    quantized = any("int" in kind for kind in scope.intended.values())
    severity = Severity.ERROR if scope.strict else None
    unmeant = list[FloatNode]()
    for node in float_nodes(scope):
        meant_float = "float" in scope.intended.get(node.tensor, "")
        if not quantized or meant_float or node.block_weights:
            continue
        if not node.wanted:
            unmeant.append(node)
            continue
        yield Found(
            "node",
            node.name,
            f"{_in_float(node)}; {node.tensor} is meant to be {node.wanted}",
            severity=severity,
            evidence={"tensor": node.tensor, "intended": node.wanted, "made": node.made or "unknown"},
        )
    if unmeant:
        # A recurrent layer alone becomes hundreds of nodes.
        first, more = unmeant[0], f" (and {len(unmeant) - 1} more)" if len(unmeant) > 1 else ""
        yield Found(
            "node",
            first.name,
            f"{_in_float(first)}; {first.tensor} has no encoding{more}",
            severity=severity,
            evidence={
                "tensor": first.tensor,
                "made": first.made or "unknown",
                "count": len(unmeant),
                "nodes": [node.name for node in unmeant[:_MOST_NODES]],
            },
        )


def _in_float(node: FloatNode) -> str:
    made = f" ({node.made} after optimization)" if node.made else ""
    return f"{node.type} {node.name} is compiled in float{made}"


@_of_types("ORT102", "operand-narrowed", "warning")
def check_narrowed(scope: PrecisionScope) -> Finds:
    """A 16-bit tensor is narrowed to 8 bits on its way into a node, without a message.

    The second operand of a MatMul of two activations is taken as a weight; attention loses accuracy by it.

    Fix: Take HTP v73 or later with QAIRT 2.47 or later, where deploykit uses symmetric int16 there.
    """
    # Conversions to fewer bits that were not asked for.
    return _read_otherwise(scope, "{0.type} {0.node}: {0.tensor} is {0.asked} and is read as {0.made}", False)


def _read_otherwise(scope: PrecisionScope, words: str, in_float: bool) -> Finds:
    for case in narrowed(scope):
        if in_float == (case.made in ("float16", "float32")):
            yield Found(
                "node",
                case.node,
                words.format(case),
                severity=Severity.ERROR if scope.strict else None,
                evidence={"tensor": case.tensor, "asked": case.asked, "made": case.made},
            )


@_of_types("ORT103", "block-weights-in-float", "warning")
def check_block_weights(scope: PrecisionScope) -> Finds:
    """A layer with block-quantized weights runs in FP16.

    The provider dequantizes its input and quantizes its result again; an integer plan becomes a float one there.

    Fix: --lpbq turns the weights into LPBQ, which runs in integers (with a loss that is reported).
    """
    for node in float_nodes(scope):
        if node.block_weights:
            yield Found(
                "node",
                node.name,
                f"{node.type} {node.name} computes its block-quantized weights in {node.made or 'float'}",
                severity=Severity.ERROR if scope.strict else None,
                evidence={"tensor": node.tensor, "made": node.made or "unknown"},
            )


@_of_types("ORT104", "compiler-left-the-grid", "warning")
def check_left_grid(scope: PrecisionScope) -> Finds:
    """The compiler computes in float what it was asked to compute in integers.

    What was asked for (the JSON graph) and what was made (the schematic) differ.

    Fix: Compare the node with docs/ort-qnn.md; check the numbers of the outputs.
    """
    # Float operations for nodes that were asked for in 16-bit integers.
    return _read_otherwise(scope, "{0.type} {0.node} was asked for in {0.asked} and computes in {0.made}", True)


@_of_types("ORT105", "compiled-as-fp32", "error")
def check_fp32(scope: PrecisionScope) -> Finds:
    """A float node was compiled in FP32.

    The HTP has no FP32 unit; such binaries come out when no chip is named, or for a chip without FP16. On others single
    operators, GatherND and cubic Resize among them, have no FP16 kernel: the emulator has it
    right; what it costs was not measured.

    Fix: Quantize the model for this chip, or take one with FP16 (HTP v69 and later).
    """
    # Float nodes that stayed float32 after optimization.
    made = {node.name: node.made for node in float_nodes(scope)}
    names = [name for name, kind in made.items() if kind == "float32"]
    some = "float16" in made.values()
    if names:
        yield Found(
            "model",
            "model",
            f"{len(names)} float nodes are compiled in FP32: {listed(names, most=6)}",
            severity=Severity.WARNING if some else None,
            hint="where time counts write them with operators that have an FP16 kernel" if some else "",
            evidence={"nodes": names},
        )


class NumericScope(Record):
    """The package's outputs on the emulator, judged by the outputs of the model as given.

    ``device`` is the verdict on them; ``quantization`` is that on the encodings alone, run on the CPU, None if the
    model has none. ``agreement`` is the emulator's signal-to-noise ratio against the file on the CPU, in dB by output
    of the file. ``first`` is the first node after which both differ ("" if it was not looked for or not found).
    ``not_run`` says why there are no numbers; ``is_spared`` is True if only the time limit of made-up inputs, which
    judge nothing, was the reason. ``seen`` are the outputs for the first samples; ``shared`` says why those of
    another target of the run are taken, "" if they are not.
    """

    device: Verdict | None = None
    quantization: Verdict | None = None
    agreement: Mapping[str, float] = {}
    first: str = ""
    first_type: str = ""
    first_db: float | None = None
    not_run: str = ""
    is_spared: bool = False
    seen: Seen | None = None
    shared: str = ""

    @property
    def doubtful(self) -> Mapping[str, float]:
        """Outputs closer to noise than to the file on the CPU, in dB, if no verdict judges them."""
        far = {name: near for name, near in self.agreement.items() if near < _DOUBTFUL}
        return far if self.device is not None and self.device.right is None else {}


RULES: Registry[NumericScope] = Registry("numerics")
_rule = partial(RULES.rule, sources=[_LAB])


@_rule("ORT120", "outputs-differ", "error")
def check_outputs(scope: NumericScope) -> Finds:
    """The package loses more of the model's task than its quantization does: this was lost by the device.

    Some kernels give wrong numbers without a message; only running them shows it.

    Fix: Look at the first node that differs; rewrite it, widen its range, or leave it float.
    """
    # Outputs that miss the limit of their kind, and outputs that are not finite.
    verdict = scope.device
    if verdict is None or verdict.right is not False:
        return
    where = f"; emulator and CPU differ from {scope.first_type} {scope.first} on" if scope.first else ""
    place = {"first_node": scope.first, "first_node_db": scope.first_db}
    for odd in verdict.oddities:
        yield Found(
            "tensor",
            odd.output,
            f"{odd.output}: {odd.count} values are {odd.what} on the emulator, behind {odd.operator}{where}",
            evidence={**odd.to_json(), **place},
        )
    for output, told, missed in verdict.lost_outputs():
        yield Found(
            "tensor",
            output,
            f"{output}: {told}{where}",
            evidence={"numbers": [number.to_json() for number in missed], **place},
        )


@_rule("ORT121", "not-emulated", "warning")
def check_not_run(scope: NumericScope) -> Finds:
    """The compiled model was not run on the emulator.

    Then wrong numbers, which compile without a message, stay unknown.

    Fix: Run scripts/run.py --compare model/model.onnx where there is more time, or compare on the device.
    """
    # A run that failed or took too long.
    if scope.not_run:
        yield Found("model", "model", f"not run on the emulator: {scope.not_run}")


@_rule("ORT122", "differs-on-made-up-inputs", "warning")
def check_made_up(scope: NumericScope) -> Finds:
    """On inputs that judge nothing, the emulator gives something else than the same file on the CPU.

    Made-up inputs say nothing of the task, but a kernel that is wrong shows on them as well.

    Fix: Give real samples with --calibration; --kernels full looks at each kernel by itself.
    """
    for output, near in scope.doubtful.items():
        yield Found("tensor", output, f"{output}: {near:.1f} dB between the emulator and the same file on the CPU")

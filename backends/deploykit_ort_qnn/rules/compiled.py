"""Rules about compiled models: refused nodes, types that changed, results that differ. Codes ORT100 to ORT199.

They look at what a compilation left behind and start nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploykit.findings import Severity, SubjectKind
from deploykit.rules import Found, Registry
from deploykit_ort_qnn.compiler import CompileOutcome
from deploykit_ort_qnn.precision import PrecisionScope, float_nodes, narrowed

__all__ = ["COMPILE_RULES", "NUMERIC_RULES", "PACKAGE_RULES", "PRECISION_RULES", "NumericScope", "PackageScope"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"

COMPILE_RULES: Registry[CompileOutcome] = Registry("compilation")
PRECISION_RULES: Registry[PrecisionScope] = Registry("precision")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageScope:
    """What is written in a package about one chip, and what its context binary says."""

    provider_options: Mapping[str, str]
    soc_model: int | None
    context: Mapping[str, Any] = field(default_factory=dict)
    unknown_options: tuple[str, ...] = ()


NUMERIC_RULES: Registry[NumericScope] = Registry("numerics")
PACKAGE_RULES: Registry[PackageScope] = Registry("package")


@COMPILE_RULES.rule(
    "ORT110",
    "nodes-refused",
    "error",
    what="The provider does not take these nodes, so that the model would not run wholly on the NPU.",
    why="With CPU fallback the model would open without a word and run in pieces, copied to and fro.",
    fix="Rewrite the nodes or give their tensors encodings; --option session.disable_cpu_ep_fallback=0 leaves them "
    "on the CPU.",
    sources=[_LAB],
)
def check_refused(outcome: CompileOutcome) -> Iterator[Found]:
    """Nodes named in the log of a refused compilation."""
    if outcome.status == "refused":
        for node in outcome.refused:
            yield Found(
                kind=SubjectKind.NODE,
                name=node.name,
                message=f"{node.type} {node.name} is not taken by the provider",
                evidence={"type": node.type},
            )


@COMPILE_RULES.rule(
    "ORT111",
    "compiler-failed",
    "error",
    what="The compiler ended with an error that names no node.",
    why="There is no context binary.",
    fix="Read the log under logs/; 'deploykit diagnose' knows some of its messages.",
    sources=[_LAB],
)
def check_failed(outcome: CompileOutcome) -> Iterator[Found]:
    """An error without refused nodes."""
    if outcome.status == "failed":
        cause = next((line for line in outcome.log if "Error:" in line or "failed" in line.lower()), "")
        yield Found(
            kind=SubjectKind.MODEL,
            name="model",
            message=f"the compiler failed: {outcome.message}",
            evidence={"log": cause} if cause else {},
        )


@COMPILE_RULES.rule(
    "ORT112",
    "compiler-crashed",
    "error",
    what="The compiler's process died.",
    why="A crash of the vendor's library leaves nothing that could be relied on.",
    fix="Report it with the model to the makers of the provider; try another finalization mode or wheel.",
    sources=[_LAB],
)
def check_crashed(outcome: CompileOutcome) -> Iterator[Found]:
    """A worker that died of a signal or ended without an answer."""
    if outcome.status == "crashed":
        evidence = {"log": list(outcome.log[-5:])}
        yield Found(kind=SubjectKind.MODEL, name="model", message=outcome.message, evidence=evidence)


@COMPILE_RULES.rule(
    "ORT113",
    "compiler-timed-out",
    "error",
    what="The compiler did not finish within the time limit.",
    why="Finalizing a large graph can take minutes in one mode and seconds in another.",
    fix="Try --finalization-mode 3 or 1; another mode makes another graph, whose numbers are checked again.",
    sources=[_LAB],
)
def check_timed_out(outcome: CompileOutcome) -> Iterator[Found]:
    """A compilation that was ended."""
    if outcome.status == "timed-out":
        yield Found(kind=SubjectKind.MODEL, name="model", message=f"the compiler was ended: {outcome.message}")


@COMPILE_RULES.rule(
    "ORT114",
    "runs-on-cpu-too",
    "warning",
    what="Some nodes of the compiled model stay on the CPU.",
    why="Every border copies and converts tensors.",
    fix="Leave --option session.disable_cpu_ep_fallback=0 out to see why each node was refused.",
    sources=[_LAB],
)
def check_cpu_nodes(outcome: CompileOutcome) -> Iterator[Found]:
    """A mixed model that was allowed."""
    if outcome.ok and outcome.cpu_nodes:
        names = [node.name for node in outcome.cpu_nodes]
        yield Found(
            kind=SubjectKind.MODEL,
            name="model",
            message=f"{len(names)} nodes stay on the CPU: {_some(names)}",
            evidence={"nodes": names},
        )


@PRECISION_RULES.rule(
    "ORT101",
    "float-island",
    "warning",
    what="A node of a quantized model is compiled in float.",
    why="One missing or unfitting Q/DQ pair turns a node and its neighbours into float, with conversions around them.",
    fix="Give every input and output of the node an encoding of one width; see docs/ort-qnn.md.",
    sources=[_LAB],
)
def check_float_islands(scope: PrecisionScope) -> Iterator[Found]:
    """Float nodes whose tensors were meant to be integers, or that stand among integer ones unmeant."""
    quantized = any(kind.startswith(("int", "uint")) for kind in scope.intended.values())
    for node in float_nodes(scope):
        meant_float = scope.intended.get(node.tensor, "").startswith(("float", "bfloat"))
        if not quantized or meant_float or node.block_weights:
            continue
        made = f" ({node.made} after optimization)" if node.made else ""
        wanted = f"{node.tensor} is meant to be {node.wanted}" if node.wanted else f"{node.tensor} has no encoding"
        yield Found(
            kind=SubjectKind.NODE,
            name=node.name,
            message=f"{node.type} {node.name} is compiled in float{made}; {wanted}",
            severity=Severity.ERROR if scope.strict else None,
            evidence={"tensor": node.tensor, "intended": node.wanted, "made": node.made or "unknown"},
        )


@PRECISION_RULES.rule(
    "ORT102",
    "operand-narrowed",
    "warning",
    what="A 16-bit tensor is narrowed to 8 bits on its way into a node, without a message.",
    why="The second operand of a MatMul of two activations is taken as a weight; attention loses accuracy by it.",
    fix="On HTP v73 and later deploykit uses symmetric int16 there (step int16-matmul); do not switch it off.",
    sources=[_LAB],
)
def check_narrowed(scope: PrecisionScope) -> Iterator[Found]:
    """Conversions to fewer bits that nobody asked for."""
    for case in narrowed(scope):
        if case.made in ("float16", "float32"):
            continue
        yield Found(
            kind=SubjectKind.NODE,
            name=case.node,
            message=f"{case.type} {case.node}: {case.tensor} is {case.asked} and is read as {case.made}",
            severity=Severity.ERROR if scope.strict else None,
            evidence={"tensor": case.tensor, "asked": case.asked, "made": case.made},
        )


@PRECISION_RULES.rule(
    "ORT103",
    "block-weights-in-float",
    "warning",
    what="A layer with block-quantized weights runs in FP16.",
    why="The provider dequantizes its input and quantizes its result again; an integer plan becomes a float one there.",
    fix="--lpbq turns the weights into LPBQ, which runs in integers (with a loss that is reported).",
    sources=[_LAB],
)
def check_block_weights(scope: PrecisionScope) -> Iterator[Found]:
    """Per-block weights beside float activations."""
    for node in float_nodes(scope):
        if node.block_weights:
            yield Found(
                kind=SubjectKind.NODE,
                name=node.name,
                message=f"{node.type} {node.name} computes its block-quantized weights in {node.made or 'float'}",
                severity=Severity.ERROR if scope.strict else None,
                evidence={"tensor": node.tensor, "made": node.made or "unknown"},
            )


@PRECISION_RULES.rule(
    "ORT104",
    "compiler-left-the-grid",
    "warning",
    what="The compiler computes in float what it was asked to compute in integers.",
    why="What was asked for (the JSON graph) and what was made (the schematic) differ.",
    fix="Compare the node with docs/ort-qnn.md; check the numbers of the outputs.",
    sources=[_LAB],
)
def check_left_grid(scope: PrecisionScope) -> Iterator[Found]:
    """Float operations for nodes that were asked for in 16-bit integers."""
    for case in narrowed(scope):
        if case.made in ("float16", "float32"):
            yield Found(
                kind=SubjectKind.NODE,
                name=case.node,
                message=f"{case.type} {case.node} was asked for in {case.asked} and computes in {case.made}",
                severity=Severity.ERROR if scope.strict else None,
                evidence={"tensor": case.tensor, "asked": case.asked, "made": case.made},
            )


@PRECISION_RULES.rule(
    "ORT105",
    "compiled-as-fp32",
    "error",
    what="A float node was compiled in FP32.",
    why="The HTP has no FP32 unit; such binaries come out when no chip is named, or for a chip without FP16.",
    fix="Quantize the model for this chip, or take one with FP16 (HTP v69 and later).",
    sources=[_LAB],
)
def check_fp32(scope: PrecisionScope) -> Iterator[Found]:
    """Float nodes that stayed float32 after optimization."""
    names = [node.name for node in float_nodes(scope) if node.made == "float32"]
    if names:
        yield Found(
            kind=SubjectKind.MODEL,
            name="model",
            message=f"{len(names)} float nodes are compiled in FP32: {_some(names)}",
            evidence={"nodes": names},
        )


@NUMERIC_RULES.rule(
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


@NUMERIC_RULES.rule(
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


@PACKAGE_RULES.rule(
    "ORT130",
    "soc-model-unset",
    "error",
    what="The provider options name no chip.",
    why="Without soc_model the result is a v68-like or FP32 build, with no message.",
    fix="Set soc_model; deploykit writes it for every target.",
    sources=[_LAB],
)
def check_soc_model(scope: PackageScope) -> Iterator[Found]:
    """Options without a chip."""
    if not scope.provider_options.get("soc_model"):
        yield Found(kind=SubjectKind.FILE, name="provider options", message="soc_model is not set")


@PACKAGE_RULES.rule(
    "ORT131",
    "option-unknown",
    "error",
    what="The provider options hold a name that the provider does not know.",
    why="The provider ignores it without a word, so what was wanted does not happen.",
    fix="Correct the spelling; 'deploykit compat provider-option' lists all.",
    sources=[_LAB],
)
def check_unknown_options(scope: PackageScope) -> Iterator[Found]:
    """Names outside of the table."""
    for name in scope.unknown_options:
        yield Found(kind=SubjectKind.FILE, name=name, message=f"{name}: the provider has no such option")


@PACKAGE_RULES.rule(
    "ORT132",
    "context-for-another-chip",
    "error",
    what="The context binary was compiled for another chip than the package says.",
    why="A binary may load elsewhere, or not, and its graph is another one.",
    fix="Compile again with compile.py of this package.",
    sources=[_LAB],
)
def check_context_chip(scope: PackageScope) -> Iterator[Found]:
    """soc_model inside the binary against the target's."""
    found = scope.context.get("soc_model")
    if found is not None and scope.soc_model is not None and found != scope.soc_model:
        message = f"the binary is for soc_model {found}, the package for {scope.soc_model}"
        yield Found(kind=SubjectKind.FILE, name="context binary", message=message)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _db(value: Any) -> str:
    return f"{value:.1f} dB" if isinstance(value, float) else f"{value}"

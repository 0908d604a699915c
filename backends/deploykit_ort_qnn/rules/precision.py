"""Rules about the types that a compilation gave its tensors, against the intended ones. Codes ORT101 to ORT105."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import Severity, SubjectKind, listed
from deploykit.findings.rules import Found, Registry
from deploykit_ort_qnn.precision import FloatNode, PrecisionScope, float_nodes, narrowed

__all__ = ["RULES"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"

_MOST_NODES = 20

RULES: Registry[PrecisionScope] = Registry("precision")


@RULES.rule(
    "ORT101",
    "float-island",
    "warning",
    what="A node of a quantized model is compiled in float.",
    why="One missing or unfitting Q/DQ pair turns a node and its neighbours into float, with conversions around them.",
    fix="Give every input and output of the node an encoding of one width; see docs/ort-qnn.md.",
    sources=[_LAB],
)
def check_float_islands(scope: PrecisionScope) -> Iterator[Found]:
    """Each float node whose tensor was meant to be an integer, and at once all that nothing was said about."""
    quantized = any(kind.startswith(("int", "uint")) for kind in scope.intended.values())
    severity = Severity.ERROR if scope.strict else None
    unmeant = list[FloatNode]()
    for node in float_nodes(scope):
        meant_float = scope.intended.get(node.tensor, "").startswith(("float", "bfloat"))
        if not quantized or meant_float or node.block_weights:
            continue
        if not node.wanted:
            unmeant.append(node)
            continue
        yield Found(
            kind=SubjectKind.NODE,
            name=node.name,
            message=f"{_in_float(node)}; {node.tensor} is meant to be {node.wanted}",
            severity=severity,
            evidence={"tensor": node.tensor, "intended": node.wanted, "made": node.made or "unknown"},
        )
    if unmeant:
        # A recurrent layer alone is taken apart into hundreds of nodes.
        first, more = unmeant[0], f" (and {len(unmeant) - 1} more nodes)" if len(unmeant) > 1 else ""
        yield Found(
            kind=SubjectKind.NODE,
            name=first.name,
            message=f"{_in_float(first)}; {first.tensor} has no encoding{more}",
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


@RULES.rule(
    "ORT102",
    "operand-narrowed",
    "warning",
    what="A 16-bit tensor is narrowed to 8 bits on its way into a node, without a message.",
    why="The second operand of a MatMul of two activations is taken as a weight; attention loses accuracy by it.",
    fix="Take HTP v73 or later with QAIRT 2.47 or later, where deploykit uses symmetric int16 there.",
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


@RULES.rule(
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


@RULES.rule(
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


@RULES.rule(
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
            message=f"{len(names)} float nodes are compiled in FP32: {listed(names, most=6)}",
            evidence={"nodes": names},
        )

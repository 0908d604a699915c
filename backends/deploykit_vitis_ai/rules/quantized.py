"""Rules about a quantized model: types, scales, zero points, and the parts left in float."""

from __future__ import annotations

from deploykit.findings import Severity, listed
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import GraphFacts
from deploykit_vitis_ai.draft import route_row
from deploykit_vitis_ai.inspection import InspectedModel, is_power_of_two

__all__ = ["RULES"]


_NO_WORK = ("Cast", "QuantizeLinear", "Shape")  # operators that compute nothing from the floats they read
_LAB = "observed with amd-quark 0.13, 0.12.post1 and 0.11.2 on Linux x86-64"
_BOUNDARY = "repository Xilinx/ross-ai-assistant: the boundary kernel matches power-of-two scales and zero point 0 only"

RULES = Registry[InspectedModel]("quantized-model", sources=[_LAB])


def _about(quantized: InspectedModel, message: str, **evidence: object) -> Found:
    return Found("file", quantized.name, message, evidence=evidence)


@RULES.rule("VAI201", "model-refused", "error")
def check_loads(quantized: InspectedModel) -> Finds:
    """ONNX Runtime does not load the quantized model.

    The compiler opens models through ONNX Runtime, so it will not get far either.

    Fix: See the message; float16 sources and untried combinations of options are the usual causes.
    """
    if quantized.refusal:
        yield _about(quantized, quantized.refusal)


@RULES.rule("VAI202", "scale-not-power-of-two", "error", [_LAB, _BOUNDARY])
def check_scales(quantized: InspectedModel) -> Finds:
    """A scale is not a power of two.

    The integer kernels of this format shift instead of multiplying, and the boundary kernel does not match.

    Fix: Quantize with Quark's preset for this format.
    """
    # The scales of formats that need powers of two.
    row = route_row(quantized.precision)
    if row is None or not row.power_of_two:
        return
    bad = [grid.tensor for grid in quantized.grids if not all(map(is_power_of_two, grid.scales))]
    if bad:
        yield _about(quantized, f"scales that are no powers of two: {listed(bad)}", tensors=bad[:50])


@RULES.rule("VAI203", "zero-point-unexpected", "error", [_LAB, _BOUNDARY])
def check_zero_points(quantized: InspectedModel) -> Finds:
    """A zero point is not the one of this format.

    VINT8, A8W8 and A16W8 are symmetric with zero point 0; XINT8 has 128 for uint8 activations, 0 for weights.

    Fix: Quantize with Quark's preset for this format.
    """
    row = route_row(quantized.precision)
    allowed = () if row is None else row.zero_points
    if not allowed:
        return
    bad = [grid.tensor for grid in quantized.grids if not set(grid.zero_points) <= set(allowed)]
    if bad:
        yield _about(
            quantized, f"zero points other than {' or '.join(map(str, allowed))}: {listed(bad)}", tensors=bad[:50]
        )


@RULES.rule("VAI204", "integer-type-unexpected", "error")
def check_types(quantized: InspectedModel) -> Finds:
    """An activation is quantized to another integer type than the format has.

    The compiler has kernels for the types of its formats only.

    Fix: Quantize with Quark's preset for this format, and do not override its types.
    """
    row = route_row(quantized.precision)
    if row is None or row.maker != "quark":
        return
    wanted = row.activation
    nodes = {node.label: node for node in quantized.facts.nodes if node.op_type == "QuantizeLinear"}
    bad = [grid.tensor for grid in quantized.grids if grid.node in nodes and grid.dtype != wanted]
    if bad:
        yield _about(quantized, f"activations that are not {wanted}: {listed(bad)}", tensors=bad[:50])


@RULES.rule("VAI205", "left-in-float", "warning")
def check_float(quantized: InspectedModel) -> Finds:
    """An operator that should be quantized reads float values.

    It falls to the CPU, or to BF16 where the compiler converts; either splits the integer part.

    Fix: See whether the operator has integer kernels at all; otherwise leave it out on purpose with --exclude-node.
    """
    # Float operators that were not excluded by name.
    row = route_row(quantized.precision)
    if row is None or not row.whole_graph:
        return
    facts, found = quantized.facts, list[str]()
    for node in facts.nodes:
        floats = (name for name in node.inputs if facts.tensor(name).is_float and not facts.is_stored(name))
        reads = any(facts.producer_of(name, "DequantizeLinear") is None for name in floats)
        if node.op_type not in _NO_WORK and node.name not in quantized.excluded and reads:
            # The compiler fuses the constant Mul that ``enable_npu_cnn`` puts behind a GlobalAveragePool.
            scales = node.op_type == "Mul" and facts.is_stored(node.operand(1))
            if not (scales and facts.producer_of(node.inputs[0], "GlobalAveragePool")):
                found.append(node.label)
    if found:
        yield Found("node", found[0], f"float values are read by {listed(found)}", evidence={"nodes": found[:50]})


@RULES.rule("VAI206", "exclusion-ignored", "error")
def check_exclusions(quantized: InspectedModel) -> Finds:
    """A node that was to stay in float is quantized after all.

    Quark ignores wrong option names and nodes that its own search does not reach, without a word.

    Fix: Quantize again with scripts/quantize.py, which names every node in nodes_to_exclude.
    """
    # Excluded nodes with quantized weights, or with Q and DQ between two of them; and those that no longer exist.
    facts = quantized.facts
    gone = _gone(quantized)
    if gone:
        message = f"excluded, and no longer in the model under that name: {listed(gone)}"
        hint = "the quantizer merged or folded it; see what makes its output now"
        yield Found("file", quantized.name, message, hint=hint, severity=Severity.WARNING)
    bad = [
        node.name
        for node in facts.nodes
        if node.name in quantized.excluded and any(_quantized_inside(quantized, name) for name in node.inputs)
    ]
    if bad:
        yield _about(quantized, f"excluded and still quantized: {listed(bad)}", nodes=bad[:50])


def _gone(quantized: InspectedModel) -> list[str]:
    """The excluded nodes of the float model of which neither the name nor a float output is left."""
    if quantized.source is None:
        return []
    names = {node.name for node in quantized.facts.nodes}
    gone = []
    for node in quantized.source.nodes:
        if node.name not in quantized.excluded or node.name in names:
            continue
        makers = [quantized.facts.producer_of(output) for output in node.outputs]
        merged = node.op_type in ("BatchNormalization", "Identity") or node.outputs[0] in names
        merged |= node.op_type == "Concat" and any(
            reader.op_type == "Concat" and reader.outputs[0] in names
            for reader in quantized.source.consumers_of(node.outputs[0])
        )
        if not merged and all(maker is None for maker in makers):
            gone.append(node.name)
    return gone


def _quantized_inside(quantized: InspectedModel, tensor: str) -> bool:
    """True for the DQ of a weight, and for a Q/DQ pair behind another excluded node."""
    facts = quantized.facts
    dequantize = facts.producer_of(tensor, "DequantizeLinear")
    if dequantize is None:
        return False
    quantize = facts.producer_of(dequantize.inputs[0])
    if quantize is None:
        return True
    before = facts.producer_of(quantize.inputs[0])
    return before is not None and before.name in quantized.excluded


@RULES.rule("VAI207", "interface-changed", "error")
def check_interface(quantized: InspectedModel) -> Finds:
    """Inputs or outputs of the quantized model differ from those of the float model.

    The application feeds and reads what the float model has.

    Fix: Quantize again; if the change is wanted, adapt the application.
    """
    # Names, types and shapes of inputs and outputs.
    source = quantized.source
    if source is None:
        return
    for kind in ("inputs", "outputs"):
        before, after = _interface(source, kind), _interface(quantized.facts, kind)
        if quantized.float16_source:
            before, after = (told.replace(" float16[", " float[") for told in (before, after))
        if before != after:
            yield _about(quantized, f"{kind} were {before} and are {after}")


def _interface(facts: GraphFacts, kind: str) -> str:
    """The inputs or outputs in words; names of open sizes are left out."""
    found = [facts.tensors[name] for name in getattr(facts, kind)]
    return ", ".join(
        f"{fact.name} {fact.dtype}{[s if isinstance(s, int) else None for s in fact.shape or ()]}" for fact in found
    )


@RULES.rule("VAI208", "quantized-shape-not-static", "error")
def check_static(quantized: InspectedModel) -> Finds:
    """An input or output of the quantized model has a dimension that is not a number.

    The NPU compiler wants static shapes; Quark accepts dynamic ones.

    Fix: Fix the shapes of the float model.
    """
    for name in (*quantized.facts.inputs, *quantized.facts.outputs):
        fact = quantized.facts.tensors[name]
        if fact.static_shape is None:
            yield Found("tensor", name, f"{name!r} has shape {list(fact.shape or ())}")


@RULES.rule(
    "VAI209",
    "quantized-opset-out-of-range",
    "error",
    "vitisai.docs.amd.com, projects/gen2, Vitis AI 6.2/6.3: operators, ops_support",
)
def check_opset(quantized: InspectedModel) -> Finds:
    """The quantized model uses a newer operator set than the compiler takes.

    Operators of newer sets take the whole model to the CPU.

    Fix: Export the float model with opset 17; Quark keeps the operator set.
    """
    # The default domain's version compared with the product's last one.
    if quantized.last_opset is not None and quantized.facts.opset > quantized.last_opset:
        yield _about(quantized, f"opset {quantized.facts.opset} is beyond {quantized.last_opset}")


@RULES.rule("VAI210", "nothing-quantized", "error")
def check_anything(quantized: InspectedModel) -> Finds:
    """The model has no QuantizeLinear at all.

    Everything was excluded, or the quantizer did nothing.

    Fix: Exclude less.
    """
    if not any(node.op_type == "QuantizeLinear" for node in quantized.facts.nodes):
        yield _about(quantized, "no tensor is quantized")

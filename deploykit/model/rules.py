"""Rules about the graph alone, whatever the device: what stands in the way of compiling it ahead of time.

They read facts and nothing else. Codes DK001 to DK049.
"""

from __future__ import annotations

import shlex

from deploykit.findings import Answerer, Claim, Confidence, Severity, listed
from deploykit.findings.records import grouped
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import (
    GraphFacts,
    NodeFact,
    TensorRole,
    data_shaped_nodes,
    dynamic_inputs,
    setting_of,
    shape_text,
    tensor_bytes,
)
from deploykit.model.operators import LAYERNORM_SINCE, Trait, has, is_standard

__all__ = ["RULES"]

RULES = Registry[GraphFacts]("graph")

_IR = "ONNX IR specification (onnx/onnx docs/IR.md)"
_SHOWN = 8
_LEAST_OPSET = 7
_ON_INTEGERS = "ConvInteger", "DynamicQuantize", "MatMulInteger", "QGemm", "QLinear"
_HOST_TYPES = "string", "complex", "uint64", "float8"
# Most compilers refuse these; only the tools in question can tell whether they settle it when they read the graph.
_OF_MOST_TOOLS = Claim(Answerer.TOOLS, Confidence.INFERRED)


@RULES.rule("DK001", "dynamic-input", "error", f"{_IR}, section on symbolic dimensions", cure="batch-of-one")
def check_dynamic_input(facts: GraphFacts) -> Finds:
    """A graph input with a dimension that is a symbol or unknown.

    A package is compiled ahead of time, and memory is laid out then: every size must be a number.

    Fix: state the sizes with --input NAME=SIZES, or give samples that have them (--calibration)
    """
    # One finding per input, with the option that fixes it. The first has those of all: a short answer shows no other.
    found = grouped((dim.tensor, dim) for dim in dynamic_inputs(facts))
    # Known dimensions as they are, 1 for an open first one of several, the others by their names.
    options = {
        name: "--input "
        + shlex.quote(
            f"{name}="
            + ",".join(
                str(dim if isinstance(dim, int) else 1 if axis < 1 < len(shape) else dim or f"D{axis}").upper()
                for axis, dim in enumerate(shape)
            )
        )
        for name in found
        if (shape := facts.tensors[name].shape) is not None
    }
    # More than a line of a terminal holds helps nobody.
    told = " ".join([*options.values()][:8])
    for name, dims in found.items():
        option = options.get(name, "")
        hint = (
            f"add {told or option} with a number for each name"
            if option
            else f"export it again with a shape for {name}"
        )
        told = ""
        yield Found(
            "tensor",
            name,
            f"input {name!r} ({shape_text(facts.tensors[name])}) is dynamic in " + ", ".join(dim.label for dim in dims),
            hint=hint,
            evidence={"dims": [{"axis": d.axis, "symbol": d.symbol} for d in dims], "option": option},
        )


@RULES.rule(
    "DK002",
    "dynamic-result",
    "warning",
    (f"{_IR}, section on static tensor shapes", "ONNX operator documentation"),
    claim=_OF_MOST_TOOLS,
    cure=("dequantize-layers", "simplify", "loops-on-host"),
)
def check_dynamic_result(facts: GraphFacts) -> Finds:
    """A computed tensor whose size depends on the values it is computed from, or is not known for another reason.

    Memory is laid out before anything runs, so every size must be a number, whatever the inputs are. Most compilers for
    NPUs refuse such a node, or leave it and all that follows to the CPU.

    Fix: move the operation out of the graph, or replace it by one of fixed size (TopK instead of NonZero)
    """
    # One finding per node that makes a size out of values; without such a node, the first tensor: others follow from
    # it.
    makers = tuple(data_shaped_nodes(facts))
    for node, why in makers:
        # A compiler may accept a node sized by values with the size that it had once: that proves nothing for other
        # data.
        yield Found(
            "node", node.label, f"{node.op_type} {node.label}: {why}", by_trial=not has(node, Trait.SIZED_BY_VALUES)
        )
    names = [
        fact.name
        for fact in facts.tensors.values()
        if fact.shape is not None and fact.static_shape is None and fact.role is TensorRole.ACTIVATION
    ]
    if names and not makers and not dynamic_inputs(facts):
        maker = facts.producer_of(names[0])
        yield Found(
            "tensor",
            names[0],
            f"{len(names)} tensors have no fixed size, first {names[0]} ({shape_text(facts.tensors[names[0]])})"
            + (f" made by {maker.label}" if maker else ""),
            hint=f"unroll {maker.label} when exporting, so that its outputs have fixed sizes"
            if maker and has(maker, Trait.CONTROL_FLOW)
            else "",
            evidence={"tensors": names},
        )


@RULES.rule(
    "DK003",
    "nested-graph",
    "warning",
    "ONNX operator documentation: If, Loop, Scan, SequenceMap, types of sequences",
    claim=_OF_MOST_TOOLS,
    cure=("resolve-sequences", "both-branches", "simplify", "loops-on-host"),
)
def check_nested_graph(facts: GraphFacts) -> Finds:
    """A node that runs another graph (If, Loop, Scan, SequenceMap), or works on sequences of tensors.

    What it does is decided at run time. Nothing inside it is checked or quantized here, and most compilers for NPUs
    take straight graphs of tensors only.

    Fix: unroll the loop or fold the condition when exporting; cut the graph where that is not possible
    """
    for trait, what in (
        (Trait.CONTROL_FLOW, "runs another graph"),
        (Trait.ON_SEQUENCES, "works on a sequence of tensors"),
    ):
        for node in facts.nodes:
            if has(node, trait):
                yield Found("node", node.label, f"{node.op_type} {what}")


@RULES.rule("DK004", "no-opset", "error", f"{_IR}, section on operator sets")
def check_no_opset(facts: GraphFacts) -> Finds:
    """A model that does not say which version of the standard operators it uses.

    Operators changed their meaning between versions; without one no tool can tell what the graph computes.

    Fix: export the model again; onnx.helper.make_model takes opset_imports
    """
    if not facts.opset and any(is_standard(node) for node in facts.nodes):
        yield Found(
            "model",
            facts.model_name,
            f"{facts.model_name} imports no standard operator set",
            evidence={"opsets": dict(facts.opsets)},
        )


@RULES.rule("DK005", "opset-beyond-onnx", "error", "ONNX versioning (onnx/onnx docs/Versioning.md)")
def check_opset_known(facts: GraphFacts) -> Finds:
    """A standard operator set newer than the installed onnx package knows.

    Nobody here can tell what its operators compute: nothing can be judged, and other tools are usually further behind.

    Fix: export with an operator set that it knows, or upgrade onnx and onnxruntime
    """
    # Compares with the newest released operator set of the installed package.
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if facts.opset > newest:
        yield Found(
            "model",
            facts.model_name,
            f"{facts.model_name} uses operator set {facts.opset}; the installed onnx knows up to {newest}",
            evidence={"opset": facts.opset, "known": newest},
        )


@RULES.rule("DK006", "model-function", "warning", f"{_IR}, section on model local functions")
def check_model_functions(facts: GraphFacts) -> Finds:
    """Nodes that call functions which the model itself defines.

    What such a function computes is not looked into here, and many tools do not know them at all.

    Fix: inline them: onnx.inliner.inline_local_functions(model)
    """
    # One finding for all functions that are called.
    called = sorted({node.op_type for node in facts.nodes} & facts.functions)
    if called:
        yield Found(
            "model",
            facts.model_name,
            f"{facts.model_name} calls functions of its own: {listed(called, most=_SHOWN)}",
            evidence={"functions": called},
        )


@RULES.rule("DK007", "shapes-not-inferred", "warning", "ONNX shape inference (onnx/onnx docs/ShapeInference.md)")
def check_inference(facts: GraphFacts) -> Finds:
    """A graph whose types and shapes onnx could not infer.

    Only declared shapes are known then, so that whatever depends on shapes is not checked.

    Fix: run onnx.checker.check_model(path, full_check=True) on it, and export it again
    """
    if facts.inference_problem:
        yield Found(
            "model",
            facts.model_name,
            f"the shapes of {facts.model_name} could not be inferred: {facts.inference_problem}",
        )


@RULES.rule(
    "DK008",
    "non-finite-constant",
    "warning",
    ("IEEE 754", "ONNX operator documentation: QuantizeLinear"),
    cure=("simplify", "mask-constant"),
)
def check_non_finite(facts: GraphFacts) -> Finds:
    """A stored tensor with NaN or infinity in it.

    No integer grid holds them: a scale derived from an infinite range is infinite too. NaN spreads to every result that
    it touches.

    Fix: replace an infinity by the largest value that is needed (a finite one does in a mask), and find out where a NaN
    comes from
    """
    # Only tensors that were read are judged: those of moderate size inside the model file.
    for name, what in facts.non_finite.items():
        # A Clip with an infinite bound has no bound.
        if facts.tensors[name].consumers and ("NaN" in what or setting_of(facts, name) is None):
            readers = [node.label for node in facts.consumers_of(name)]
            yield Found(
                "tensor",
                name,
                f"{name} holds {what}, read by {listed(readers, most=_SHOWN)}",
                evidence={"holds": what, "readers": readers},
            )


@RULES.rule("DK018", "scale-not-finite", "error", "ONNX operator documentation: DequantizeLinear")
def check_scales(facts: GraphFacts) -> Finds:
    """A quantizer whose scale is infinite or NaN.

    A range that had an infinity in it, as of a mask, has an infinite scale; whatever is dequantized with it is NaN.

    Fix: replace the infinity by a finite number (-10000 switches off what a mask does) and quantize again
    """
    bad = [node for node in facts.nodes if node.op_type == "DequantizeLinear" and node.operand(1) in facts.non_finite]
    if bad:
        names = listed([node.outputs[0] for node in bad], most=_SHOWN)
        yield Found("tensor", bad[0].operand(1), f"dequantized with a scale that is not finite, so NaN: {names}")


@RULES.rule(
    "DK009",
    "float64",
    "warning",
    ("pytorch/pytorch#81869", "microsoft/onnxruntime#5782"),
    cure="double-to-float",
)
def check_float64(facts: GraphFacts) -> Finds:
    """Tensors of 64-bit floating point.

    They come from Python numbers that an exporter left in double precision. Runtimes implement double for a few
    operators only.

    Fix: export in float32, or convert every float64 tensor of the ONNX file
    """
    names = [fact.name for fact in facts.tensors.values() if fact.dtype == "double"]
    if names:
        yield Found(
            "tensor",
            names[0],
            f"{len(names)} tensors are 64-bit float: {listed(names, most=_SHOWN)}",
            severity=Severity.ERROR if {*names} & {*facts.inputs} else None,
            evidence={"tensors": names},
        )


@RULES.rule("DK010", "output-without-node", "warning", f"{_IR}, section on graphs")
def check_idle_output(facts: GraphFacts) -> Finds:
    """A graph output that no node computes: it is an input or a stored tensor itself.

    There is no operation that a compiler could place it in; it passes data through or gives a constant.

    Fix: drop the output, or put an Identity before it
    """
    # Constants made by Constant nodes count as stored.
    for name in facts.outputs:
        role = facts.tensor(name).role
        if role is not TensorRole.ACTIVATION:
            yield Found("tensor", name, f"no node computes output {name!r}: it is the {role} of that name")


@RULES.rule("DK013", "external-data", "info", "ONNX external data (onnx/onnx docs/ExternalData.md)")
def check_external(facts: GraphFacts) -> Finds:
    """Weights in files beside the model.

    The model is incomplete without them: they must travel together and match exactly.

    Fix: copy all files when moving the model
    """
    outside = [fact for fact in facts.tensors.values() if fact.external]
    if outside:
        size = sum(tensor_bytes(fact) or 0 for fact in outside)
        yield Found(
            "model",
            facts.model_name,
            f"{len(outside)} tensor(s) of {size:,} bytes lie in files beside {facts.model_name}",
            evidence={"tensors": len(outside), "bytes": size},
        )


@RULES.rule("DK014", "empty-input", "warning", f"{_IR}, section on static tensor shapes")
def check_empty_input(facts: GraphFacts) -> Finds:
    """A graph input with a dimension of size zero.

    It can hold no data. Some exporters write 0 where they mean a size that is not fixed.

    Fix: give the dimension its real size
    """
    for name in facts.inputs:
        shape = facts.tensors[name].shape or ()
        if 0 in shape:
            yield Found(
                "tensor", name, f"dimension {shape.index(0)} of input {name!r} ({shape_text(facts.tensors[name])}) is 0"
            )


@RULES.rule(
    "DK015",
    "old-opset",
    "warning",
    ("ONNX Runtime, compatibility (docs/Versioning.md): operator sets from 7", "ONNX changelog, set 7"),
    cure="raise-opset",
)
def check_old_opset(facts: GraphFacts) -> Finds:
    """A standard operator set below 7, or a LayerNormalization in one below 17.

    With set 7 broadcasting changed for all of arithmetic. ONNX Runtime, with which every step here computes, promises
    set 7 and later; compilers read no older one, or other values out of it. Its optimizer writes LayerNormalization
    into any set; for every other tool that is no valid model.

    Fix: export it again with operator set 17 or later
    """
    if 0 < facts.opset < _LEAST_OPSET and any(is_standard(node) for node in facts.nodes):
        yield Found(
            "model",
            facts.model_name,
            f"{facts.model_name} uses operator set {facts.opset}; below {_LEAST_OPSET} nothing here can run it",
            evidence={"opset": facts.opset},
        )
    early = [node for node in facts.nodes if node.op_type == "LayerNormalization" and is_standard(node)]
    if early and facts.opset < LAYERNORM_SINCE:
        where = early[0].label
        yield Found("node", where, f"{where}: operator set {facts.opset} has no LayerNormalization yet")


@RULES.rule(
    "DK016",
    "operators-on-integers",
    "warning",
    ("ONNX operator documentation: QLinearConv", "ONNX Runtime documentation: quantization, formats"),
    claim=_OF_MOST_TOOLS,
    cure=("integers-to-pairs", "dequantize-layers", "write-out-functions"),
)
def check_integer_operators(facts: GraphFacts) -> Finds:
    """Operators that compute on quantized integers themselves: QLinearConv, MatMulInteger and the like.

    They are made for CPUs, above all where DynamicQuantizeLinear finds the scales while the model runs. Compilers for
    NPUs read quantization as QuantizeLinear and DequantizeLinear around float operators.

    Fix: quantize the float model with quant_format=QuantFormat.QDQ
    """
    found = [node for node in facts.nodes if node.op_type.startswith(_ON_INTEGERS)]
    if found:
        kinds = listed(sorted({node.op_type for node in found}), most=_SHOWN)
        yield Found(
            "node",
            found[0].label,
            f"{len(found)} operators compute on integers: {kinds}",
            evidence={"count": len(found)},
        )


@RULES.rule(
    "DK017",
    "host-only",
    "warning",
    ("ONNX operator documentation: ai.onnx.ml", f"{_IR}, section on tensor element types"),
    claim=_OF_MOST_TOOLS,
    cure="simplify",
)
def check_host_only(facts: GraphFacts) -> Finds:
    """Trees, vectorizers and their like (ai.onnx.ml), or a tensor of text, complex numbers, uint64 or float8.

    NPUs compute with float16, bfloat16 and integers up to 32 bits. Compilers for them refuse such a node, or leave it
    to the CPU.

    Fix: compute it on the host, before or after what is packaged
    """
    # Each operator and reason once, with its first node.
    others = (node for node in facts.nodes if node.domain != "ai.onnx.ml")
    alone = all(node.op_type == "Cast" or has(node, Trait.REARRANGES) for node in others)
    first = dict[tuple[str, str], NodeFact]()
    for node in facts.nodes:
        types = {facts.tensors[name].dtype or "" for name in node.outputs if name in facts.tensors}
        why = [f"it gives {dtype}" for dtype in sorted(types) if dtype.startswith(_HOST_TYPES)]
        if node.domain == "ai.onnx.ml":
            why = ["an operator of classical machine learning" + ", and the model computes nothing else" * alone]
        for reason in why:
            first.setdefault((node.op_type, reason), node)
    for (op_type, reason), node in first.items():
        severity = Severity.ERROR if alone and node.domain == "ai.onnx.ml" else None
        yield Found("node", node.label, f"{op_type} {node.label}: {reason}", severity=severity)

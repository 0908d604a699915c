"""Rewrites by ONNX's own specification: raise the operator set, write operators out by their function bodies.

What each operator computes stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx.inliner
import onnx.parser
from msgspec.structs import replace
from onnx import FunctionProto, ModelProto, NodeProto, defs, helper

from deploykit.encodings.place import GrowingSet
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, attributes, copy_of, label, opset_of
from deploykit.model.nodes import raise_opset as raised_to
from deploykit.model.operators import CONTRIBUTED, LAYERNORM_SINCE, is_standard
from deploykit.model.pinning import keep_weights_constant
from deploykit.rewrites.contract import MatchResult, ModelLook, NearMiss, Rewritten, Site, Transform, rewritten
from deploykit.rewrites.fold import fold

__all__ = ()

# Before set 7 broadcasting was an attribute and every node was written differently, which compilers no longer read;
# before set 10 there are no QuantizeLinear and DequantizeLinear, which quantizers write, before 13 no grids per channel
# and no Cast to bfloat16. It is also the oldest that tools in use are tested with.
_LEAST = 13
# Functions of ONNX until set 15: ONNX Runtime then knows no shape of their results (1.31, and the provider says so).
# Its optimizer writes LayerNormalization into older sets too, where no other tool knows it.
_NEEDS = {"GreaterOrEqual": 16, "LessOrEqual": 16, "LayerNormalization": LAYERNORM_SINCE}

# Operators that compilers for devices rarely have. Operators that they mostly have, such as LayerNormalization, stay.
_WRITTEN_OUT = frozenset(
    {
        *("AffineGrid", "Attention", "Celu", "CenterCropPad", "DynamicQuantizeLinear", "Mish"),
        *("ReduceL1", "ReduceLogSum", "ReduceSumSquare", "RotaryEmbedding", "Shrink", "Softsign", "Swish"),
        *("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"),
    }
)


_BODIES = "bodies"


@cache
def _contributed() -> Mapping[str, FunctionProto]:
    """ONNX Runtime's own operators as functions of ONNX's operators, by name, activation and number of inputs."""
    text = Path(__file__).with_name("contributed.onnxtxt").read_text("utf-8")
    return {function.name: function for function in onnx.parser.parse_model(text).functions}


def _contributed_name(node: NodeProto) -> str:
    """The function that a node stands for; "" where the node has other outputs, another axis or leaves an input out."""
    name = f"{node.op_type}{attribute(node, 'activation', '')}{len(node.input)}"
    plain = all(node.input) and not any(node.output[1:3]) and attribute(node, "axis", -1) == -1
    return name if plain and node.domain in ("", CONTRIBUTED) and name in _contributed() else ""


def _old_opset(graph: ModelLook) -> MatchResult:
    given, model = graph.opset, graph.model
    if _wanted(model) == given:
        return MatchResult(reason=f"its operator set {given} is read by compilers")
    try:
        raised_to(copy_of(model), _wanted(model))
    except InputError as error:
        return MatchResult(refusals=(NearMiss((), error.why or error.what),), reason=error.what)
    return MatchResult((Site((), tensors=(), why=f"its operator set is {given}"),))


def _wanted(model: ModelProto) -> int:
    """The operator set that all tools read: the model's own from 13 on, unless a node needs a later one."""
    given, needs = opset_of(model), [_NEEDS.get(node.op_type, _LEAST) for node in model.graph.node if is_standard(node)]
    return max([given, _LEAST, *needs]) if given > 0 else given


def _raise_opset(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Raise the operator set; entries stay, since tensors keep their names."""
    del matched
    given, target = opset_of(model), _wanted(model)
    raised = raised_to(copy_of(model), target)
    keep_weights_constant(raised)
    graph, entries = GraphCopy(raised, copy=False), GrowingSet(encodings)
    for node in [node for node in graph.nodes if node.op_type == "PRelu"]:
        # Its slopes belonged to the channels; now they broadcast from the last axis, which the converter forgets.
        slopes, shape = graph.array(node.input[1]), graph.shape(node.input[0])
        if slopes is not None and shape is not None and slopes.size > 1 and len(shape) > 2:
            name, wanted = node.input[1], (-1, *(1,) * (len(shape) - 2))
            node.input[1] = graph.store(f"{name}_per_channel", slopes.reshape(wanted))
            entries.share(name, node.input[1])
    graph.prune()
    return rewritten(graph, entries.encodings, f"operator set {given} became {target}")


raise_opset = Transform(
    "raise-opset",
    summary="Raises an operator set to 13, to 16 for GreaterOrEqual or LessOrEqual, to 17 for LayerNormalization.",
    find=_old_opset,
    apply=_raise_opset,
    ulps=256.0,  # before is computed by ONNX's reference, which adds in another order
)


def _with_bodies(graph: ModelLook) -> MatchResult:
    """Every operator to write out whose body is of the model's operator set, or of one it can be raised to."""
    model = graph.model
    sites, refusals = list[Site](), list[NearMiss]()
    for node in graph.nodes:
        needed = None
        if node.op_type in _WRITTEN_OUT and is_standard(node):
            needed = _needed_opset(node.op_type, graph.opset)
        elif _contributed_name(node):
            needed = max(graph.opset, LAYERNORM_SINCE)
        if needed is None:
            continue
        try:
            raised_to(copy_of(model), needed)
        except InputError:
            refusals.append(NearMiss((label(node),), f"its body is of operator set {needed}"))
            continue
        why = f"{node.op_type} is made of others"
        sites.append(Site((label(node),), tensors=tuple(filter(None, node.output)), why=why, data=needed))
    try:
        if sites:
            _inlined(model, sites)
    except Exception as error:  # the inliner's C++ code raises bare RuntimeErrors, for left out inputs for instance
        problem = f"onnx does not write it out: {str(error).strip().splitlines()[0]}"
        refusals += [NearMiss(site.nodes, problem) for site in sites]
        sites = []
    reason = "" if sites else refusals[0].reason if refusals else "no operator is one that is written out"
    return MatchResult(tuple(sites), refusals=tuple(refusals), reason=reason)


def _needed_opset(op_type: str, opset: int) -> int | None:
    """The least operator set, from the model's on, in which the operator has a body; None where it has none."""
    try:
        # The operator as the model has it, else its newest version; the stub of a schema lacks both lists.
        schemas: list[Any] = [defs.get_schema(op_type, opset, ""), defs.get_schema(op_type, "")]
    except defs.SchemaError:
        return None
    for schema in schemas:
        versions: list[int] = [*schema.function_opset_versions, *schema.context_dependent_function_opset_versions]
        if versions:
            return max(opset, min(versions))
    return None


def _inlined(model: ModelProto, sites: Sequence[Site]) -> tuple[ModelProto, tuple[str, ...]]:
    """A copy in which the operators at these sites are replaced by their bodies, and the types of these operators."""
    graph = view_of(model)
    kinds = tuple(sorted({graph.makers[site.tensors[0]].op_type for site in sites}))
    raised = raised_to(copy_of(model), max(site.data for site in sites))
    own = [node for node in raised.graph.node if _contributed_name(node)]
    for node in own:
        node.domain, node.op_type = _BODIES, _contributed_name(node)
        # onnx forgets the defaults of a function where its body hands them on to another one.
        given = attributes(node)
        node.attribute.extend(d for d in _contributed()[node.op_type].attribute_proto if d.name not in given)
    for function in _contributed().values() if own else ():
        raised.functions.add().CopyFrom(function)
        # A function's nodes mean the same in all operator sets from its own on.
        raised.functions[-1].opset_import[0].version = opset_of(raised)
    raised.opset_import.append(helper.make_opsetid(_BODIES, 1))
    chosen = [*(("", kind) for kind in kinds), *((_BODIES, name) for name in _contributed())]
    written = onnx.inliner.inline_selected_functions(raised, chosen, inline_schema_functions=True)
    kept = [entry for entry in written.opset_import if entry.domain != _BODIES]
    del written.opset_import[:]
    written.opset_import.extend(kept)
    return written, kinds


def _write_out(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Replace the operators by their bodies, and fold what the bodies compute of shapes."""
    known = view_of(model).tensor_names
    written, kinds = _inlined(model, matched.sites)
    graph = GraphCopy(written, copy=False)
    for node in graph.nodes:  # bodies come without names, by which findings and tools speak of nodes
        node.name = node.name or graph.fresh(next(filter(None, node.output), node.op_type))
    fold(graph, () if encodings is None else frozenset(encodings.entries) | encodings.float_tensors)
    note = f"{len(matched.sites)} operators are written out ({', '.join(kinds)})"
    fresh = {name for node in graph.nodes for name in node.output if name and name not in known}
    return replace(rewritten(graph, encodings, note), touched=frozenset(fresh if encodings is not None else ()))


write_out_functions = Transform(
    "write-out-functions",
    summary="Writes operators that ONNX defines by others, and devices rarely have, with those others.",
    find=_with_bodies,
    apply=_write_out,
    ulps=64.0,
)

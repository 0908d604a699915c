"""Writes operators that ONNX defines by others with those: each by the function body of its own specification.

Only operators that compilers for devices rarely have; what they mostly have, such as a LayerNormalization, stays one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import onnx.inliner
from onnx import NodeProto, defs

from deploykit.encodings.place import keep_entries
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy, copy_of, view_of
from deploykit.model.nodes import label, raise_opset
from deploykit.model.operators import is_standard
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform
from deploykit.rewrites.folding import fold

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_WRITTEN_OUT = frozenset(
    {
        *("AffineGrid", "Attention", "Celu", "CenterCropPad", "DynamicQuantizeLinear"),
        *("ReduceL1", "ReduceLogSum", "ReduceSumSquare", "RotaryEmbedding", "Shrink", "Softsign", "Swish"),
        *("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"),
    }
)


def match(model: ModelProto) -> MatchResult:
    """Every such operator that has a body in the model's operator set, or in one that the model can be raised to."""
    graph = view_of(model)
    sites, refusals = list[Site](), list[Refusal]()
    for node in graph.nodes:
        needed = _needed_opset(node.op_type, graph.opset) if _is_written_out(node) else None
        if needed is None:
            continue
        if needed > graph.opset and not _rises(model, needed):
            refusals.append(Refusal(nodes=(label(node),), reason=f"its body is of operator set {needed}"))
        else:
            why = f"{node.op_type} is made of others"
            sites.append(Site(nodes=(label(node),), tensors=tuple(filter(None, node.output)), why=why, data=needed))
    problem = _inlining_problem(model, sites)
    if problem:
        refusals += [Refusal(nodes=site.nodes, reason=problem) for site in sites]
        sites = []
    reason = "" if sites or refusals else "no operator is one that is written out"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _is_written_out(node: NodeProto) -> bool:
    return node.op_type in _WRITTEN_OUT and is_standard(node)


def _needed_opset(op_type: str, opset: int) -> int | None:
    """The least operator set, from the model's on, in which the operator has a body; None where it has none."""
    try:
        schema: Any = defs.get_schema(op_type, opset, "")  # its stub lacks both lists of versions
    except defs.SchemaError:
        return None
    versions = [*schema.function_opset_versions, *schema.context_dependent_function_opset_versions]
    return max(opset, min(versions)) if versions else None


def _rises(model: ModelProto, opset: int) -> bool:
    try:
        raise_opset(copy_of(model), opset)
    except InputError:
        return False
    return True


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Put in the bodies, and fold what they compute of shapes."""
    before = view_of(model)
    written, kinds = _inlined(model, matched.sites)
    graph = GraphCopy(written, copy=False)
    _name_nodes(graph)
    fold(graph, () if encodings is None else frozenset(encodings.entries) | encodings.float_tensors)
    note = f"{len(matched.sites)} operators are written out ({', '.join(kinds)})"
    kept = keep_entries(encodings, graph)
    fresh = _made(graph, before.tensor_names) if kept is not None else frozenset()
    return Rewritten(model=graph.model, encodings=kept, touched=fresh, notes=(note,))


def _inlined(model: ModelProto, sites: Sequence[Site]) -> tuple[ModelProto, tuple[str, ...]]:
    """A copy with the bodies in the places of the operators, and which operators they are."""
    graph = view_of(model)
    kinds = tuple(sorted({graph.makers[site.tensors[0]].op_type for site in sites}))
    raised = raise_opset(copy_of(model), max(site.data for site in sites))
    chosen = [("", kind) for kind in kinds]
    return onnx.inliner.inline_selected_functions(raised, chosen, inline_schema_functions=True), kinds


def _inlining_problem(model: ModelProto, sites: Sequence[Site]) -> str:
    """Why the bodies cannot be put in, in onnx's words; "" where they can."""
    try:
        if sites:
            _inlined(model, sites)
    except Exception as error:  # the inliner's C++ code raises bare RuntimeErrors, for left out inputs for instance
        return f"onnx does not write it out: {str(error).strip().splitlines()[0]}"
    return ""


def _name_nodes(graph: GraphCopy) -> None:
    """Bodies come without names, by which findings and tools speak of nodes."""
    for node in graph.nodes:
        node.name = node.name or graph.fresh(next(filter(None, node.output), node.op_type))


def _made(graph: GraphCopy, known: Collection[str]) -> frozenset[str]:
    """Tensors that the bodies compute."""
    nodes: list[NodeProto] = list(graph.nodes)
    return frozenset(name for node in nodes for name in node.output if name and name not in known)


transform = Transform(
    name="write-out-functions",
    summary="Writes operators that ONNX defines by others, and devices rarely have, with those others.",
    match=match,
    apply=apply,
    ulps=64.0,
)

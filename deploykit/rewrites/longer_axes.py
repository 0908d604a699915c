"""Leaves axes of length 1 out of a mean or a sum that is over longer axes too; no value changes.

A reduction that drops its axes keeps them first, and a Reshape drops them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.encodings.values import EncodingSet
from deploykit.model.collect import facts_seen
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, opset_of
from deploykit.model.patterns import Reduction, over_short_axes
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["transform"]

_AXES_ARE_INPUTS = {"ReduceMean": 18, "ReduceSum": 13}
_NONE = "no mean or sum of a turned tensor is over an axis of length 1 beside longer ones"


def match(model: ModelProto) -> MatchResult:
    """Every such mean and sum whose axes are stored."""
    graph = view_of(model)
    facts = facts_seen(graph)
    sites, refusals = list[Site](), list[Refusal]()
    for found in over_short_axes(facts):
        nodes = (found.node.label,)
        axes = _axes(graph, graph.makers[found.node.outputs[0]], len(found.shape))
        if axes is None:
            refusals.append(Refusal(nodes=nodes, reason="its axes are computed"))
        else:
            why = f"it is over axes {sorted(axes)} of {list(found.shape)}"
            sites.append(Site(nodes=nodes, tensors=(found.source,), why=why, data=found))
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason="" if sites or refusals else _NONE)


def _axes(graph: GraphCopy, node: NodeProto, rank: int) -> list[int] | None:
    """The reduced axes, counted from the front; None where they are computed."""
    named = attribute(node, "axes", None)
    if named is None and len(node.input) > 1 and node.input[1]:
        stored = graph.array(node.input[1])
        named = None if stored is None else stored.ravel()
        return None if named is None else [int(axis) % rank for axis in named]
    return list(range(rank)) if named is None else [int(axis) % rank for axis in named]


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Reduce the longer axes alone."""
    graph = GraphCopy(model)
    for site in matched.sites:
        encodings = _rewrite(graph, site.data, encodings)
    graph.prune()
    note = f"{len(matched.sites)} means and sums leave out axes of length 1"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(graph: GraphCopy, found: Reduction, encodings: EncodingSet | None) -> EncodingSet | None:
    node = graph.makers[found.node.outputs[0]]
    axes = _axes(graph, node, len(found.shape)) or []
    longer = [axis for axis in sorted(axes) if found.shape[axis] > 1]
    result = node.output[0]
    if attribute(node, "keepdims", 1):
        graph.replace_nodes([node], {graph.index_of(node): [_reduced(graph, node, longer, result)]})
        return encodings
    kept = graph.fresh(f"{result}_kept")
    dims = [dim for axis, dim in enumerate(found.shape) if axis not in axes]
    shape = graph.store(f"{kept}_shape", np.asarray(dims, np.int64))
    steps = [
        _reduced(graph, node, longer, kept),
        helper.make_node("Reshape", [kept, shape], [result], name=f"{kept}_dropped"),
    ]
    graph.replace_nodes([node], {graph.index_of(node): steps})
    return share_entry(encodings, result, [kept])


def _reduced(graph: GraphCopy, node: NodeProto, axes: list[int], result: str) -> NodeProto:
    """The same reduction over these axes, in the form of the operator set it came in."""
    if opset_of(graph.model) >= _AXES_ARE_INPUTS[node.op_type]:
        stored = graph.store(f"{node.output[0]}_axes", np.asarray(axes, np.int64))
        return helper.make_node(node.op_type, [node.input[0], stored], [result], name=node.name, keepdims=1)
    return helper.make_node(node.op_type, [node.input[0]], [result], name=node.name, axes=axes, keepdims=1)


transform = Transform(
    name="longer-axes",
    summary="Leave axes of length 1 out of means and sums of turned tensors.",
    match=match,
    apply=apply,
    ulps=4.0,
)

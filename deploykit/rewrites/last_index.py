"""Writes ArgMax and ArgMin that take the last of equal values as those that take the first, over the reversed axis.

Reversing is a Gather with a stored list, and the index is taken off the last one. Axes of unknown size stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


def match(model: ModelProto) -> MatchResult:
    """Every ArgMax and ArgMin with select_last_index."""
    graph = view_of(model)
    nodes = [n for n in graph.nodes if n.op_type in ("ArgMax", "ArgMin") and attribute(n, "select_last_index", 0)]
    types = infer(model).types if nodes else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in nodes:
        shape, axis = types.get(node.input[0], ("", None))[1], int(attribute(node, "axis", 0))
        size = None if shape is None else shape[axis]
        if isinstance(size, int):
            why = f"the last of {size} places is wanted where values are equal"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=size))
        else:
            refusals.append(Refusal(nodes=(label(node),), reason=f"the size of axis {axis} is not known"))
    reason = "" if sites or refusals else "no ArgMax or ArgMin selects the last index"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Gather backwards, take the first, and count from the end."""
    graph = GraphCopy(model)
    for site in matched.sites:
        node = graph.makers[site.tensors[0]]
        encodings = _rewrite(graph, node, site.data, encodings)
    note = f"{len(matched.sites)} searches take the first of equal values in reversed order"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(graph: GraphCopy, node: NodeProto, size: int, encodings: EncodingSet | None) -> EncodingSet | None:
    source, made, axis = node.input[0], node.output[0], int(attribute(node, "axis", 0))
    turned, first = graph.fresh(f"{made}_reversed"), graph.fresh(f"{made}_first")
    order = graph.store(f"{turned}_order", np.arange(size - 1, -1, -1, dtype=np.int64))
    last = graph.store(f"{made}_last", np.asarray(size - 1, np.int64))
    keeps = int(attribute(node, "keepdims", 1))
    steps = [
        helper.make_node("Gather", [source, order], [turned], name=turned, axis=axis),
        helper.make_node(node.op_type, [turned], [first], name=node.name, axis=axis, keepdims=keeps),
        helper.make_node("Sub", [last, first], [made], name=f"{made}_from_end"),
    ]
    graph.replace_nodes([node], {graph.index_of(node): steps})
    return share_entry(encodings, source, [turned])


transform = Transform(
    name="last-index",
    summary="Writes ArgMax and ArgMin that take the last of equal values with those that take the first.",
    match=match,
    apply=apply,
)

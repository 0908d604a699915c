"""Gathers from a list by a flat index and shapes the result, where the stored index has more than one dimension.

The same elements in the same order; an index that counts through the whole list leaves nothing to gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What is taken: by which node (its output), in which shape, and whether that is the whole list in order."""

    output: str
    shape: tuple[int, ...]
    whole: bool


def match(model: ModelProto) -> MatchResult:
    """Every Gather from computed data of one dimension by a stored index of two or more."""
    graph = view_of(model)
    static, types = graph.static(), infer(model).types
    sites, refusals = [], []
    for node in graph.nodes:
        index = graph.array(node.input[1]) if node.op_type == "Gather" and is_standard(node) else None
        if index is None or index.ndim < 2 or node.input[0] in static:
            continue
        shape = types.get(node.input[0], ("", None))[1]
        if shape is None or len(shape) != 1:
            if shape is None:
                refusals.append(Refusal(nodes=(label(node),), reason=f"the shape of {node.input[0]} is not known"))
            continue
        whole = shape[0] == index.size and bool((index.reshape(-1) == np.arange(index.size)).all())
        data = _Taken(output=node.output[0], shape=index.shape, whole=whole)
        why = f"an index of {index.ndim} dimensions into a list"
        sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=data))
    reason = "" if sites else "no computed list is gathered from by a stored index of several dimensions"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Gather, then Reshape under the name of the result."""
    graph = GraphCopy(model)
    for site in matched.sites:
        encodings = _rewrite(graph, site.data, encodings)
    graph.prune()
    note = f"{len(matched.sites)} lists are gathered from by flat indices"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(graph: GraphCopy, taken: _Taken, encodings: EncodingSet | None) -> EncodingSet | None:
    node = graph.makers[taken.output]
    source, steps = node.input[0], []
    shape = graph.store(f"{taken.output}_shape", np.asarray(taken.shape, np.int64))
    if not taken.whole:
        index = graph.array(node.input[1])
        assert index is not None
        flat = graph.fresh(f"{taken.output}_flat")
        stored = graph.store(f"{flat}_index", index.reshape(-1))
        steps.append(helper.make_node("Gather", [source, stored], [flat], name=node.name, axis=0))
        encodings, source = share_entry(encodings, taken.output, [flat]), flat
    name = node.name if taken.whole else graph.fresh(f"{taken.output}_shaped")
    steps.append(helper.make_node("Reshape", [source, shape], [taken.output], name=name))
    graph.replace_nodes([node], {graph.index_of(node): steps})
    return encodings


transform = Transform(
    name="flat-index",
    summary="Gather from a list by a flat index and shape the result, instead of by an index of several dimensions.",
    match=match,
    apply=apply,
)

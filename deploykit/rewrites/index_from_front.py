"""Counts stored indices from the front: a negative index of Gather, GatherND or GatherElements gains its dimension.

Devices count from the front only; the sum is exact. Indices that are computed are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_GATHERING = ("Gather", "GatherElements", "GatherND")


def match(model: ModelProto) -> MatchResult:
    """Every gathering node whose stored indices are partly negative, along dimensions that are known."""
    graph = view_of(model)
    nodes = [node for node in graph.nodes if node.op_type in _GATHERING and _is_negative(graph, node)]
    if not nodes:
        return MatchResult(reason="no stored index of a Gather, GatherElements or GatherND is negative")
    types = infer(model).types
    sites, refusals = [], []
    for node in nodes:
        sizes = _sizes(node, types.get(node.input[0], ("", None))[1], graph.array(node.input[1]))
        if sizes is None:
            refusals.append(Refusal(nodes=(label(node),), reason=f"the dimension it indexes in {node.input[0]} varies"))
        else:
            why = f"{node.input[1]} counts from the end of a dimension that is known"
            sites.append(Site(nodes=(label(node),), tensors=(node.input[1],), why=why, data=(node.output[0], sizes)))
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason="" if sites else refusals[0].reason)


def _is_negative(graph: GraphCopy, node: NodeProto) -> bool:
    indices = graph.array(node.input[1])
    return indices is not None and indices.dtype.kind == "i" and bool((indices < 0).any())


def _sizes(node: NodeProto, shape: Shape, indices: npt.NDArray[Any] | None) -> tuple[int, ...] | None:
    """The dimensions that the index, or each part of an index, points into; None where one is not known."""
    assert indices is not None
    if shape is None:
        return None
    if node.op_type == "GatherND":
        first = int(attribute(node, "batch_dims", 0))
        wanted = shape[first : first + indices.shape[-1]]
    else:
        axis = int(attribute(node, "axis", 0))
        wanted = (shape[axis],)
    known = tuple(dim for dim in wanted if isinstance(dim, int))
    return known if len(known) == len(wanted) else None


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Store the sums beside the indices, which other nodes may read as they are."""
    graph = GraphCopy(model)
    for site in matched.sites:
        made, sizes = site.data
        node = graph.makers[made]
        indices: Any = graph.array(node.input[1])
        counted = np.where(indices < 0, indices + _like(indices, sizes), indices)
        node.input[1] = graph.store(f"{node.input[1]}_from_front", counted)
    graph.prune()
    note = f"{len(matched.sites)} index lists count from the front"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _like(indices: npt.NDArray[Any], sizes: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.asarray(sizes if len(sizes) > 1 else sizes[0], dtype=indices.dtype)


transform = Transform(
    name="index-from-front",
    summary="Counts the stored indices of Gather, GatherElements and GatherND from the front.",
    match=match,
    apply=apply,
)

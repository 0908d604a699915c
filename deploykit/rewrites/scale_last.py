"""Moves a last multiplication, for instance by the image size, to the host: the output keeps its small range.

Only a Mul or Div by something that no weight computes, from which only moves lead to the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.rewrites.contract import MatchResult, Refusal, Site, Transform
from deploykit.rewrites.tails import MOVES, apply_cut, closed_downward, followers, with_makers

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["transform"]

_NOTABLE = 2.0
"""A constant scale within this factor of 1 is not worth an output."""


def match(model: ModelProto) -> MatchResult:
    """Every last Mul or Div by a constant or by something that only moves lead from an input."""
    graph = view_of(model)
    ends = closed_downward(graph, MOVES | {"Mul", "Div"})
    free = _unweighted(graph)
    scales, refusals = [], []
    for index in sorted(ends):
        node = graph.nodes[index]
        if node.op_type not in ("Mul", "Div"):
            continue
        problem = _problem(graph, node, free)
        if problem:
            refusals.append(Refusal(nodes=(label(node),), reason=problem))
        else:
            scales.append(index)
    later = closed_downward(graph, MOVES, scales) if scales else frozenset()
    scales = [index for index in scales if index in later]
    if not scales:
        return MatchResult(refusals=tuple(refusals), reason="no output ends in a multiplication by a scale")
    kept = followers(graph, scales, later)  # earlier moves stay on the device
    data = with_makers(graph, kept, free)
    nodes = tuple(label(graph.nodes[index]) for index in scales)
    tensors = tuple(graph.nodes[index].output[0] for index in scales)
    site = Site(nodes=nodes, tensors=tensors, why="the last thing computed is a scale", data=data)
    return MatchResult(sites=(site,), refusals=tuple(refusals))


def _unweighted(graph: GraphCopy) -> set[str]:
    """Tensors that only moves lead to from inputs and stored values."""
    free = {*graph.inputs, *graph.stored}
    for node in graph.nodes:
        if node.op_type in MOVES and all(name in free for name in node.input if name):
            free.update(node.output)
    return free


def _problem(graph: GraphCopy, node: NodeProto, free: set[str]) -> str:
    scale = node.input[1] if node.op_type == "Div" or node.input[1] in free else node.input[0]
    data = node.input[0] if scale == node.input[1] else node.input[1]
    if scale not in free:
        return "both of its operands are computed from data"
    if data in free:
        return "it computes with inputs only"
    value = graph.array(scale)
    if value is not None and value.size:
        largest = float(np.abs(value).max())
        if 1 / _NOTABLE < largest < _NOTABLE:
            return f"it scales by {largest:g} only"
    return ""


transform = Transform(
    name="scale-last",
    summary="Moves a last multiplication by the image size or a constant to the host.",
    match=match,
    apply=apply_cut,
    ulps=0.0,
)

"""Turns an output that concatenates unlike ranges (boxes 0..640, scores 0..1) into one output per part.

One grid for all would leave the small range a handful of steps. The host joins the parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deploykit.model.graph import view_of
from deploykit.model.nodes import label
from deploykit.model.ranges import ANYTHING, Interval, LateBounds
from deploykit.rewrites.contract import MatchResult, Refusal, Site, Transform
from deploykit.rewrites.tails import MOVES, apply_cut, closed_downward, followers

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["transform"]

_ALIKE = 4.0
"""Ranges whose magnitudes differ by no more than this factor may share a grid."""


def match(model: ModelProto) -> MatchResult:
    """All Concats that only moves separate from the outputs, unless their parts are known to be alike."""
    graph = view_of(model)
    bounds = LateBounds(graph)
    ends = closed_downward(graph, MOVES)
    joins = [index for index in sorted(ends) if graph.nodes[index].op_type == "Concat"]
    chosen, refusals = [], []
    for index in joins:
        node = graph.nodes[index]
        if len(set(node.input)) < 2 or _alike([bounds.get(name, ANYTHING) for name in node.input]):
            refusals.append(Refusal(nodes=(label(node),), reason="its parts have like ranges"))
        else:
            chosen.append(index)
    if not chosen:
        return MatchResult(refusals=tuple(refusals), reason="no output concatenates unlike ranges")
    later = closed_downward(graph, (), followers(graph, chosen, ends))
    nodes = tuple(label(graph.nodes[index]) for index in chosen)
    tensors = tuple(dict.fromkeys(name for index in chosen for name in graph.nodes[index].input))
    site = Site(nodes=nodes, tensors=tensors, why="parts of unlike ranges share an output", data=later)
    return MatchResult(sites=(site,), refusals=tuple(refusals))


def _alike(intervals: list[Interval]) -> bool:
    magnitudes = [max(abs(low), abs(high)) for low, high in intervals]
    if not all(math.isfinite(value) and value > 0 for value in magnitudes):
        return False
    return max(magnitudes) <= _ALIKE * min(magnitudes)


transform = Transform(
    name="split-output",
    summary="Gives every part of a concatenated output its own output and grid; the host joins them.",
    match=match,
    apply=apply_cut,
    ulps=0.0,
)

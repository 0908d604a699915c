"""Clamps huge stored values that reach only saturating ops, to the smallest bound that leaves their results unchanged.

Detectors fill the anchors of invalid positions with 1e30 or 3.4e38, to be squashed by a Sigmoid; on an integer grid
such a value leaves one step for everything else. Masks before a Softmax are mask-constant's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import ROLES, Trait, data_outputs, is_standard, ops
from deploykit.model.ranges import ANYTHING, Interval, clip_bounds
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform
from deploykit.rewrites.smaller_constants import shrink_constants

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_HUGE = 1e3
"""Stored values beyond this are looked at: no ordinary weight or anchor is that large."""

_UNKNOWN_MARGIN = 18.0
"""Added for a summand whose range nothing tells; the proof on data decides whether it was enough."""

_MOVING = ops(Trait.REARRANGES) | {"TopK", "Concat", "Where", "Add"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """Where a constant goes: tensors it passes, summands it meets, and the saturation points of its last readers."""

    path: tuple[str, ...]
    summands: tuple[str, ...]
    low: float
    high: float


def match(model: ModelProto) -> MatchResult:
    """Every stored float tensor with values beyond 1e3, or why it cannot be clamped."""
    graph = view_of(model)
    sites: list[Site] = []
    refusals: list[Refusal] = []
    for name in _huge(graph):
        try:
            flow = _follow(graph, name)
        except NoMatchError as end:
            refusals.append(Refusal(nodes=(end.node,), reason=f"{name}: {end.reason}"))
            continue
        nodes = tuple(label(node) for node in graph.readers(name))
        why = f"its values beyond [{-flow.low:g}, {flow.high:g}] only saturate what they reach"
        sites.append(Site(nodes=nodes, tensors=(name, *flow.path), why=why, data=(name, flow)))
    reason = "" if sites else "no stored value beyond 1e3 reaches only saturating ops"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _huge(graph: GraphCopy) -> Iterator[str]:
    for name, tensor in graph.stored.items():
        # What a Conv or MatMul reads is no candidate and may be large: it is not even looked at.
        if tensor.data_type == tensor.FLOAT and any(n.op_type not in ROLES for n in graph.readers(name)):
            value = graph.array(name)
            if value is not None and value.size and float(np.abs(value).max()) > _HUGE:
                yield name


def _follow(graph: GraphCopy, start: str) -> _Flow:
    """Walk forward to the saturating readers; raises NoMatchError at anything else."""
    path: dict[str, None] = {}
    summands: dict[str, None] = {}
    low, high = 0.0, 0.0
    todo = [start]
    while todo:
        name = todo.pop()
        if name in graph.outputs:
            raise NoMatchError(f"{name} is an output of the model", node=name)
        for node in graph.readers(name):
            point = _saturation(graph, node, name)
            if point is not None:
                low, high = max(low, point[0]), max(high, point[1])
                continue
            for made in _pass(graph, node, name, summands):
                if made not in path:
                    path[made] = None
                    todo.append(made)
    return _Flow(path=tuple(path), summands=tuple(summands), low=low, high=high)


def _pass(graph: GraphCopy, node: NodeProto, name: str, summands: dict[str, None]) -> Iterator[str]:
    """The outputs that carry the constant on; notes what it is added to."""
    problem = _problem(graph, node, name)
    if problem:
        raise NoMatchError(problem, node=label(node))
    if node.op_type == "Add":
        summands.update((other, None) for other in node.input if other != name)
    yield from data_outputs(node, node.output)


def _problem(graph: GraphCopy, node: NodeProto, name: str) -> str:
    if node.op_type == "Softmax":
        return "it reaches a Softmax, which mask-constant looks after"
    if node.op_type not in _MOVING or not is_standard(node):
        return f"it reaches {node.op_type}, which neither saturates nor only moves values"
    if node.op_type == "Where" and node.input[0] == name:
        return "it is the condition of a Where"
    if node.op_type == "Add" and list(node.input).count(name) > 1:
        return "it is added to itself"
    if node.op_type == "TopK" and (graph.readers(node.output[1]) or node.output[1] in graph.outputs):
        return "TopK's indices are used: among clamped values the order may change"
    return ""


def _saturation(graph: GraphCopy, node: NodeProto, name: str) -> Interval | None:
    """How far below and above zero the op's result no longer changes in float32, or None when it never stops.

    Sigmoid rounds to 1 from 17.4 on and to 0 below -104; ONNX Runtime's own kernel stops moving at +-18. Tanh rounds
    to +-1 from 9.1 on.
    """
    if node.input[0] != name or not is_standard(node):
        return None
    if node.op_type == "Sigmoid":
        return 104.0, 18.0
    if node.op_type == "Tanh":
        return 9.1, 9.1
    if node.op_type == "Clip":
        floor, ceiling = clip_bounds(graph, node)
        return (max(-floor, 0.0), max(ceiling, 0.0)) if math.isfinite(floor) and math.isfinite(ceiling) else None
    if node.op_type == "HardSigmoid":
        alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
        return (max(beta / alpha, 0.0), max((1 - beta) / alpha, 0.0)) if alpha > 0 else None
    return None


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Clamp every site; bounds of what the constants reach are proven from the encodings where these exist."""
    return shrink_constants(
        model, encodings, matched, lambda graph, site, before: _clamp(graph, site.data[0], site.data[1], before)
    )


def _clamp(graph: GraphCopy, name: str, flow: _Flow, bounds: Mapping[str, Interval]) -> str:
    """A clamped value plus its summands must still lie beyond the saturation point."""
    below = sum(_reach(bounds.get(other, ANYTHING)[1]) for other in flow.summands)
    above = sum(_reach(-bounds.get(other, ANYTHING)[0]) for other in flow.summands)
    value: Any = graph.array(name)
    clamped = np.clip(value, np.float32(-(flow.low + below)), np.float32(flow.high + above)).astype(np.float32)
    graph.restore(name, clamped)
    return f"{name}: values in [{value.min():g}, {value.max():g}] are now in [{clamped.min():g}, {clamped.max():g}]"


def _reach(end: float) -> float:
    """How far a summand may pull a clamped value back towards zero."""
    return max(end, 0.0) if math.isfinite(end) else _UNKNOWN_MARGIN


transform = Transform(
    name="saturating-constant",
    summary="Clamps stored values of 1e30 and the like that only saturate a Sigmoid, Tanh, Clip or HardSigmoid.",
    match=match,
    apply=apply,
    ulps=4.0,
)

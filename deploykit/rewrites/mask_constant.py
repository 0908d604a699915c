"""Bounds attention masks of -inf or -3.4e38: still exact zeros after Softmax, and room for the scores.

A row that is masked wholly has a result that depends on the mask's magnitude; such masks are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.ranges import ANYTHING, Interval
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform
from deploykit.rewrites.smaller_constants import shrink_constants

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_MASKED = -1e3
"""What lies below is a mask: no attention score does."""

_ZERO_AFTER = 104.0
"""exp of less than minus this is zero in float32."""

_UNKNOWN_SPREAD = 100.0
"""Assumed distance of scores whose range nothing tells; the proof on data decides whether it was enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mask:
    """A mask constant, the tensors it passes up to the Softmax, what it is added to, what it stands beside."""

    name: str
    path: tuple[str, ...]
    summands: tuple[str, ...]
    beside: tuple[str, ...]


def match(model: ModelProto) -> MatchResult:
    """Every stored tensor with values below -1e3 that is added to, or selected against, the input of a Softmax."""
    graph = view_of(model)
    shapes: dict[str, tuple[int | None, ...]] | None = None
    sites, refusals = [], []
    for name in _candidates(graph):
        shapes = graph.shapes() if shapes is None else shapes
        try:
            mask = _follow(graph, name, shapes)
        except NoMatchError as end:
            refusals.append(Refusal(nodes=(end.node,), reason=f"{name}: {end.reason}"))
            continue
        nodes = tuple(label(node) for node in graph.readers(name))
        why = "it only makes zeros behind a Softmax"
        sites.append(Site(nodes=nodes, tensors=(name, *mask.path), why=why, data=mask))
    reason = "" if sites else "no stored value below -1e3 is a Softmax mask"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _candidates(graph: GraphCopy) -> Iterator[str]:
    for name, tensor in graph.stored.items():
        readers = graph.readers(name)
        if tensor.data_type == tensor.FLOAT and any(n.op_type in ("Add", "Where", "Identity") for n in readers):
            value = graph.array(name)
            if value is not None and value.size and float(value.min()) < _MASKED and float(value.max()) < -_MASKED:
                yield name


def _follow(graph: GraphCopy, start: str, shapes: Mapping[str, tuple[int | None, ...]]) -> _Mask:
    path: dict[str, None] = {}
    summands: dict[str, None] = {}
    beside: dict[str, None] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        if name in graph.outputs:
            raise NoMatchError(f"{name} is an output of the model", node=name)
        for node in graph.readers(name):
            if node.op_type == "Softmax":
                _check_axis(node, shapes)
                continue
            _check_node(graph, node, name, start)
            target = summands if node.op_type == "Add" else beside
            target.update((other, None) for other in node.input[node.op_type == "Where" :] if other != name)
            fresh = [out for out in node.output if out not in path]
            path.update((out, None) for out in fresh)
            todo += fresh
    return _Mask(name=start, path=tuple(path), summands=tuple(summands), beside=tuple(beside))


def _check_axis(node: NodeProto, shapes: Mapping[str, tuple[int | None, ...]]) -> None:
    axis, rank = attribute(node, "axis", -1), len(shapes.get(node.input[0], ()))
    if axis != -1 and axis != rank - 1:
        raise NoMatchError(f"the Softmax works along axis {axis}, not the last", node=label(node))


def _check_node(graph: GraphCopy, node: NodeProto, name: str, start: str) -> None:
    if node.op_type not in ("Add", "Where", "Identity") or (node.op_type == "Where" and node.input[0] == name):
        raise NoMatchError(f"it reaches {node.op_type}: only Add, Where and Softmax may read a mask", node=label(node))
    value: Any = graph.array(start)
    if node.op_type == "Add" and (name != start or list(node.input).count(name) > 1):
        return
    if node.op_type == "Add" and bool(_wholly_masked(value).any()):
        raise NoMatchError("a row is masked wholly: its result depends on the mask's magnitude", node=label(node))


def _wholly_masked(value: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    rows = value.reshape(-1, value.shape[-1]) if value.ndim else value.reshape(1, 1)
    return np.asarray((rows < _MASKED).all(axis=1))


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Raise every masked value to the largest one that still gives zero, and say what the sums can then hold."""
    return shrink_constants(model, encodings, matched, lambda graph, site, before: _bound(graph, site.data, before))


def _bound(graph: GraphCopy, mask: _Mask, bounds: Mapping[str, Interval]) -> str:
    value: Any = graph.array(mask.name)
    spread = sum(_spread(bounds.get(name, ANYTHING)) for name in mask.summands)
    open_values = value[value >= _MASKED]
    lowest = min([float(open_values.min()) if open_values.size else 0.0, *(_low(bounds, n) for n in mask.beside)])
    bound = np.float32(lowest - _ZERO_AFTER - spread)
    graph.restore(mask.name, np.maximum(value, bound).astype(np.float32))
    return f"{mask.name}: {float(value.min()):g} is now {float(bound):g}"


def _spread(interval: Interval) -> float:
    width = interval[1] - interval[0]
    return width if math.isfinite(width) else _UNKNOWN_SPREAD


def _low(bounds: Mapping[str, Interval], name: str) -> float:
    low = bounds.get(name, ANYTHING)[0]
    return low if math.isfinite(low) else -_UNKNOWN_SPREAD


transform = Transform(
    name="mask-constant",
    summary="Bounds attention masks of -inf and the like so that Softmax still gives exact zeros.",
    match=match,
    apply=apply,
    ulps=4.0,
)

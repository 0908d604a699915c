"""Bounds of every tensor by interval arithmetic over one graph, in one pass; nothing is run.

An interval holds every value the tensor can take for any input, in exact arithmetic. Unknown is (-inf, inf).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from deploykit.graph.graph_copy import GraphCopy, attribute

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["ANYTHING", "Interval", "clip_bounds", "graph_bounds"]

Interval: TypeAlias = tuple[float, float]
ANYTHING: Interval = (-math.inf, math.inf)

_COPIES = frozenset(
    {"DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool"}
    | {"Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze", "ReduceMax"}
    | {"ReduceMin", "ReduceMean", "GlobalAveragePool", "GlobalMaxPool"}
)


def graph_bounds(graph: GraphCopy, known: Mapping[str, Interval] | None = None) -> dict[str, Interval]:
    """The bounds of all tensors; ``known`` narrows some of them (for instance by their encodings)."""
    bounds: dict[str, Interval] = {}
    narrow = known or {}
    for name in graph.stored:
        # Weights of linear ops tell nothing here and may be large: they are not read.
        if any(node.op_type in _RULES for node in graph.readers(name)):
            bounds[name] = _stored(graph, name)
    for name in graph.inputs:
        bounds[name] = narrow.get(name, ANYTHING)
    for node in graph.nodes:
        if node.op_type == "Constant":
            continue
        made = _RULES.get(node.op_type, _nothing)(graph, node, bounds)
        for name in node.output:
            bounds[name] = _both(made, narrow.get(name, ANYTHING))
    return bounds


def _both(a: Interval, b: Interval) -> Interval:
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def _stored(graph: GraphCopy, name: str) -> Interval:
    tensor = graph.stored[name]
    if tensor.data_type not in (tensor.FLOAT, tensor.FLOAT16, tensor.DOUBLE):
        return _integers(graph, name)
    value = graph.array(name)
    if value is None or not value.size or bool(np.isnan(value).any()):
        return ANYTHING
    return float(value.min()), float(value.max())


def _integers(graph: GraphCopy, name: str) -> Interval:
    value = graph.array(name)
    if value is None or not value.size or value.dtype.kind not in "iub":
        return ANYTHING
    return float(value.min()), float(value.max())


_Rule: TypeAlias = Callable[[GraphCopy, "NodeProto", Mapping[str, Interval]], Interval]


def _nothing(_graph: GraphCopy, _node: NodeProto, _bounds: Mapping[str, Interval]) -> Interval:
    return ANYTHING


def _of(node: NodeProto, bounds: Mapping[str, Interval], index: int) -> Interval:
    return bounds.get(node.input[index], ANYTHING) if index < len(node.input) else ANYTHING


def _always(low: float, high: float) -> _Rule:
    return lambda _graph, _node, _bounds: (low, high)


def _same(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    return _of(node, bounds, 0)


def _rising(function: Callable[[float], float]) -> _Rule:
    """A rule for a function that never falls."""
    return lambda _graph, node, bounds: (function(_of(node, bounds, 0)[0]), function(_of(node, bounds, 0)[1]))


def _union(intervals: list[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _concat(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    return _union([bounds.get(name, ANYTHING) for name in node.input])


def _where(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    return _union([_of(node, bounds, 1), _of(node, bounds, 2)])


def _pad(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    return _union([_of(node, bounds, 0), _of(node, bounds, 2) if len(node.input) > 2 else (0.0, 0.0)])


def _add(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    a, b = _of(node, bounds, 0), _of(node, bounds, 1)
    return _number(a[0] + b[0], -math.inf), _number(a[1] + b[1], math.inf)


def _sub(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    a, b = _of(node, bounds, 0), _of(node, bounds, 1)
    return _number(a[0] - b[1], -math.inf), _number(a[1] - b[0], math.inf)


def _number(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _mul(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    a, b = _of(node, bounds, 0), _of(node, bounds, 1)
    if node.input[0] == node.input[1]:
        largest = max(a[0] * a[0], a[1] * a[1])
        return 0.0, largest
    products = [x * y for x in a for y in b]
    return ANYTHING if any(math.isnan(p) for p in products) else (min(products), max(products))


def _div(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    a, b = _of(node, bounds, 0), _of(node, bounds, 1)
    if b[0] <= 0 <= b[1] or math.isinf(b[0]) or math.isinf(b[1]):
        return (0.0, math.inf) if a[0] >= 0 and b[0] >= 0 else ANYTHING
    quotients = [x / y for x in a for y in b]
    return min(quotients), max(quotients)


def _clip(graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    low, high = _of(node, bounds, 0)
    floor, ceiling = clip_bounds(graph, node)
    return min(max(low, floor), ceiling), min(max(high, floor), ceiling)


def clip_bounds(graph: GraphCopy, node: NodeProto) -> Interval:
    """The two bounds of a Clip node, infinite where absent or unknown."""
    if len(node.input) == 1 and graph.opset < 11:
        return float(attribute(node, "min", -math.inf)), float(attribute(node, "max", math.inf))
    low = graph.scalar(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    high = graph.scalar(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def _max(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    intervals = [bounds.get(name, ANYTHING) for name in node.input]
    return max(low for low, _ in intervals), max(high for _, high in intervals)


def _min(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    intervals = [bounds.get(name, ANYTHING) for name in node.input]
    return min(low for low, _ in intervals), min(high for _, high in intervals)


def _neg(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    low, high = _of(node, bounds, 0)
    return -high, -low


def _abs(_graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    low, high = _of(node, bounds, 0)
    return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _cast(graph: GraphCopy, node: NodeProto, bounds: Mapping[str, Interval]) -> Interval:
    maker = graph.maker(node.input[0])
    if maker is not None and maker.op_type in _LOGICAL:
        return 0.0, 1.0
    return _of(node, bounds, 0)


_LOGICAL = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or"}
)


def _relu(value: float) -> float:
    return max(value, 0.0)


def _exp(value: float) -> float:
    return math.inf if value > 709 else math.exp(value)


def _log(value: float) -> float:
    if value <= 0:
        return -math.inf
    return math.inf if math.isinf(value) else math.log(value)


def _sigmoid(value: float) -> float:
    return 0.0 if value < -700 else 1.0 / (1.0 + math.exp(-value))


def _sqrt(value: float) -> float:
    return math.sqrt(value) if value > 0 else 0.0


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_COPIES, _same),
    "Abs": _abs,
    "Add": _add,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Cos": _always(-1.0, 1.0),
    "Div": _div,
    "Erf": _rising(math.erf),
    "Exp": _rising(_exp),
    "HardSigmoid": _always(0.0, 1.0),
    "Log": _rising(_log),
    "Max": _max,
    "Min": _min,
    "Mul": _mul,
    "Neg": _neg,
    "Pad": _pad,
    "Relu": _rising(_relu),
    "Sigmoid": _rising(_sigmoid),
    "Sin": _always(-1.0, 1.0),
    "Softmax": _always(0.0, 1.0),
    "Sqrt": _rising(_sqrt),
    "Sub": _sub,
    "Tanh": _rising(math.tanh),
    "Where": _where,
}

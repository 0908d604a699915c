"""Functions of one tensor that a graph writes out in scalar steps: which nodes they are, and their values at points.

It recognizes no function: whether values are those of a GELU, say, is judged by the rewrite that asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute
from deploykit.model.operators import is_standard

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["Floats", "ScalarFunction", "functions_through"]

Floats = npt.NDArray[np.float64]

_MOST_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarFunction:
    """What a graph computes element by element from ``source`` and stored scalars; ``output`` is the result.

    ``nodes`` are in graph order; nothing outside of them reads what they make, the result apart.
    """

    source: str
    output: str
    nodes: tuple[NodeProto, ...]

    @property
    def inner(self) -> tuple[str, ...]:
        """The tensors between source and result."""
        return tuple(node.output[0] for node in self.nodes[:-1])

    def values(self, graph: GraphCopy, points: Floats) -> Floats:
        """The results at ``points`` in float64; NaN where there is none."""
        known: dict[str, Floats] = {self.source: points}
        with np.errstate(all="ignore"):
            for node in self.nodes:
                given = [_operand(graph, known, name) for name in node.input]
                known[node.output[0]] = np.asarray(_STEPS[node.op_type](node, *given), np.float64)
        return known[self.output]


def functions_through(graph: GraphCopy, node: NodeProto) -> Iterator[ScalarFunction]:
    """Every function that ``node`` takes part in, results near the node first, then sources near it."""
    sources = _before(graph, node)
    for output in _behind(graph, node):
        for source in sources:
            nodes = _between(graph, source, output)
            if nodes is not None and any(found is node for found in nodes) and _is_closed(graph, nodes):
                yield ScalarFunction(source=source, output=output, nodes=nodes)


def _before(graph: GraphCopy, node: NodeProto) -> list[str]:
    """The tensors that a node's operand is made of in scalar steps, the nearest first."""
    found = [name for name in node.input if name and graph.scalar(name) is None]
    for name in found:
        maker = _step(graph, name)
        if maker is not None and len(found) <= _MOST_STEPS:
            found += [used for used in maker.input if used and used not in found and graph.scalar(used) is None]
    return found


def _behind(graph: GraphCopy, node: NodeProto) -> Iterator[str]:
    """The results that a node has a part in, as long as one step alone reads each."""
    reader: NodeProto | None = node
    for _ in range(_MOST_STEPS):
        if reader is None or not _is_step(reader):
            return
        yield reader.output[0]
        reader = graph.only_reader(reader.output[0])


def _between(graph: GraphCopy, source: str, output: str) -> tuple[NodeProto, ...] | None:
    """The steps that make ``output`` of ``source`` and scalars; None where anything else takes part."""
    found: dict[int, NodeProto] = {}
    todo = [output]
    while todo:
        name = todo.pop()
        if name == source or not name or graph.scalar(name) is not None:
            continue
        node = _step(graph, name)
        if node is None or len(found) > _MOST_STEPS:
            return None
        if id(node) not in found:
            found[id(node)] = node
            todo += node.input
    return tuple(node for node in graph.nodes if id(node) in found) if found else None


def _is_closed(graph: GraphCopy, nodes: tuple[NodeProto, ...]) -> bool:
    own = {id(node) for node in nodes}
    inner = [node.output[0] for node in nodes[:-1]]
    return all(name not in graph.outputs and all(id(n) in own for n in graph.readers(name)) for name in inner)


def _step(graph: GraphCopy, name: str) -> NodeProto | None:
    node = graph.maker(name)
    return node if node is not None and _is_step(node) else None


def _is_step(node: NodeProto) -> bool:
    return is_standard(node) and node.op_type in _STEPS


def _operand(graph: GraphCopy, known: Mapping[str, Floats], name: str) -> Floats | None:
    if not name:
        return None
    return known[name] if name in known else np.asarray(graph.scalar(name))


def _clip(node: NodeProto, x: Floats, low: Floats | None = None, high: Floats | None = None) -> Floats:
    least = attribute(node, "min", -math.inf) if low is None else low
    most = attribute(node, "max", math.inf) if high is None else high
    return np.asarray(np.minimum(np.maximum(x, least), most))


def _hard_sigmoid(node: NodeProto, x: Floats) -> Floats:
    slope, offset = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return np.asarray(np.clip(slope * x + offset, 0.0, 1.0), np.float64)


_erf = np.vectorize(math.erf, otypes=[np.float64])

_STEPS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "Clip": _clip,
    "Div": lambda _, a, b: a / b,
    "Erf": lambda _, x: _erf(x),
    "HardSigmoid": _hard_sigmoid,
    "Mul": lambda _, a, b: a * b,
    "Neg": lambda _, x: -x,
    "Pow": lambda _, a, b: a**b,
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Sigmoid": lambda _, x: 1.0 / (1.0 + np.exp(-x)),
    "Sub": lambda _, a, b: a - b,
    "Tanh": lambda _, x: np.tanh(x),
}
"""Operators that work element by element, by their ONNX definitions."""

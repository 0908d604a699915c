"""Bounds of every tensor by interval arithmetic over one graph, in one pass; nothing is run.

An interval holds every value the tensor can take for any input, in exact arithmetic: float32 rounds beyond it by a few
units in the last place, which bounds behind operators that jump take into account. NaN and what comes of it are not
spoken about. Unknown is (-inf, inf).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deploykit.model.files.tensors import element_count
from deploykit.model.graph_copy import GraphCopy
from deploykit.model.ops import is_standard
from deploykit.model.ranges.interval_cases import ANYTHING, Case, Interval, both
from deploykit.model.ranges.interval_functions import FUNCTIONS, clip_bounds
from deploykit.model.ranges.interval_rounding import jumps, outwards, rounded
from deploykit.model.ranges.interval_selections import SELECTIONS
from deploykit.model.ranges.interval_sums import SUMS
from deploykit.model.ranges.joint_facts import JointFacts
from deploykit.model.shape_inference import Shape, infer

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["ANYTHING", "Arithmetic", "Interval", "LateBounds", "clip_bounds", "graph_bounds"]

_WORTH_READING = 1 << 22


def graph_bounds(
    graph: GraphCopy,
    known: Mapping[str, Interval] | None = None,
    *,
    types: Mapping[str, tuple[str, Shape]] | None = None,
) -> dict[str, Interval]:
    """The bounds of all tensors; ``known`` narrows some of them (for instance by their encodings).

    ``types`` are (dtype, shape) by name, as shape inference gives them; without them they are inferred here.
    """
    narrow = known or {}
    arithmetic = Arithmetic(graph, types)
    bounds = _Bounds(graph, {name: narrow.get(name, ANYTHING) for name in graph.inputs})
    jumping = {id(node) for node in graph.nodes if jumps(node, arithmetic.types)}
    computed = _Bounds(graph, {name: outwards(found) for name, found in bounds.items()})
    for node in graph.nodes:
        if node.op_type == "Constant":
            continue
        found = list(arithmetic.outputs(node, bounds))
        if jumping:
            wide = list(arithmetic.outputs(node, computed, rounding=True))
            computed.update(_narrowed(node, wide, narrow))
            found = wide if id(node) in jumping else found
        bounds.update(_narrowed(node, found, narrow))
    return dict(bounds)


def _narrowed(node: NodeProto, found: Iterable[Interval], narrow: Mapping[str, Interval]) -> dict[str, Interval]:
    made = zip(node.output, found, strict=False)
    return {name: both(bound, narrow.get(name, ANYTHING)) for name, bound in made if name}


class LateBounds(Mapping[str, Interval]):
    """``graph_bounds`` of a graph, computed when the first bound is asked for: that reads every weight."""

    def __init__(self, graph: GraphCopy, known: Mapping[str, Interval] | None = None) -> None:
        self._graph, self._known = graph, known

    @cached_property
    def _bounds(self) -> Mapping[str, Interval]:
        return graph_bounds(self._graph, self._known)

    def __getitem__(self, name: str) -> Interval:
        return self._bounds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bounds)

    def __len__(self) -> int:
        return len(self._bounds)


class Arithmetic:
    """The rules of one graph, node by node."""

    def __init__(self, graph: GraphCopy, types: Mapping[str, tuple[str, Shape]] | None = None) -> None:
        self.graph = graph
        self.types = infer(graph.model).types if types is None else types
        self._joint = JointFacts(graph)

    def stored(self, name: str) -> Interval:
        """The least and largest stored value; anything where they are too many to read."""
        return _stored(self.graph, name)

    def outputs(self, node: NodeProto, bounds: Mapping[str, Interval], *, rounding: bool = False) -> Iterator[Interval]:
        """The bounds of each output, from those of the operands; with ``rounding`` of what floats make of them."""
        rule = _RULES.get(node.op_type)
        if rule is None or not is_standard(node) or not node.input:
            yield from (ANYTHING for _ in node.output)
            return
        case = Case(self.graph, node, bounds, self.types)
        whole = rule(case)
        first = self._joint.narrow(case, whole)
        if rounding:
            first = rounded(case, first, rule, narrowed=first != whole)
        for index, _ in enumerate(node.output):
            yield first if index == 0 else _further(case, index, first)


_RULES = {**FUNCTIONS, **SELECTIONS, **SUMS}


def _further(case: Case, index: int, first: Interval) -> Interval:
    """Outputs behind the first: parts of the same data, indices, masks, states."""
    match case.node.op_type:
        case "Split":
            return first
        case "TopK" | "MaxPool" | "Unique":
            return 0.0, float("inf")
        case "Dropout":
            return 0.0, 1.0
        case "GRU" | "LSTM" | "RNN" if index == 1:
            return first
        case _:
            return ANYTHING


class _Bounds(dict[str, Interval]):
    """Bounds by name; those of stored tensors are read when somebody asks for them."""

    def __init__(self, graph: GraphCopy, known: Mapping[str, Interval]) -> None:
        super().__init__(known)
        self._graph = graph

    def get(self, name: str, default: Interval = ANYTHING) -> Interval:  # type: ignore[override]
        """The bounds of a tensor, ``default`` where it has none."""
        if name not in self and name in self._graph.stored:
            self[name] = _stored(self._graph, name)
        return super().get(name, default)


def _stored(graph: GraphCopy, name: str) -> Interval:
    if element_count(graph.stored[name], name) > _WORTH_READING:
        return ANYTHING
    value = graph.array(name)
    if value is None or not value.size or value.dtype.kind not in "fiub":
        return ANYTHING
    low, high = float(value.min()), float(value.max())
    return ANYTHING if np.isnan(low) else (low, high)

"""Bounds of every tensor by interval arithmetic over one graph, in one pass; nothing is run.

An interval holds every value the tensor can take for any input, in exact arithmetic. Operators that jump (Ceil, Round,
a Cast to integers) may make one more or less of what floats round, so their bounds are a step wider. NaN and what comes
of it are not covered. Unknown is (-inf, inf).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deploykit.model.graph import GraphCopy
from deploykit.model.joint_ranges import JointFacts
from deploykit.model.operators import RANGES, Trait, has, is_standard
from deploykit.model.range_functions import ANYTHING, FUNCTIONS, SELECTIONS, SUMS, Case, Interval, both, clip_bounds
from deploykit.model.values import element_count

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = [
    "ANYTHING",
    "Arithmetic",
    "Interval",
    "LateBounds",
    "clip_bounds",
    "graph_bounds",
]

_EXACT = (Trait.REARRANGES, Trait.SELECTS, Trait.JOINS, Trait.CLAMPS, Trait.LOGICAL)
# What they make of two values that differ by a rounding may differ by one.
_JUMPS = frozenset({"Ceil", "Floor", "Round", "Sign"})


def _a_step_wider(found: Interval) -> Interval:
    """Around what a jump makes of floats: one more at each end, and no other sign, which roundings keep."""
    low, high = (max(1.0, abs(end) * 2.0**-10) if math.isfinite(end) else 0.0 for end in found)  # float16 has 10 bits
    widest = found[0] - low, found[1] + high
    return (max(widest[0], 0.0) if found[0] >= 0 else widest[0]), (min(widest[1], 0.0) if found[1] <= 0 else widest[1])


_WORTH_READING = 1 << 22


def graph_bounds(graph: GraphCopy, known: Mapping[str, Interval] | None = None) -> dict[str, Interval]:
    """The bounds of all tensors; ``known`` narrows some of them (for instance by their encodings)."""
    narrow = known or {}
    arithmetic = Arithmetic(graph)
    bounds = _Bounds(graph, {name: narrow.get(name, ANYTHING) for name in graph.inputs})
    for node in graph.nodes:
        if node.op_type != "Constant":
            made = zip(node.output, list(arithmetic.outputs(node, bounds)), strict=False)
            bounds.update({name: both(bound, narrow.get(name, ANYTHING)) for name, bound in made if name})
    return dict(bounds)


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

    def __init__(self, graph: GraphCopy) -> None:
        self.graph = graph
        self._joint = JointFacts(graph)

    def stored(self, name: str) -> Interval:
        """The least and largest stored value; anything where they are too many to read."""
        return _stored(self.graph, name)

    def outputs(self, node: NodeProto, bounds: Mapping[str, Interval]) -> Iterator[Interval]:
        """The bounds of each output, from those of the operands."""
        rule = _RULES.get(node.op_type)
        if rule is None or not is_standard(node) or not node.input:
            yield from (ANYTHING for _ in node.output)
            return
        case = Case(self.graph, node, bounds)
        first = self._joint.narrow(case, rule(case))
        # Two values that differ by a rounding may become two that differ by one, where something was rounded before.
        if node.op_type == "Cast":
            kinds = [self.graph.dtype(name) for name in (*node.input[:1], *node.output[:1])]
        else:
            kinds = ["", "int" if node.op_type in _JUMPS else ""]
        maker = self.graph.maker(node.input[0]) if "int" not in kinds[0] and "int" in kinds[-1] else None
        if maker is not None and maker.op_type not in RANGES and not has(maker, *_EXACT):
            low, high = RANGES.get(node.op_type, ANYTHING)
            first = max(low, _a_step_wider(first)[0]), min(high, _a_step_wider(first)[1])
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

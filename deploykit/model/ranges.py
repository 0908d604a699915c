"""Bounds of every tensor by interval arithmetic over one graph, in one pass; nothing is run.

An interval holds every value the tensor can take for any input, in exact arithmetic. Operators that jump (Ceil, Round,
a Cast to integers) need what floats make of their operand, so their bounds come from operands rounded outwards. NaN and
what comes of it are not covered. Unknown is (-inf, inf).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deploykit.model.graph import GraphCopy
from deploykit.model.joint_ranges import JointFacts
from deploykit.model.operators import RANGES, Trait, is_standard, ops
from deploykit.model.range_functions import ANYTHING, FUNCTIONS, SELECTIONS, Case, Interval, Rule, both, clip_bounds
from deploykit.model.range_sums import SUMS
from deploykit.model.shape_inference import Shape, infer
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
    "jumps",
    "outwards",
    "rounded",
]

_JUMPS = frozenset({"Ceil", "Floor", "Round", "Sign"})
"""What they make of two values that differ by a rounding may differ by one."""

_EXACT = ops(Trait.REARRANGES, Trait.SELECTS, Trait.JOINS, Trait.CLAMPS, Trait.LOGICAL) | {
    *("Abs", "ArgMax", "ArgMin", "Ceil", "Floor", "Hardmax", "MaxRoiPool", "MaxUnpool", "Neg", "OneHot", "Pad"),
    *("Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Trilu"),
}
"""What they make is one of the values that they are given, or a small integer."""

_ROUNDED_ONCE = frozenset({"Add", "Cast", "Div", "Mul", "Reciprocal", "Sqrt", "Sub"})
"""What they make is the float next to the exact result (IEEE 754): none lies beyond the float next to an end."""

_STEPS: dict[str, float] = {"float16": 2.0**-5, "bfloat16": 2.0**-3}
_STEP = 2.0**-13
"""Of the largest summand: some 2,000 roundings of float32, or what an approximation of exp or erf is off by."""


def jumps(node: NodeProto, types: Mapping[str, tuple[str, Shape]]) -> bool:
    """True where two values that differ by a rounding may become two that differ by one."""
    if node.op_type != "Cast":
        return node.op_type in _JUMPS
    kinds = [types.get(name, ("", None))[0] for name in (*node.input[:1], *node.output[:1])]
    return "int" not in kinds[0] and "int" in kinds[-1]


def outwards(found: Interval) -> Interval:
    """The interval with its ends at the float32 next to them, where that lies outside."""
    with np.errstate(over="ignore"):
        low, high = float(np.float32(found[0])), float(np.float32(found[1]))
    return min(found[0], low), max(found[1], high)


def rounded(case: Case, found: Interval, rule: Rule, *, narrowed: bool = False) -> Interval:
    """Around all that floats make of operands within their bounds, where exact arithmetic stays within ``found``.

    ``narrowed`` says that ``found`` is less than what the rule gives: it follows from several nodes, each of which
    rounds.
    """
    kind = case.types.get(case.node.output[0], ("float", None))[0]
    if case.node.op_type in _EXACT or "int" in kind or kind == "bool":
        return found
    if case.node.op_type in _ROUNDED_ONCE and kind not in _STEPS and not narrowed:
        return outwards(found)
    most = _largest([found, *_summands(case, rule)]) * _STEPS.get(kind, _STEP)
    return both((found[0] - most, found[1] + most), RANGES.get(case.node.op_type, ANYTHING))


def _summands(case: Case, rule: Rule) -> list[Interval]:
    """What bounds the sum of the magnitudes of all that is added up, which may cancel in the result."""
    if case.node.op_type not in SUMS:
        return case.operands if case.node.op_type in ("Mean", "Sum") else []
    sizes = {name: _largest([case.bounds.get(name, ANYTHING)]) for name in case.node.input if name}
    both_signs = {name: (-size, size) for name, size in sizes.items()}
    return [rule(Case(case.graph, case.node, both_signs, case.types))]


def _largest(intervals: list[Interval]) -> float:
    return max((abs(end) for found in intervals for end in found if math.isfinite(end)), default=0.0)


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

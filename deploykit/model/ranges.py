"""Bounds of every tensor by interval arithmetic over one graph, in one pass; nothing is run.

An interval holds every value the tensor can take for any input, in exact arithmetic. Operators that jump (Ceil, Round,
a Cast to integers) may make one more or less of what floats round, so their bounds are a step wider. NaN and results
computed from NaN are not covered. Unknown is (-inf, inf).

Interval arithmetic forgets that operands depend on each other; ``Arithmetic`` remembers it: x / norm(x), softmax rows
that add up to 1. Two tensors count as the same where they are made by the same operators from the same
tensors, whatever their names are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np
from onnx import NodeProto

from deploykit.findings.records import Interval
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, bodies
from deploykit.model.operators import FLOATS, RANGES, Trait, has, is_standard
from deploykit.model.range_functions import (
    ANYTHING,
    FUNCTIONS,
    SELECTIONS,
    SUMS,
    Case,
    both,
    clip_bounds,
    numbers_in,
)
from deploykit.model.values import dtype_name

__all__ = [
    "ANYTHING",
    "Arithmetic",
    "clip_bounds",
    "graph_bounds",
    "lazy_bounds",
    "stored_range",
]


# How many operators a fact is followed through; what real exports write is shorter.
_DEEPEST = 12

_UNCHANGED = frozenset({"Cast", "Dropout", "Identity"})
_SPREAD = _UNCHANGED | {"Expand"}


class Arithmetic:
    """The interval rules of one graph, and which of its tensors hold the same values. Asked node by node, in order."""

    def __init__(self, graph: GraphCopy) -> None:
        self.graph = graph
        # For each tensor that holds the same values as an earlier one: the first such tensor.
        self._first: dict[str, str] = {}
        seen = dict[tuple[object, ...], str]()
        for name, tensor in graph.stored.items():
            constant = graph.scalar(name) if math.prod(tensor.dims) == 1 else None
            if constant is not None:
                self._first[name] = seen.setdefault(("stored", tensor.data_type, tuple(tensor.dims), constant), name)
        for node in graph.nodes:
            if has(node, Trait.RANDOM) or any(bodies(node)):
                continue
            settings = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
            inputs = tuple(self._first.get(used, used) for used in node.input)
            for index, name in enumerate(node.output):
                if name and node.input:
                    earlier = seen.setdefault((node.domain, node.op_type, inputs, settings, index), name)
                    if node.op_type == "Identity":
                        earlier = inputs[0]
                    if earlier != name:
                        self._first[name] = earlier

    def outputs(self, node: NodeProto, bounds: Mapping[str, Interval]) -> Iterator[Interval]:
        """The bounds of each output, from those of the operands."""
        rule = _RULES.get(node.op_type)
        if rule is None or not is_standard(node) or not node.input:
            yield from (ANYTHING for _ in node.output)
            return
        case = Case(self.graph, node, bounds)
        first = self._narrowed(case, rule(case))
        # Inputs that differ by a rounding may give results that differ by one, where an operator before them rounds.
        if node.op_type == "Cast":
            kinds = [self.graph.dtype(name) for name in (*node.input[:1], *node.output[:1])]
        else:
            kinds = ["", "int" if node.op_type in _JUMPS else ""]
        maker = self.graph.maker(node.input[0]) if "int" not in kinds[0] and "int" in kinds[-1] else None
        if maker is not None and maker.op_type not in RANGES and not has(maker, *_EXACT):
            low, high = RANGES.get(node.op_type, ANYTHING)
            least, most = _a_step_wider(first, case.of(0))
            first = max(low, least), min(high, most)
        for index, _ in enumerate(node.output):
            yield first if index == 0 else _further(case, index, first)

    def _narrowed(self, case: Case, found: Interval) -> Interval:
        """The bounds of a node's first output, narrowed by how its operands depend on each other."""
        first, second = case.name(0), case.name(1)
        match case.node.op_type:
            case "Div":
                factor = self._dominates(case, second, first)
                return found if factor is None else both(found, (-1 / factor, 1 / factor))
            case "Mul":
                for one, other in ((first, second), (second, first)):
                    most = self._inverse(case, other, one)
                    if most is not None:
                        return both(found, (-most, most))
            case "MatMul":
                # Rows of weights that are not negative and add up to 1 stay inside what they weigh.
                node = self._behind(first, _UNCHANGED)
                if node is not None and node.op_type == "Softmax":
                    shape = self.graph.shape(node.input[0])
                    axis = int(attribute(node, "axis", -1 if self.graph.opset >= 13 else 1))
                    if shape is not None and axis in (-1, len(shape) - 1):
                        return both(found, case.of(1))
            case "Sub":
                # Nothing is larger than the largest of its row: so begins a Softmax that is written out.
                largest = self._maker(second, "ReduceMax")
                if largest is not None and attribute(largest, "keepdims", 1) and self._same(largest.input[0], first):
                    return found[0], min(found[1], 0.0)
        return found

    def _same(self, first: str, second: str) -> bool:
        """True where two tensors hold the same values."""
        return self._first.get(first, first) == self._first.get(second, second)

    def _maker(self, name: str, *op_types: str) -> NodeProto | None:
        """The node that makes a tensor as its first output, if it has inputs and is of one of the types; else None."""
        node = self.graph.maker(name, *op_types)
        return node if node is not None and node.output[0] == name and node.input else None

    def _behind(self, name: str, passed: frozenset[str]) -> NodeProto | None:
        """The node that makes a tensor, seen through the operators in ``passed``.

        None where there are too many of them.
        """
        node = self._maker(name)
        for _ in range(_DEEPEST):
            if node is None or node.op_type not in passed or not _keeps_values(node):
                return node
            node = self._maker(node.input[0])
        return None

    def _dominates(
        self, case: Case, name: str, of: str, *, square: bool = False, depth: int = _DEEPEST
    ) -> float | None:
        """A factor f > 0 with  name >= f * |of|  (``square``: f * of²) in every element; None where none is known."""
        node = self._maker(name)
        if node is None or not depth:
            return None

        def ask(inner: str, *, square: bool = square) -> float | None:
            return self._dominates(case, inner, of, square=square, depth=depth - 1)

        read, exponent = node.input[0], self.graph.scalar(node.input[-1]) if node.op_type == "Pow" else None
        same, keeps = self._same(read, of), attribute(node, "keepdims", 1)
        match node.op_type:
            case "Sqrt" if not square:
                squared = ask(read, square=True)
                return None if squared is None else math.sqrt(squared)
            case "ReduceL2" if not square and keeps and same:
                return 1.0
            case "ReduceSum" if not square and keeps and same:
                return 1.0 if case.bounds.get(of, (-1.0, 0.0))[0] >= 0 else None
            case "Mul" | "Pow" if square and (exponent == 2.0 or self._same(read, node.input[1])):
                return 1.0 if same else None
            case "ReduceSumSquare" if square and keeps and same:
                return 1.0
            case "ReduceSum" if square and keeps:
                return ask(read)
            case "ReduceMean" if square and keeps:
                inner, count = ask(read), Case(self.graph, node, case.bounds).reduced()
                return None if inner is None or not count else inner / count
            case _:
                return _passed_on(case, node, ask)

    def _inverse(self, case: Case, name: str, of: str) -> float | None:
        """The bound m with  |name * of| <= m, where ``name`` is one over a tensor that dominates ``of``.

        None if unknown.
        """
        node = self._behind(name, _SPREAD)
        if node is None:
            return None
        if node.op_type == "Pow" and self.graph.scalar(node.input[1]) == -0.5:
            squared = self._dominates(case, node.input[0], of, square=True)
            return None if squared is None else 1 / math.sqrt(squared)
        numerator = 1.0 if node.op_type == "Reciprocal" else None
        if node.op_type == "Div":
            numerator = self.graph.scalar(node.input[0])
        factor = None if numerator is None else self._dominates(case, node.input[-1], of)
        return None if numerator is None or factor is None else abs(numerator) / factor


def _passed_on(case: Case, node: NodeProto, ask: Callable[[str], float | None]) -> float | None:
    """The factor of ``_dominates`` behind a node that keeps values, makes them larger or scales them.

    None for any other.
    """
    if node.op_type in _SPREAD and _keeps_values(node):
        return ask(node.input[0])
    if node.op_type == "Clip":
        has_ceiling = attribute(node, "max") is not None if len(node.input) == 1 else any(node.input[2:3])
        return None if has_ceiling else ask(node.input[0])
    if node.op_type not in ("Add", "Div", "Max", "Mul") or len(node.input) != 2:
        return None
    for name, other in (tuple(node.input), tuple(reversed(node.input))):
        low, high = case.bounds.get(other, (-math.inf, math.inf))
        grows = node.op_type == "Max" or (node.op_type == "Add" and low >= 0)
        scaled = node.op_type == "Mul" or (node.op_type == "Div" and name == node.input[0])
        if grows or (scaled and low == high and low > 0):
            found = ask(name)
            if found is not None:
                return found if grows else (found * low if node.op_type == "Mul" else found / low)
    return None


def _keeps_values(node: NodeProto) -> bool:
    """True for everything but a Cast to a type that cuts fractions off."""
    return node.op_type != "Cast" or dtype_name(attribute(node, "to", 0)) in FLOATS


_EXACT = (Trait.REARRANGES, Trait.SELECTS, Trait.JOINS, Trait.CLAMPS, Trait.LOGICAL)
# Operators whose results for two values that differ by a rounding may differ by one.
_JUMPS = frozenset({"Ceil", "Floor", "Round", "Sign"})


def _a_step_wider(found: Interval, given: Interval) -> Interval:
    """Bounds of a jump's results on floats: one wider at each end, but with the input's sign, which roundings keep."""
    low, high = (max(1.0, abs(end) * 2.0**-10) if math.isfinite(end) else 0.0 for end in found)  # float16 has 10 bits
    widest = found[0] - low, found[1] + high
    return (max(widest[0], 0.0) if given[0] >= 0 else widest[0]), (min(widest[1], 0.0) if given[1] <= 0 else widest[1])


def graph_bounds(graph: GraphCopy, known: Mapping[str, Interval] | None = None) -> dict[str, Interval]:
    """The bounds of all tensors; ``known`` narrows some of them (for instance by their encodings)."""
    narrow = known or {}
    arithmetic = Arithmetic(graph)
    bounds = _Bounds(graph, {name: narrow.get(name, ANYTHING) for name in graph.inputs})
    for node in graph.nodes:
        if node.op_type != "Constant":
            made = zip(node.output, arithmetic.outputs(node, bounds), strict=False)
            bounds.update({name: both(bound, narrow.get(name, ANYTHING)) for name, bound in made if name})
    return dict(bounds)


def lazy_bounds(graph: GraphCopy, known: Mapping[str, Interval] | None = None) -> Callable[[str], Interval]:
    """A function that gives the bounds of a tensor.

    Its first call computes those of the graph, which reads every weight.
    """
    found = cache(lambda: graph_bounds(graph, known))
    return lambda name: found().get(name, ANYTHING)


_RULES = {**FUNCTIONS, **SELECTIONS, **SUMS}


def _further(case: Case, index: int, first: Interval) -> Interval:
    """The bounds of an output behind the first: parts of the same data, indices, masks, states."""
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
    """Bounds by tensor name; those of a stored tensor are read when somebody asks for them."""

    def __init__(self, graph: GraphCopy, known: Mapping[str, Interval]) -> None:
        super().__init__(known)
        self._graph = graph

    def get(self, name: str, default: Interval = ANYTHING) -> Interval:  # type: ignore[override]
        """The bounds of a tensor, ``default`` where it has none."""
        if name not in self and name in self._graph.stored:
            self[name] = stored_range(self._graph, name)
        return super().get(name, default)


def stored_range(graph: GraphCopy, name: str) -> Interval:
    """The least and largest value of a stored tensor; ``ANYTHING`` where it has no numbers, or too many to read."""
    value = numbers_in(graph, name)
    if value is None:
        return ANYTHING
    low, high = float(value.min()), float(value.max())
    return ANYTHING if np.isnan(low) else (low, high)

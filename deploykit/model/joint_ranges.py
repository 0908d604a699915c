"""Bounds that follow from where two operands come from: x / norm(x), softmax rows that add up to 1, x * sigmoid(x).

Interval arithmetic forgets that operands depend on each other; these facts remember it. Two tensors count as the same
where they are made by the same operators from the same tensors, whatever their names are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, bodies
from deploykit.model.operators import Trait, has
from deploykit.model.range_functions import SILU_LOWEST, Case, Interval, both, hull

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["JointFacts"]

_DEEPEST = 12
"""How many operators a fact is followed through; what real exports write is shorter."""

_ERF_LOWEST = -0.16997120747990369 / math.sqrt(2)
"""The least value of x * (1 + erf(x)) / 2; that of x * Phi(x) is -0.16997."""

_UNCHANGED = frozenset({"Cast", "Dropout", "Identity"})
_SPREAD = _UNCHANGED | {"Expand"}
_FLOAT_TYPES = frozenset({1, 10, 11, 16})

_Ask: TypeAlias = Callable[[Case, str, str, int], float | None]


class JointFacts:
    """The facts of one graph; asked node by node in graph order, with the bounds known so far."""

    def __init__(self, graph: GraphCopy) -> None:
        self.graph = graph
        # The first of all tensors that hold the same values, for those that are not the first themselves.
        first: dict[str, str] = {}
        seen: dict[tuple[object, ...], str] = {}
        for name, tensor in graph.stored.items():
            constant = graph.scalar(name) if math.prod(tensor.dims) == 1 else None
            if constant is not None:
                first[name] = seen.setdefault(("stored", tensor.data_type, tuple(tensor.dims), constant), name)
        for node in graph.nodes:
            if has(node, Trait.RANDOM) or any(bodies(node)):
                continue
            settings = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
            inputs = tuple(first.get(used, used) for used in node.input)
            for index, name in enumerate(node.output):
                if name and node.input:
                    key = (node.domain, node.op_type, inputs, settings, index)
                    earlier = seen.setdefault(key, name)
                    if node.op_type == "Identity":
                        earlier = inputs[0]
                    if earlier != name:
                        first[name] = earlier
        self._first = first

    def narrow(self, case: Case, found: Interval) -> Interval:
        """The bounds of a node's first output, narrowed by what its operands have to do with each other."""
        match case.node.op_type:
            case "Div":
                factor = self._dominates(case, case.name(1), case.name(0), _DEEPEST)
                return found if factor is None else both(found, (-1 / factor, 1 / factor))
            case "Mul":
                for left, right in ((0, 1), (1, 0)):
                    largest = self._inverse(case, case.name(right), case.name(left))
                    if largest is not None:
                        return both(found, (-largest, largest))
                    lowest = self._gated(case.name(left), case.name(right))
                    if lowest is not None:
                        return both(found, lowest)
                return found
            case "MatMul":
                # Rows of weights that are not negative and add up to 1 stay inside what they weigh.
                adds_up = self._adds_up(case, case.name(0))
                if adds_up is None:
                    return found
                values = case.of(1)
                return both(found, values if adds_up else hull([values, (0.0, 0.0)]))
            case "Sub":
                # Nothing is larger than the largest, or smaller than the smallest, of what it is among.
                first, second = case.name(0), case.name(1)
                if self._among(first, second, "Max", "ReduceMax") or self._among(second, first, "Min", "ReduceMin"):
                    return found[0], min(found[1], 0.0)
                if self._among(second, first, "Max", "ReduceMax") or self._among(first, second, "Min", "ReduceMin"):
                    return max(found[0], 0.0), found[1]
                return found
            case _:
                return found

    def same(self, first: str, second: str) -> bool:
        """True where two tensors hold the same values."""
        return self._first.get(first, first) == self._first.get(second, second)

    def _maker(self, name: str, *op_types: str) -> NodeProto | None:
        """The node whose first output a tensor is."""
        node = self.graph.maker(name, *op_types)
        return node if node is not None and node.output[0] == name else None

    def _among(self, one: str, chosen: str, of_several: str, of_axes: str) -> bool:
        """True where a tensor is one of those that another is the extreme of, element by element or over axes."""
        node = self._maker(chosen, of_several, of_axes)
        if node is None or (node.op_type == of_axes and not _keeps(node)):
            return False
        among = node.input if node.op_type == of_several else node.input[:1]
        return any(self.same(used, one) for used in among)

    def _adds_up(self, case: Case, name: str) -> bool | None:
        """True where the last axis of a tensor adds up to 1, False where to at most 1, None where nothing is known."""
        node = self._behind(name, _UNCHANGED)
        if node is None or node.op_type not in ("Softmax", "Div"):
            return None
        shape = case.shape_of(node.input[0])
        if node.op_type == "Softmax":
            axis = int(attribute(node, "axis", -1 if self.graph.opset >= 13 else 1))
            last = shape is not None and axis in (-1, len(shape) - 1)
            # Before opset 13 all axes from the given one on add up to 1 together.
            return True if last else (False if self.graph.opset < 13 else None)
        total = self.graph.maker(node.input[1], "ReduceSum")
        if total is None or shape is None or not self.same(total.input[0], node.input[0]):
            return None
        axes = self._axes(total)
        positive = case.bounds.get(node.input[0], (-1.0, 0.0))[0] >= 0
        return True if positive and axes in ([-1], [len(shape) - 1]) and _keeps(total) else None

    def _behind(self, name: str, passed: frozenset[str]) -> NodeProto | None:
        """What makes a tensor, seen through some operators."""
        node = self._maker(name)
        for _ in range(_DEEPEST):
            if node is None or node.op_type not in passed or not _keeps_values(node):
                return node
            node = self._maker(node.input[0])
        return None

    def _axes(self, node: NodeProto) -> list[int] | None:
        axes = attribute(node, "axes")
        if axes is None and len(node.input) > 1 and node.input[1]:
            stored = self.graph.array(node.input[1])
            return None if stored is None else [int(axis) for axis in stored.ravel()]
        return None if axes is None else [int(axis) for axis in axes]

    # What follows answers: which factor f > 0 has  d >= f * |x|  in every element?

    def _dominates(self, case: Case, name: str, of: str, depth: int) -> float | None:
        node = self._maker(name)
        if node is None or not depth:
            return None
        match node.op_type:
            case "Sqrt":
                squared = self._dominates_square(case, node.input[0], of, depth - 1)
                return None if squared is None else math.sqrt(squared)
            case "Pow" if self.graph.scalar(node.input[1]) == 0.5:
                squared = self._dominates_square(case, node.input[0], of, depth - 1)
                return None if squared is None else math.sqrt(squared)
            case "ReduceL1" | "ReduceL2" if _keeps(node) and self.same(node.input[0], of):
                return 1.0
            case "ReduceMax" | "ReduceSum" if _keeps(node) and self._magnitude(case, node.input[0], of):
                return 1.0
            case _:
                return self._passed_on(case, node, of, depth, self._dominates)

    def _magnitude(self, case: Case, name: str, of: str) -> bool:
        """True for |x|, and for x itself where it is never negative."""
        node = self.graph.maker(name, "Abs")
        if node is not None and self.same(node.input[0], of):
            return True
        return self.same(name, of) and case.bounds.get(name, (-1.0, 0.0))[0] >= 0

    def _dominates_square(self, case: Case, name: str, of: str, depth: int) -> float | None:
        """The factor f with  v >= f * x²."""
        node = self._maker(name)
        if node is None or not depth:
            return None
        match node.op_type:
            case "Mul" if self.same(node.input[0], node.input[1]):
                return 1.0 if self.same(node.input[0], of) else None
            case "Pow" if self.graph.scalar(node.input[1]) == 2.0:
                return 1.0 if self.same(node.input[0], of) else None
            case "ReduceSumSquare" if _keeps(node) and self.same(node.input[0], of):
                return 1.0
            case "ReduceSum" if _keeps(node):
                return self._dominates_square(case, node.input[0], of, depth - 1)
            case "ReduceMean" if _keeps(node):
                inner = self._dominates_square(case, node.input[0], of, depth - 1)
                mean = Case(self.graph, node, case.bounds, case.types)
                axes = mean.reduced_axes()
                count = None if axes is None else mean.count(axes or None)
                return None if inner is None or not count else inner / count
            case _:
                return self._passed_on(case, node, of, depth, self._dominates_square)

    def _passed_on(self, case: Case, node: NodeProto, of: str, depth: int, ask: _Ask) -> float | None:
        """Through what leaves values as they are, makes them larger, or scales them."""
        if node.op_type in _SPREAD and _keeps_values(node):
            return ask(case, node.input[0], of, depth - 1)
        if node.op_type == "Clip":
            # True for a Clip that may lower values.
            return (
                None
                if (
                    attribute(node, "max") is not None
                    if len(node.input) == 1
                    else len(node.input) > 2 and bool(node.input[2])
                )
                else ask(case, node.input[0], of, depth - 1)
            )
        if node.op_type not in ("Add", "Div", "Max", "Mul") or len(node.input) != 2:
            return None
        for name, other in (tuple(node.input), tuple(reversed(node.input))):
            low, high = case.bounds.get(other, (-math.inf, math.inf))
            grows = node.op_type == "Max" or (node.op_type == "Add" and low >= 0)
            scaled = low == high and low > 0 and (node.op_type == "Mul" or name == node.input[0])
            if grows or (node.op_type in ("Div", "Mul") and scaled):
                found = ask(case, name, of, depth - 1)
                if found is not None:
                    return found if grows else (found * low if node.op_type == "Mul" else found / low)
        return None

    def _inverse(self, case: Case, name: str, of: str) -> float | None:
        """The bound m with  r * |x| <= m  where r is one over something that x is dominated by."""
        node = self._behind(name, _SPREAD)
        if node is None:
            return None
        if node.op_type == "Pow" and self.graph.scalar(node.input[1]) == -0.5:
            squared = self._dominates_square(case, node.input[0], of, _DEEPEST)
            return None if squared is None else 1 / math.sqrt(squared)
        numerator = 1.0 if node.op_type == "Reciprocal" else None
        if node.op_type == "Div":
            numerator = self.graph.scalar(node.input[0])
        if numerator is None:
            return None
        factor = self._dominates(case, node.input[-1], of, _DEEPEST)
        return None if factor is None else abs(numerator) / factor

    # What follows recognises c * x * gate(x) with a gate that rises from 0.

    def _gated(self, operand: str, gate: str) -> Interval | None:
        """The bounds of a product of c * x and s * gate(x): never below the dip of the function."""
        found = self._gate(gate)
        if found is None:
            return None
        source, scale, lowest = found
        multiple = _polynomial(self.graph, self, operand, source)
        if multiple is None or len(multiple) != 2 or multiple[0] or scale * multiple[1] <= 0:
            return None
        return scale * multiple[1] * lowest, math.inf

    def _gate(self, name: str) -> tuple[str, float, float] | None:
        """(x, s, the least value of x * gate(x)) where a tensor is s * gate(x)."""
        scale = 1.0
        for _ in range(_DEEPEST):
            node = self.graph.maker(name)
            if node is None:
                return None
            if node.op_type == "Sigmoid":
                return self._bounded(node, scale, SILU_LOWEST, 1.0)
            operand, constant = self._with_scalar(node)
            if constant is None or not operand:
                return None
            inner = self.graph.maker(operand, "Erf", "Tanh")
            if node.op_type == "Add" and inner is not None and constant == 1.0:
                erf = inner.op_type == "Erf"
                # 1 + erf is twice Phi; 1 + tanh(ax) is twice sigmoid(2ax).
                return self._bounded(inner, 2 * scale, _ERF_LOWEST if erf else SILU_LOWEST, 1.0 if erf else 2.0)
            if node.op_type == "Mul" or (node.op_type == "Div" and operand == node.input[0] and constant):
                scale *= constant if node.op_type == "Mul" else 1 / constant
                name = operand
            else:
                return None
        return None

    def _bounded(self, node: NodeProto, scale: float, lowest: float, steps: float) -> tuple[str, float, float] | None:
        """For an argument a*x + b*x³ of a gate; a cubic term only closes the gate sooner below zero."""
        for source in self._sources(node.input[0]):
            argument = _polynomial(self.graph, self, node.input[0], source)
            if argument is not None and not argument[0] and len(argument) >= 2 and argument[1] > 0:
                higher = argument[2:]
                if all(value >= 0 if power % 2 else value == 0 for power, value in enumerate(higher, 2)):
                    return source, scale, lowest / (steps * argument[1])
        return None

    def _sources(self, name: str) -> Sequence[str]:
        """Tensors that the argument of a gate may be a polynomial of: itself, then what lies above."""
        found, todo = [name], [name]
        for _ in range(_DEEPEST):
            if not todo:
                break
            node = self.graph.maker(todo.pop(0), "Add", "Div", "Mul", "Pow")
            above = [] if node is None else [used for used in node.input if self.graph.scalar(used) is None]
            fresh = [used for used in above if used not in found]
            found += fresh
            todo += fresh
        return found[1:] + found[:1]

    def _with_scalar(self, node: NodeProto) -> tuple[str, float | None]:
        """The computed operand of a node and the stored scalar beside it."""
        if len(node.input) != 2:
            return "", None
        first, second = node.input
        constant = self.graph.scalar(second)
        return (first, constant) if constant is not None else (second, self.graph.scalar(first))


def _polynomial(
    graph: GraphCopy, facts: JointFacts, name: str, of: str, depth: int = _DEEPEST
) -> tuple[float, ...] | None:
    """The coefficients of a tensor as a polynomial of another, lowest power first, up to the third; else None."""
    if facts.same(name, of):
        return (0.0, 1.0)
    constant = graph.scalar(name)
    if constant is not None:
        return (constant,)
    node = graph.maker(name, "Add", "Cast", "Div", "Identity", "Mul", "Pow")
    if node is None or not depth:
        return None
    if node.op_type in ("Cast", "Identity"):
        return _polynomial(graph, facts, node.input[0], of, depth - 1)
    parts = [_polynomial(graph, facts, used, of, depth - 1) for used in node.input]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    return _combined(node.op_type, parts[0], parts[1])


def _combined(op_type: str, a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...] | None:
    if op_type == "Add":
        length = max(len(a), len(b))
        padded = [(*part, *[0.0] * (length - len(part))) for part in (a, b)]
        return tuple(x + y for x, y in zip(*padded, strict=True))
    if op_type == "Mul":
        made = [0.0] * (len(a) + len(b) - 1)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                made[i + j] += x * y
        return tuple(made) if len(made) <= 4 else None
    if len(b) != 1:
        return None
    if op_type == "Div":
        return tuple(x / b[0] for x in a) if b[0] else None
    if b[0] not in (1.0, 2.0, 3.0):
        return None
    power: tuple[float, ...] | None = a
    for _ in range(int(b[0]) - 1):
        power = None if power is None else _combined("Mul", power, a)
    return power


def _keeps_values(node: NodeProto) -> bool:
    """True for everything but a Cast to a type that cuts fractions off."""
    return node.op_type != "Cast" or attribute(node, "to") in _FLOAT_TYPES


def _keeps(node: NodeProto) -> bool:
    """True for a reduction that keeps its axes, so that the result stands beside what it was made of."""
    return bool(attribute(node, "keepdims", 1))

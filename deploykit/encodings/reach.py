"""Estimates how large the values of a tensor get, from constants, encodings and bounded operators, and names the cause.

It is an estimate from the outside: an operand of which nothing is known counts as moderate, so a reach is a lower bound
of trouble. Proven bounds cut off what cannot happen, and a reach that may never be attained is told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deploykit.encodings.place import encoded_bounds
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings.records import Interval, Record, replace
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.graph import view_of
from deploykit.model.nodes import reached
from deploykit.model.operators import LARGEST_FLOAT16, RANGES, Trait, has, ops
from deploykit.model.range_functions import ANYTHING, RISING, absolute, inverse, product, total
from deploykit.model.ranges import graph_bounds

if TYPE_CHECKING:
    from deploykit.model.load import Model

__all__ = ["collect_reach", "only_masks", "proven_bounds", "saturates"]

_PASSING = ops(Trait.CARRIES_GRID) | {"Cast"}
_UNION = ops(Trait.JOINS)
_CARRIES_INFINITY = _PASSING | _UNION | {"Add", "Sub", "Log", "Sqrt"}


class Reach(Record, kw_only=False):
    """The estimated range of one tensor, and the tensor that causes it: a constant, a bound, or an encoding.

    ``attained`` ranges are those of stored values or encodings that only pass through. The others are upper limits:
    they assume that the extremes of two operands meet.
    """

    low: float
    high: float
    cause: str
    attained: bool = True

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))


def proven_bounds(facts: GraphFacts, model: Model, encodings: EncodingSet | None) -> dict[str, Interval]:
    """The proven bounds of every tensor for all inputs, with integer grids as limits.

    Computed once per graph and encodings.
    """
    return facts.once(("proven", encodings), lambda: graph_bounds(view_of(model.proto), encoded_bounds(encodings)))


def collect_reach(
    facts: GraphFacts,
    encodings: EncodingSet | None,
    constant_range: Callable[[str], Interval | None],
    *,
    bounds: Mapping[str, Interval] | None = None,
) -> dict[str, Reach]:
    """The reach of every tensor about which something is known, in one pass over the graph.

    ``constant_range`` gives (lowest, highest) of a stored tensor, or None when it is not worth reading. ``bounds`` are
    proven: no reach goes beyond them, here and in what follows from it.
    """
    limits = bounds or {}
    known = dict[str, Reach]()
    for entry in encodings or ():
        if isinstance(entry.value, Affine) and not entry.is_param:
            low, high = entry.value.ends
            known[entry.name] = Reach(low, high, cause=entry.name)
    constants = dict[str, Reach | None]()

    def look(name: str) -> Reach | None:
        fact = facts.tensor(name)
        if not fact.is_weight or not fact.is_float:
            return known.get(name)
        # Stored values are better known than any grid laid over them.
        if name not in constants:
            bounds = constant_range(name)
            constants[name] = None if bounds is None else Reach(bounds[0], bounds[1], cause=name)
        return constants[name]

    for node in facts.nodes:
        found = _of_node(node, look)
        for name in node.outputs:
            if found is not None and name:
                made, encoded = found, known.get(name)
                if encoded is not None:
                    # The encoding knows more than arithmetic on ranges does, except where the operator itself bounds
                    # its result.
                    low, high = max(found.low, encoded.low), min(found.high, encoded.high)
                    bounded = low <= high and _saturates(node)
                    made = Reach(low, high, cause=found.cause) if bounded else encoded
                # A range wholly outside the proven bounds (an operand was taken as moderate) becomes their near end.
                least, most = limits.get(name, ANYTHING)
                low, high = (min(max(end, least), most) for end in (made.low, made.high))
                known[name] = replace(made, low=low, high=high)
    return known | {name: reach for name, reach in constants.items() if reach is not None}


def _of_node(node: NodeFact, look: Callable[[str], Reach | None]) -> Reach | None:
    operands = [look(name) for name in node.inputs if name]
    if node.op_type == "Clip":
        bounds = [look(name) for name in map(node.operand, (1, 2))]
        # An infinite bound counts as no bound.
        bounds = [None if bound is None or math.isinf(bound.low) else bound for bound in bounds]
        inner = operands[0] if operands else None
        low = bounds[0].low if bounds[0] else node.attributes.get("min", inner.low if inner else None)
        high = bounds[1].high if bounds[1] else node.attributes.get("max", inner.high if inner else None)
        if low is None or high is None:
            return inner
        return Reach(float(low), float(high), cause=bounds[0].cause if bounds[0] else node.outputs[0])
    if node.op_type in RANGES:
        low, high = RANGES[node.op_type]
        return Reach(low, high, cause=node.outputs[0])
    if node.op_type in _PASSING:
        return operands[0] if operands else None
    present = [operand for operand in operands if operand is not None]
    if node.op_type in _UNION:
        return max(present, key=lambda reach: reach.magnitude, default=None)
    if not present:
        return None
    # A small number beside an unknown operand, as in ``x + 1e-5``, says nothing about their sum.
    if len(present) < len(operands) and present[0].magnitude < 1:
        return None
    first, second = [*(operand or _MODERATE for operand in operands), _MODERATE][:2]
    interval = _arithmetic(node.op_type, (first.low, first.high), (second.low, second.high))
    if interval is None:
        return None
    low, high = interval
    if len(operands) == 1:
        return replace(first, low=low, high=high)
    # What makes a quotient large is a small divisor, unless the dividend is that large by itself.
    small = node.op_type == "Div" and first.magnitude < max(abs(low), abs(high))
    cause = second if small or (node.op_type != "Div" and second.magnitude > first.magnitude) else first
    alone = node.op_type in ("Add", "Sub") or any(part.low == part.high for part in (first, second))
    return Reach(low, high, cause=cause.cause, attained=cause.attained and alone)


_MODERATE = Reach(0.0, 0.0, cause="")


def _arithmetic(op_type: str, first: Interval, second: Interval) -> Interval | None:
    """The bounds of one operator's result.

    None where the operator has no rule here, or is not defined on the operands.
    """
    low, high = first
    match op_type:
        case "Neg":
            return -high, -low
        case "Abs":
            return absolute(first)
        case "Relu" | "Exp" | "Log" | "Sqrt" if (
            op_type in ("Relu", "Exp") or low > 0 or (low == 0 and op_type == "Sqrt")
        ):
            return RISING[op_type](low), RISING[op_type](high)
        case "Add":
            return total(first, second)
        case "Sub":
            return total(first, (-second[1], -second[0]))
        case "Mul":
            return product(first, second)
        case "Div" if not second[0] <= 0 <= second[1]:
            return product(first, inverse(second))
        case _:
            return None


def _saturates(node: NodeFact) -> bool:
    """True for an operator that makes infinity a number; a Clip with one bound lets it through at the other end."""
    if not has(node, Trait.SATURATES):
        return False
    bounds = sum(map(bool, node.inputs[1:3])) + len({"min", "max"} & node.attributes.keys())
    return node.op_type != "Clip" or bounds == 2


_CARRIES_MASK = _PASSING | {"Add", "Pad", "Where"}


def only_masks(facts: GraphFacts, tensor: str, reach: Reach) -> bool:
    """True for far negative values, or -infinity, that only switch off positions of a Softmax or an ArgMax.

    Every path there leads only through Add, Pad, Where and operators that move values; positive values of that size are
    no mask.
    """
    if reach.low >= 0 or reach.high > -reach.low or reach.high > LARGEST_FLOAT16:
        return False
    return _ends_everywhere(
        facts, tensor, lambda node: node.op_type in ("ArgMax", "Softmax"), _CARRIES_MASK, unread=False
    )


def saturates(facts: GraphFacts, tensor: str) -> bool:
    """True when an infinity in this tensor is harmless: every path ends in a saturating operator, or in a divisor.

    Every path leads only through operators that carry an infinity through unchanged in meaning; a graph output counts
    as harm.
    """
    return _ends_everywhere(
        facts,
        tensor,
        lambda node: (
            _saturates(node)
            or node.op_type == "Reciprocal"
            or (node.op_type == "Div" and facts.tensors[node.inputs[0]].is_weight)
        ),
        _CARRIES_INFINITY,
        unread=True,
    )


def _ends_everywhere(
    facts: GraphFacts, tensor: str, ends: Callable[[NodeFact], bool], carrying: frozenset[str], *, unread: bool
) -> bool:
    """True when every path from the tensor reaches a node where it ``ends``, through ``carrying`` operators only.

    A graph output is no such end; ``unread`` is the answer for a path that ends at a tensor without readers.
    """
    on_the_way = reached(
        [tensor], lambda name: (made for node in facts.consumers_of(name) if not ends(node) for made in node.outputs)
    )
    for name in filter(facts.tensors.__contains__, on_the_way):
        fact, readers = facts.tensors[name], facts.consumers_of(name)
        if fact.is_output or not (readers or unread):
            return False
        if not all(ends(node) or node.op_type in carrying for node in readers):
            return False
    return True

"""How far floats carry what a node computes beyond its exact bound; operators that jump need to know. It runs nothing.

A hair above 3 is 4 for Ceil: its bound holds for what is computed only where its operand's does. So the bounds of
operators that jump come from operands that are rounded outwards, node by node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from deploykit.model.ops import RANGES, Trait, ops
from deploykit.model.ranges.interval_cases import ANYTHING, Case, Interval, Rule, both
from deploykit.model.ranges.interval_sums import SUMS
from deploykit.model.shape_inference import Shape

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["jumps", "outwards", "rounded"]

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

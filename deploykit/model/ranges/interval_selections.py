"""Bounds of operators that move, select, join or count values and compute none; a table from type to rule."""

from __future__ import annotations

import math
from collections.abc import Mapping

from deploykit.model.ops import Trait, ops
from deploykit.model.ranges.interval_cases import ANYTHING, Case, Interval, Rule, hull

__all__ = ["SELECTIONS"]

_ZERO: Interval = (0.0, 0.0)

_COPIES = ops(Trait.REARRANGES, Trait.SELECTS, Trait.AVERAGES) | {"MaxRoiPool"}
"""What they make lies between the least and the largest of their first operand."""

_WITH_ZERO = frozenset({"AveragePool", "MaxUnpool", "Trilu"})
"""The same, or zero, which stands for what is outside."""


def _same(case: Case) -> Interval:
    return case.of(0)


def _pad(case: Case) -> Interval:
    if case.get("mode", "constant") != "constant":
        return case.of(0)
    filled = float(case.get("value", 0.0))
    return hull([case.of(0), case.of(2) if case.name(2) else (filled, filled)])


def _scatter(case: Case) -> Interval:
    if case.get("reduction", "none") != "none":
        return ANYTHING
    return hull([case.of(0), case.of(2)])


def _grid_sample(case: Case) -> Interval:
    smooth = case.get("mode", "linear") in ("bicubic", "cubic")
    return ANYTHING if smooth else hull([case.of(0), _ZERO])


def _resize(case: Case) -> Interval:
    """Nearest and linear stay inside; cubic overshoots, and cropping fills in a value."""
    cropped = case.get("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return ANYTHING if cropped or case.get("mode", "nearest") == "cubic" else case.of(0)


def _index(case: Case) -> Interval:
    """A place along an axis."""
    shape, axis = case.shape(0), int(case.get("axis", 0))
    length = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return 0.0, math.inf if length is None else float(max(length - 1, 0))


def _one_hot(case: Case) -> Interval:
    return case.of(2)


def _where(case: Case) -> Interval:
    return hull([case.of(1), case.of(2)])


def _range(case: Case) -> Interval:
    return hull([case.of(0), case.of(1)])


def _natural(_case: Case) -> Interval:
    return 0.0, math.inf


SELECTIONS: Mapping[str, Rule] = {
    **dict.fromkeys(_COPIES, _same),
    **dict.fromkeys(_WITH_ZERO, lambda case: hull([case.of(0), _ZERO])),
    "ArgMax": _index,
    "ArgMin": _index,
    "Concat": lambda case: hull(case.operands),
    "GridSample": _grid_sample,
    "Hardmax": lambda _case: (0.0, 1.0),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Resize": _resize,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Shape": _natural,
    "Size": _natural,
    "Where": _where,
}
"""Operator type -> bounds of its first output."""

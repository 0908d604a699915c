"""Ranges of activations on one logarithmic axis: what grids of 8 and 16 bits tell apart, what float16 holds.

Pure arithmetic on encodings; it draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet

__all__ = ["RangeBar", "RangeChart", "range_chart"]

_MOST_BARS = 60
_FLOAT16 = (("smallest normal float16", 2.0**-14), ("largest float16", 65504.0))
_LEAST, _MOST = 1e-12, 1e12
"""The axis ends here at the latest: masks of 1e30 would press everything else together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBar:
    """One tensor: its range, and in percent of the axis where one step of 16 and 8 bits lies, and its largest value."""

    name: str
    dtype: str
    low: float
    high: float
    sixteen: float
    eight: float
    end: float
    beyond: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeChart:
    """The bars, largest value first; ``ticks`` and float16's ``limits`` are (words, percent)."""

    bars: tuple[RangeBar, ...]
    ticks: tuple[tuple[str, float], ...]
    limits: tuple[tuple[str, float], ...]
    total: int


def range_chart(encodings: EncodingSet) -> RangeChart | None:
    """The 60 activations of largest magnitude with a grid of one step each; None without any."""
    rows = [row for row in _ranges(encodings) if _reach(row) > 0]
    shown = sorted(rows, key=lambda row: (-_reach(row), row[0]))[:_MOST_BARS]
    if not shown:
        return None
    steps = [max((high - low) / 65535, _LEAST) for _, _, low, high in shown]
    first = math.floor(math.log10(max(min(*steps, _FLOAT16[0][1]), _LEAST)))
    last = math.ceil(math.log10(min(max(_reach(shown[0]), _FLOAT16[1][1]), _MOST)))
    axis = (first, last)
    every = max(1, round((last - first) / 8))
    return RangeChart(
        bars=tuple(_bar(row, axis) for row in shown),
        ticks=tuple((f"1e{power}", _place(10.0**power, axis)) for power in range(first, last + 1, every)),
        limits=tuple((words, _place(value, axis)) for words, value in _FLOAT16),
        total=len(rows),
    )


def _ranges(encodings: EncodingSet) -> Iterable[tuple[str, str, float, float]]:
    for entry in encodings:
        value = entry.value
        if isinstance(value, Affine) and not entry.is_param and value.granularity == "per-tensor":
            yield entry.name, entry.dtype, float(value.minimum.min()), float(value.maximum.max())


def _reach(row: tuple[str, str, float, float]) -> float:
    return max(abs(row[2]), abs(row[3]))


def _bar(row: tuple[str, str, float, float], axis: tuple[int, int]) -> RangeBar:
    name, dtype, low, high = row
    return RangeBar(
        name=name,
        dtype=dtype,
        low=low,
        high=high,
        sixteen=_place((high - low) / 65535, axis),
        eight=_place((high - low) / 255, axis),
        end=_place(_reach(row), axis),
        beyond=_reach(row) > _FLOAT16[1][1],
    )


def _place(value: float, axis: tuple[int, int]) -> float:
    """In percent from the left; what lies beyond the axis is at its end."""
    power = math.log10(min(max(value, _LEAST), _MOST))
    return round(100 * min(max((power - axis[0]) / (axis[1] - axis[0]), 0.0), 1.0), 2)

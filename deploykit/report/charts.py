"""Numbers as shapes for the pages: bars, points, small histograms, ranges on one axis, in percent; templates draw them.

Pure arithmetic on plain values and encodings; it knows neither models nor pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet

__all__ = ["Bar", "Place", "RangeBar", "RangeChart", "loss_bars", "places", "range_chart", "spark"]

_ROOM_DB = 10.0
"""The best bar of a chart still shows: its end lies so far from the start of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart: per series the length in percent, and the number in words. A missing series has no bar."""

    label: str
    lengths: Mapping[str, float]
    words: Mapping[str, str]


def loss_bars(rows: Sequence[tuple[str, Mapping[str, float]]]) -> tuple[Bar, ...]:
    """Bars for signal to noise in dB: the longer, the worse. What shows no difference at all has no length."""
    known = [db for _, series in rows for db in series.values() if math.isfinite(db)]
    best = max(known, default=0.0) + _ROOM_DB
    worst = min(known, default=0.0)
    span = max(best - worst, 1.0)
    return tuple(
        Bar(
            label=label,
            lengths={
                name: round(100 * (best - db) / span, 2) if math.isfinite(db) else (0.0 if db > 0 else 100.0)
                for name, db in series.items()
            },
            words={name: _words(db) for name, db in series.items()},
        )
        for label, series in rows
    )


def _words(db: float) -> str:
    return f"{db:.1f} dB" if math.isfinite(db) else ("no difference" if db > 0 else "nothing left")


def spark(counts: Sequence[int]) -> tuple[float, ...]:
    """The heights of a small histogram in percent, as roots: rare values are what matters, and shall be seen."""
    peak = max(counts, default=0)
    return tuple(round(100 * math.sqrt(count / peak), 1) if peak else 0.0 for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One point of a chart, in percent from the left and from the top, and what it is in words."""

    left: float
    top: float
    title: str


def places(points: Sequence[tuple[float, float, str]]) -> tuple[Place, ...]:
    """Points by (x, y, title), spread over the chart; values that are not finite lie on the nearer edge."""
    across, upwards = _edges([x for x, _, _ in points]), _edges([y for _, y, _ in points])
    return tuple(
        Place(left=_share(x, *across), top=round(100 - _share(y, *upwards), 2), title=title) for x, y, title in points
    )


def _edges(values: Sequence[float]) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 1.0)


def _share(value: float, low: float, high: float) -> float:
    if math.isnan(value) or high == low:
        return 50.0
    return round(4 + 92 * (min(max(value, low), high) - low) / (high - low), 2)


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

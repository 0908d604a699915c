"""Numbers as shapes for the pages: bars, points, small histograms, ranges on one axis, in percent; templates draw them.

Pure arithmetic on plain values and encodings; it knows neither models nor pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet

__all__ = [
    "Bar",
    "RangeBar",
    "RangeChart",
    "Spot",
    "decibels",
    "loss_bars",
    "range_chart",
    "share_of",
    "spark",
    "spread",
]

_ROOM_DB = 10.0
"""The best bar of a chart still shows: its end lies so far from the start of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart: per series the length in percent, and the number in words. A missing series has no bar."""

    label: str
    lengths: Mapping[str, float]
    words: Mapping[str, str]


def share_of(value: float, most: float) -> float:
    """``value`` in percent of the longest bar, 0 to 100."""
    return round(100 * min(max(value / most, 0.0), 1.0), 2) if most > 0 else 0.0


def decibels(value: float) -> str:
    """A signal-to-noise ratio for people."""
    if math.isnan(value):
        return "–"
    return f"{value:.1f} dB" if math.isfinite(value) else ("no difference" if value > 0 else "nothing left")


def loss_bars(rows: Sequence[tuple[str, Mapping[str, float]]], clean: float | None = None) -> tuple[Bar, ...]:
    """Bars for signal to noise in dB: the longer, the worse. What shows no difference at all has no length.

    ``clean`` is where a bar has no length and 0 dB fills it; without it the axis spans what is there.
    """
    known = [db for _, series in rows for db in series.values() if math.isfinite(db)]
    best = max(known, default=0.0) + _ROOM_DB if clean is None else clean
    span = max(best - min(known, default=0.0), 1.0) if clean is None else clean
    return tuple(
        Bar(
            label=label,
            lengths={name: 0.0 if db == math.inf else share_of(best - db, span) for name, db in series.items()},
            words={name: decibels(db) for name, db in series.items()},
        )
        for label, series in rows
    )


def spark(counts: Sequence[int]) -> tuple[float, ...]:
    """The heights of a small histogram in percent, as roots: rare values are what matters, and shall be seen."""
    peak = max(counts, default=0)
    return tuple(round(100 * math.sqrt(count / peak), 1) if peak else 0.0 for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One point of a chart, in percent from the left and from the top, and what it is in words."""

    left: float
    top: float
    title: str


def spread(points: Sequence[tuple[float, float, str]]) -> tuple[Spot, ...]:
    """Points by (x, y, title), spread over the chart; values that are not finite lie on the nearer edge."""

    def shares(values: Sequence[float]) -> list[float]:
        known = [value for value in values if math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        return [
            50.0 if math.isnan(value) or high == low else 4 + 92 * (min(max(value, low), high) - low) / (high - low)
            for value in values
        ]

    across, upwards = shares([x for x, _, _ in points]), shares([y for _, y, _ in points])
    return tuple(
        Spot(left=round(x, 2), top=round(100 - y, 2), title=title)
        for x, y, (_, _, title) in zip(across, upwards, points, strict=True)
    )


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
    rows = []
    for entry in encodings:
        value = entry.value
        if isinstance(value, Affine) and not entry.is_param and value.granularity == "per-tensor":
            low, high = float(value.minimum.min()), float(value.maximum.max())
            if reach := max(abs(low), abs(high)):
                rows.append((reach, entry.name, entry.dtype, low, high))
    if not rows:
        return None
    shown = sorted(rows, key=lambda row: (-row[0], row[1]))[:_MOST_BARS]
    steps = [max((high - low) / 65535, _LEAST) for *_, low, high in shown]
    first = math.floor(math.log10(max(min(*steps, _FLOAT16[0][1]), _LEAST)))
    last = math.ceil(math.log10(min(max(shown[0][0], _FLOAT16[1][1]), _MOST)))

    def place(value: float) -> float:
        # In percent from the left; what lies beyond the axis is at its end.
        power = math.log10(min(max(value, _LEAST), _MOST))
        return share_of(power - first, last - first)

    return RangeChart(
        bars=tuple(
            RangeBar(
                name=name,
                dtype=dtype,
                low=low,
                high=high,
                sixteen=place((high - low) / 65535),
                eight=place((high - low) / 255),
                end=place(reach),
                beyond=reach > _FLOAT16[1][1],
            )
            for reach, name, dtype, low, high in shown
        ),
        ticks=tuple(
            (f"1e{power}", place(10.0**power)) for power in range(first, last + 1, max(1, round((last - first) / 8)))
        ),
        limits=tuple((words, place(value)) for words, value in _FLOAT16),
        total=len(rows),
    )

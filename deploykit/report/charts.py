"""Numbers as shapes for the pages: where a bar ends and a point lies, in percent; templates draw them as SVG.

Pure arithmetic on plain values; it knows neither models nor pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Bar", "Place", "loss_bars", "places", "spark"]

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
            lengths={name: _length(db, best, span) for name, db in series.items()},
            words={name: _words(db) for name, db in series.items()},
        )
        for label, series in rows
    )


def _length(db: float, best: float, span: float) -> float:
    if math.isfinite(db):
        return round(100 * (best - db) / span, 2)
    return 0.0 if db > 0 else 100.0


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

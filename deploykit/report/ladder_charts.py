"""Quality against cost of a ladder as shapes: bars of the candidates, points of all that was tried, and the front.

Pure arithmetic on what was published; it knows no pages. Quality is what the goal asks about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.search.goals import Goal
from deploykit.report.charts import Bar, Place, places

if TYPE_CHECKING:
    from deploykit.report.ladder_section import Candidate

__all__ = ["Point", "Scatter", "bars", "scatter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point; ``kind`` is chosen, front, other or trial, ``label`` is written beside it unless it is ""."""

    place: Place
    kind: str
    label: str
    below: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """The points, the front as lines between points, and how far from the top the goal lies (None: not a number)."""

    quality: str
    points: tuple[Point, ...]
    front: tuple[tuple[Place, Place], ...]
    goal: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """What is shown as quality: its name, the value that the goal asks for (NaN: none), and how a value is said."""

    name: str
    floor: float
    words: str

    def said(self, value: float) -> str:
        if math.isfinite(value):
            return self.words.format(value)
        return "–" if math.isnan(value) else "no difference" if value > 0 else "nothing left"


def _axis(goal: Goal, rows: Sequence[Candidate]) -> _Axis:
    if goal.needs_metric:
        floor = goal.bound if goal.name == "metric" else math.nan
        return _Axis(name="the measure", floor=floor, words="{:.4g}")
    if goal.asks_outputs and any(row.detections is not None for row in rows):
        return _Axis(name="detections surely kept", floor=100 * goal.share, words="{:.1f} %")
    return _Axis(name="signal to noise", floor=goal.decibels, words="{:.1f} dB")


def _quality(axis: _Axis, metric: float | None, detections: Mapping[str, float] | None, sqnr_db: float) -> float:
    if axis.name == "the measure":
        return math.nan if metric is None else metric
    if axis.name == "signal to noise":
        return sqnr_db
    return math.nan if detections is None else 100 * detections["at_least"]


def _of_row(axis: _Axis, row: Candidate) -> float:
    return _quality(axis, row.metric, row.detections, row.sqnr_db)


def _of_trial(axis: _Axis, trial: Mapping[str, Any]) -> float:
    db = trial["sqnr_db"]
    return _quality(axis, trial["metric"], trial["detections"], math.nan if db is None else db)


def bars(goal: Goal, rows: Sequence[Candidate]) -> tuple[Bar, ...]:
    """Per candidate quality and cost, each on a scale from nothing to the largest; the goal is a bar of its own."""
    axis, known = _axis(goal, rows), [row for row in rows if row.cost is not None]
    values = [axis.floor, *(_of_row(axis, row) for row in known)]
    highest = max((value for value in values if math.isfinite(value)), default=1.0)
    dearest = max((row.cost["bit_operations"] for row in known if row.cost is not None), default=0.0)
    asked = (
        () if math.isnan(axis.floor) else (_bar("the goal", {"quality": (axis.floor, highest, axis.said(axis.floor))}),)
    )
    return (*asked, *(_bar(row.precision, _series(axis, row, highest, dearest)) for row in known))


def _series(axis: _Axis, row: Candidate, highest: float, dearest: float) -> dict[str, tuple[float, float, str]]:
    bits, value = 0.0 if row.cost is None else row.cost["bit_operations"], _of_row(axis, row)
    cost = {"cost": (bits, dearest, f"{bits:.3g}")}
    return cost if math.isnan(value) else {"quality": (value, highest, axis.said(value)), **cost}


def _bar(label: str, series: Mapping[str, tuple[float, float, str]]) -> Bar:
    return Bar(
        label=label,
        lengths={name: _share(value, most) for name, (value, most, _) in series.items()},
        words={name: words for name, (_, _, words) in series.items()},
    )


def _share(value: float, most: float) -> float:
    return round(100 * min(max(value / most, 0.0), 1.0), 2) if most > 0 else 0.0


def scatter(goal: Goal, rows: Sequence[Candidate], trials: Sequence[Mapping[str, Any]]) -> Scatter:
    """Candidates and trials by bit operations and quality, and the front that nothing beats in both."""
    axis = _axis(goal, rows)
    known = [(row, float(row.cost["bit_operations"]), _of_row(axis, row)) for row in rows if row.cost is not None]
    tried = [(trial, float(trial["cost"]["bit_operations"]), _of_trial(axis, trial)) for trial in trials]
    spots = [(bits, value, f"{row.precision}: {axis.said(value)}, {bits:.3g}") for row, bits, value in known]
    spots += [(bits, v, f"{len(t['layers'])} layers in {t['to']}: {axis.said(v)}, {bits:.3g}") for t, bits, v in tried]
    if not spots:
        return Scatter(quality=axis.name, points=(), front=(), goal=None)
    *found, floor = places([*spots, (spots[0][0], axis.floor, axis.said(axis.floor))])
    labels = [row.precision for row, _, _ in known] + [""] * len(tried)
    kinds = [_kind(row) for row, _, _ in known] + ["trial"] * len(tried)
    line = [found[at] for at in _front([(bits, value) for bits, value, _ in spots])]
    return Scatter(
        quality=axis.name,
        points=tuple(
            Point(place=place, kind=kind, label=label, below=_collides(place, found[:at]))
            for at, (place, kind, label) in enumerate(zip(found, kinds, labels, strict=True))
        ),
        front=tuple(pairwise(line)),
        goal=None if math.isnan(axis.floor) else floor,
    )


def _kind(row: Candidate) -> str:
    return "chosen" if row.is_chosen else "front" if row.meets_goal else "other"


def _collides(place: Place, earlier: Sequence[Place]) -> bool:
    """True where a label above the point would lie on one that is written already."""
    return any(abs(place.left - one.left) < 22 and abs(place.top - one.top) < 6 for one in earlier)


def _front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of those that nothing beats: cheaper than every better one, the cheapest first."""
    kept: list[int] = []
    known = [at for at, (_, value) in enumerate(points) if not math.isnan(value)]
    for at in sorted(known, key=lambda at: (points[at][0], -points[at][1])):
        if not kept or points[at][1] > points[kept[-1]][1]:
            kept.append(at)
    return kept

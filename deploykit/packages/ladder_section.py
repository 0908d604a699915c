"""A ladder's story for a page: the candidates in words and as shapes, why one was chosen, which layers were raised.

Pure: from the published shape of a ladder (``deploykit ladder --json``, ``quantization.ladder`` of a manifest), so that
a page tells nothing that the manifest does not. The template is ``ladder_story.html.j2``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploykit.numerics.goals import parse_goal
from deploykit.packages.charts import Bar, Place, places

__all__ = ["Candidate", "LadderSection", "ladder_section"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row. ``sqnr_db`` is NaN where nothing was measured, infinite where nothing differs or nothing is left."""

    precision: str
    meets_goal: bool | None
    is_chosen: bool
    sqnr_db: float
    metric: float | None
    cost: Mapping[str, float] | None
    borders: int
    made_by: str
    missing: str
    runs_here: bool

    @property
    def verdict(self) -> str:
        """What becomes of the goal, in words."""
        if self.missing or self.meets_goal is None:
            return "not measured"
        if not self.meets_goal:
            return "misses"
        return "reaches" if self.runs_here else "reaches, but does not run here"

    @property
    def decibels(self) -> str:
        """The signal to noise in words."""
        if math.isnan(self.sqnr_db):
            return "–"
        if math.isfinite(self.sqnr_db):
            return f"{self.sqnr_db:.1f} dB"
        return "no difference" if self.sqnr_db > 0 else "nothing left"


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSection:
    """What the template shows; ``conclusions`` and ``steps`` are as published."""

    goal: str
    chosen: str
    why: str
    rows: tuple[Candidate, ...]
    conclusions: Sequence[Mapping[str, Any]]
    steps: Sequence[Mapping[str, Any]]
    bars: tuple[Bar, ...]
    points: tuple[tuple[Place, str], ...]

    @property
    def has_metric(self) -> bool:
        """True where a measure of the user's was taken of any candidate."""
        return any(row.metric is not None for row in self.rows)


def ladder_section(ladder: Mapping[str, Any]) -> LadderSection:
    """The section about a ladder in its published shape."""
    raised = [{**step["candidate"], "meets_goal": step["raised"]["best"]["meets_goal"]} for step in ladder["steps"]]
    rows = tuple(_candidate(row, ladder) for row in (*ladder["candidates"], *raised))
    return LadderSection(
        goal=ladder["goal"],
        chosen=ladder["chosen"] or "nothing",
        why=ladder["why"],
        rows=rows,
        conclusions=ladder["conclusions"],
        steps=ladder["steps"],
        bars=_bars(rows, ladder["goal"]),
        points=_points(rows),
    )


def _candidate(row: Mapping[str, Any], ladder: Mapping[str, Any]) -> Candidate:
    return Candidate(
        precision=row["precision"],
        meets_goal=row["meets_goal"],
        is_chosen=row["precision"] == ladder["chosen"],
        sqnr_db=_sqnr(row, ladder["goal"]),
        metric=row["metric"],
        cost=row["cost"],
        borders=row["borders"],
        made_by=row["made_by"],
        missing=row["missing"],
        runs_here=row["runs_here"],
    )


def _sqnr(row: Mapping[str, Any], goal: str) -> float:
    """JSON has no infinity: where decibels were judged and none are told, the verdict says which end it was."""
    if row["sqnr_db"] is not None:
        return float(row["sqnr_db"])
    if row["meets_goal"] is None or parse_goal(goal).needs_metric:
        return math.nan
    return math.inf if row["meets_goal"] else -math.inf


def _bars(rows: Sequence[Candidate], goal: str) -> tuple[Bar, ...]:
    """Per candidate quality and cost, each on a scale from nothing to the largest; the goal is a bar of its own."""
    known = [row for row in rows if row.cost is not None]
    wanted = parse_goal(goal)
    floor = math.nan if wanted.needs_metric else wanted.bound
    highest = max((db for db in (floor, *(row.sqnr_db for row in known)) if math.isfinite(db)), default=1.0)
    dearest = max((row.cost["bit_operations"] for row in known if row.cost is not None), default=0.0)
    asked = () if math.isnan(floor) else (_bar("the goal", {"quality": (floor, highest, f"{floor:g} dB")}),)
    return (*asked, *(_bar(row.precision, _series(row, highest, dearest)) for row in known))


def _series(row: Candidate, highest: float, dearest: float) -> dict[str, tuple[float, float, str]]:
    bits = 0.0 if row.cost is None else row.cost["bit_operations"]
    cost = {"cost": (bits, dearest, f"{bits:.3g}")}
    return cost if math.isnan(row.sqnr_db) else {"quality": (row.sqnr_db, highest, row.decibels), **cost}


def _bar(label: str, series: Mapping[str, tuple[float, float, str]]) -> Bar:
    return Bar(
        label=label,
        lengths={name: _share(value, most) for name, (value, most, _) in series.items()},
        words={name: words for name, (_, _, words) in series.items()},
    )


def _share(value: float, most: float) -> float:
    return round(100 * min(max(value / most, 0.0), 1.0), 2) if most > 0 else 0.0


def _points(rows: Sequence[Candidate]) -> tuple[tuple[Place, str], ...]:
    known = [(row, row.cost["bit_operations"]) for row in rows if row.cost is not None]
    spots = places([(bits, row.sqnr_db, f"{row.precision}: {row.decibels}") for row, bits in known])
    kinds = ["chosen" if row.is_chosen else "front" if row.meets_goal else "other" for row, _ in known]
    return tuple(zip(spots, kinds, strict=True))

"""A ladder's story for a page: the candidates in words and as shapes, why one was chosen, which layers were raised.

Pure: from the published shape of a ladder (``accuracy ladder --json``, ``quantization.ladder`` of a manifest), so that
a page tells nothing that the manifest does not. The template is ``ladder_story.html.j2``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploykit.accuracy.search.goals import parse_goal
from deploykit.report.charts import Bar, loss_bars
from deploykit.report.ladder_charts import Scatter, bars, scatter

__all__ = ["Candidate", "LadderSection", "ladder_section"]

_JUDGED = {True: "right", False: "wrong", None: "not judged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row. ``sqnr_db`` is NaN where nothing was measured, infinite where nothing differs or nothing is left.

    ``detections`` are as published, None without any. ``on_npu`` is NaN where nothing was asked about that.
    """

    precision: str
    meets_goal: bool | None
    is_chosen: bool
    sqnr_db: float
    metric: float | None
    right: bool | None
    reason: str
    detections: Mapping[str, float] | None
    cost: Mapping[str, float] | None
    borders: int
    made_by: str
    missing: str
    runs_here: bool
    way: str
    refused: str
    on_npu: float
    open: str

    @property
    def verdict(self) -> str:
        """What becomes of the goal, in words."""
        if self.missing or self.meets_goal is None:
            return "not measured" if not self.open else f"cannot be told: {self.open}"
        if not self.meets_goal:
            return "misses"
        if self.refused:
            return f"reaches, but is refused: {self.refused}"
        if not self.runs_here:
            return "reaches, but does not run here"
        return "reaches, with work for the host" if self.on_npu < 1 else "reaches"

    @property
    def judged(self) -> str:
        """The output judge's word."""
        return _JUDGED[self.right]

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to add: why it was judged wrong, and what packaging changes."""
        wrong = (f"wrong, as {self.reason}",) if self.right is False and self.reason else ()
        return (*wrong, *((f"as packaged: {self.way}",) if self.way else ()))

    @property
    def decibels(self) -> str:
        """The signal to noise in words."""
        if math.isnan(self.sqnr_db):
            return "–"
        if math.isfinite(self.sqnr_db):
            return f"{self.sqnr_db:.1f} dB"
        return "no difference" if self.sqnr_db > 0 else "nothing left"

    @property
    def kept(self) -> str:
        """The detections that are kept, in words."""
        if self.detections is None:
            return "–"
        return (
            f"{self.detections['share']:.1%} of {self.detections['wanted']}, at least {self.detections['at_least']:.1%}"
        )

    @property
    def npu(self) -> str:
        """The share of nodes on the accelerator, in words."""
        return "–" if math.isnan(self.on_npu) else f"{self.on_npu:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSection:
    """What the template shows; ``conclusions`` and ``steps`` are as published. ``quality`` is what the charts show."""

    goal: str
    in_words: str
    chosen: str
    why: str
    rows: tuple[Candidate, ...]
    conclusions: Sequence[Mapping[str, Any]]
    steps: Sequence[Mapping[str, Any]]
    quality: str
    bars: Sequence[Any]
    scatter: Scatter

    @property
    def has_metric(self) -> bool:
        """True where a measure of the user's was taken of any candidate."""
        return any(row.metric is not None for row in self.rows)

    @property
    def has_detections(self) -> bool:
        """True where detections were counted."""
        return any(row.detections is not None for row in self.rows)

    @property
    def as_packaged(self) -> bool:
        """True where candidates were measured as they would be packaged, and not as their encodings are."""
        return any(not math.isnan(row.on_npu) for row in self.rows)

    @property
    def winner(self) -> Candidate | None:
        """The row that was chosen."""
        return next((row for row in self.rows if row.is_chosen), None)

    def costs(self, step: Mapping[str, Any]) -> tuple[Bar, ...]:
        """Bars of what quantizing single layers costs, the worst first, where a step measured that."""
        rows = (step["raised"] or {}).get("sensitivity", ())
        return loss_bars([(row["layer"], _losses(row["loss_db"])) for row in rows])

    def words(self, row: Mapping[str, Any]) -> str:
        """What a candidate in its published shape keeps of the signal."""
        return "–" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f} dB"


def ladder_section(ladder: Mapping[str, Any]) -> LadderSection:
    """The section about a ladder in its published shape."""
    steps = ladder["steps"]
    rows = tuple(_candidate(row, ladder) for row in (*ladder["candidates"], *(step["candidate"] for step in steps)))
    trials = [trial for step in steps if step["raised"] is not None for trial in step["raised"]["trials"]]
    goal = parse_goal(ladder["goal"])
    points = scatter(goal, rows, trials)
    return LadderSection(
        goal=ladder["goal"],
        in_words=goal.in_words,
        chosen=ladder["chosen"] or "nothing",
        why=ladder["why"],
        rows=rows,
        conclusions=ladder["conclusions"],
        steps=steps,
        quality=points.quality,
        bars=bars(goal, rows),
        scatter=points,
    )


def _losses(published: Mapping[str, Any]) -> dict[str, float]:
    """Weights and activations apart where both are known, else both together."""
    known = {
        name: math.inf if db is None else -math.inf if isinstance(db, str) else db for name, db in published.items()
    }
    return {name: db for name, db in known.items() if name != "together"} or known


def _candidate(row: Mapping[str, Any], ladder: Mapping[str, Any]) -> Candidate:
    known = row["detections"] is not None and row["detections"]["wanted"] > 0
    return Candidate(
        precision=row["precision"],
        meets_goal=row["meets_goal"],
        is_chosen=row["precision"] == ladder["chosen"],
        sqnr_db=_sqnr(row, ladder["goal"]),
        metric=row["metric"],
        right=row["right"],
        reason=row["reason"],
        detections=row["detections"] if known else None,
        cost=row["cost"],
        borders=row["borders"],
        made_by=row["made_by"],
        missing=row["missing"],
        runs_here=row["runs_here"],
        way=row["way"],
        refused=row["refused"],
        on_npu=math.nan if row["on_npu"] is None else row["on_npu"],
        open=row["open"],
    )


def _sqnr(row: Mapping[str, Any], goal: str) -> float:
    """JSON has no infinity: where decibels were judged and none are told, the verdict says which end it was."""
    if row["sqnr_db"] is not None:
        return float(row["sqnr_db"])
    if row["meets_goal"] is None or parse_goal(goal).needs_metric:
        return math.nan
    return math.inf if row["meets_goal"] else -math.inf

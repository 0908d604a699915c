"""Pages and sections about precision: a ladder's story, raised layers, what single layers cost.

Pure: from what was measured or published to values and text. What a ladder's section tells stands in the manifest, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from deploykit.accuracy.search.goals import Goal, parse_goal
from deploykit.accuracy.search.layer_losses import LayerLoss, Sensitivity, TensorLoss
from deploykit.accuracy.search.output_losses import OutputLoss
from deploykit.accuracy.search.raising import Raised, RaiseTrial
from deploykit.findings import Finding
from deploykit.report.charts import Bar, Place, loss_bars, places, spark
from deploykit.report.rendering import render

__all__ = [
    "Candidate",
    "LadderSection",
    "Point",
    "Scatter",
    "bars",
    "ladder_section",
    "render_ladder",
    "render_mix",
    "render_sensitivity",
    "scatter",
]

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
        return _decibels(self.sqnr_db)

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
    tried = []
    for trial in trials:
        db = math.nan if trial["sqnr_db"] is None else trial["sqnr_db"]
        value = _quality(axis, trial["metric"], trial["detections"], db)
        tried.append((trial, float(trial["cost"]["bit_operations"]), value))
    spots = [(bits, value, f"{row.precision}: {axis.said(value)}, {bits:.3g}") for row, bits, value in known]
    spots += [(bits, v, f"{len(t['layers'])} layers in {t['to']}: {axis.said(v)}, {bits:.3g}") for t, bits, v in tried]
    if not spots:
        return Scatter(quality=axis.name, points=(), front=(), goal=None)
    *found, floor = places([*spots, (spots[0][0], axis.floor, axis.said(axis.floor))])
    labels = [row.precision for row, _, _ in known] + [""] * len(tried)
    kinds = ["chosen" if row.is_chosen else "front" if row.meets_goal else "other" for row, _, _ in known]
    kinds += ["trial"] * len(tried)
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


def render_mix(raised: Raised, front: Sequence[RaiseTrial], model_name: str, *, templates: Path | None = None) -> str:
    """The page."""
    words = {trial: f"{trial.reached.sqnr_db:.1f} dB" for trial in (*raised.trials, *front, raised.best)}
    trials = tuple(dict.fromkeys((*raised.trials, *front)))
    kinds = ["chosen" if trial == raised.best else "front" if trial in front else "other" for trial in trials]
    spots = []
    for trial in trials:
        bits = trial.cost.bit_operations
        title = f"{trial.count} layers in {trial.wide}: {words[trial]}, {bits:.3g} bit operations"
        spots.append((bits, trial.reached.sqnr_db, title))
    values = {
        "model_name": model_name,
        "raised": raised,
        "front": front,
        "points": tuple(zip(places(spots), kinds, strict=True)),
        "best_words": words[raised.best],
        "rows": [(trial, words[trial]) for trial in front],
    }
    return render("mix.html.j2", values, templates=templates)


def render_ladder(
    ladder: Mapping[str, Any],
    model_name: str,
    samples: str,
    *,
    findings: Sequence[Finding] = (),
    templates: Path | None = None,
) -> str:
    """The page that tells a published ladder's story; ``samples`` says in words what was measured on."""
    values = {"model_name": model_name, "ladder": ladder_section(ladder), "samples": samples, "findings": findings}
    return render("ladder.html.j2", values, templates=templates)


_MOST_LAYERS, _MOST_TENSORS = 40, 60  # a page with more is not read


def render_sensitivity(found: Sensitivity, model_name: str, *, templates: Path | None = None) -> str:
    """The page; layers and tensors beyond the worst are counted and left out."""
    layers, tensors = found.worst_layers, found.worst_tensors
    values = {
        "model_name": model_name,
        "found": found,
        "totals": [
            ("everything quantized", _words(found.whole)),
            ("only weights", _words(found.weights)),
            ("only activations", _words(found.activations)),
        ],
        "samples": found.samples.described_for_humans,
        "bars": loss_bars([(row.layer.name, _layer_series(row)) for row in layers[:_MOST_LAYERS]]),
        "tensors": [_tensor(row, found) for row in tensors[:_MOST_TENSORS]],
        "more_layers": max(0, len(layers) - _MOST_LAYERS),
        "more_tensors": max(0, len(tensors) - _MOST_TENSORS),
    }
    return render("sensitivity.html.j2", values, templates=templates)


def _layer_series(row: LayerLoss) -> dict[str, float]:
    known = {"weights": row.weights, "activations": row.activations}
    return {name: loss.db for name, loss in known.items() if loss is not None} or {
        "together": row.alone.db if row.alone is not None else math.inf
    }


def _tensor(row: TensorLoss, found: Sensitivity) -> dict[str, object]:
    shape = row.statistics
    return {
        "row": row,
        "alone": _words(row.alone),
        "gain": _gain(row, found),
        "own": _decibels(row.own_db),
        "range": "–" if shape is None else f"{shape.low:.4g} … {shape.high:.4g}",
        "outliers": "–" if shape is None else f"{shape.outliers:.3%}",
        "spark": () if shape is None else spark(shape.histogram),
    }


def _gain(row: TensorLoss, found: Sensitivity) -> str:
    if row.without is None or not math.isfinite(row.without.db - found.whole.db):
        return "–"
    return f"{row.without.db - found.whole.db:+.2f} dB"


def _words(loss: OutputLoss | None) -> str:
    return "–" if loss is None else _decibels(loss.db)


def _decibels(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.1f} dB" if math.isfinite(value) else ("no difference" if value > 0 else "nothing left")

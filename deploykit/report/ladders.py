"""Pages and sections about precision: the ladder of a model, raised layers, the cost of single layers.

It turns measured or published values into text and reads nothing. The manifest holds all that a ladder's section tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from deploykit.accuracy.latency import in_time
from deploykit.findings import Finding, group_findings
from deploykit.findings.records import Json, Record
from deploykit.report.charts import decibels, loss_bars, share_of, spark, spread
from deploykit.report.rendering import render

if TYPE_CHECKING:
    from deploykit.accuracy.search.goals import Goal
    from deploykit.accuracy.search.layer_losses import Sensitivity, TensorLoss
    from deploykit.accuracy.search.output_losses import OutputLoss

__all__ = ["ladder_section", "render_ladder", "render_sensitivity"]


def ladder_section(ladder: Json) -> Json:
    """The values that the template shows of a published ladder; its conclusions and steps stay as published.

    ``quality`` is the quantity in the charts.
    """
    from deploykit.accuracy.search.goals import parse_goal

    goal = parse_goal(ladder["goal"])
    steps = [{**step, "costs": _layer_bars(step)} for step in ladder["steps"]]
    candidates = (*ladder["candidates"], *(step["candidate"] for step in steps))
    rows = [_row(told, goal, is_chosen=told["precision"] == ladder["chosen"]) for told in candidates]
    trials = [trial for step in steps if step["raised"] is not None for trial in step["raised"]["trials"]]
    axis = _Axis.of(goal, rows)
    return {
        "goal": ladder["goal"],
        "in_words": goal.in_words,
        "chosen": ladder["chosen"] or "nothing",
        "why": ladder["why"],
        "winner": next((row for row in rows if row["is_chosen"]), None),
        "rows": rows,
        "has_metric": any(told["metric"] is not None for told in candidates),
        "has_detections": any(row["detections"] for row in rows),
        "has_times": any(row["time_us"] is not None for row in rows),
        # True if the candidates were measured as packaged, not only by their encodings.
        "as_packaged": any(told["on_npu"] is not None for told in candidates),
        "conclusions": ladder["conclusions"],
        "steps": steps,
        "quality": axis.name,
        "bars": _bars(axis, rows),
        "scatter": _scatter(axis, rows, trials),
    }


def _row(told: Json, goal: Goal, *, is_chosen: bool) -> Json:
    """A published candidate, ``told``, with its values in words.

    ``sqnr_db`` is NaN if nothing was measured, infinite if there is no difference or nothing is left.
    """
    # JSON has no infinity: if decibels were judged but are missing, the verdict tells which infinity it was.
    sqnr_db = told["sqnr_db"]
    if sqnr_db is None and (told["meets_goal"] is None or goal.needs_metric):
        sqnr_db = math.nan
    elif sqnr_db is None:
        sqnr_db = math.inf if told["meets_goal"] else -math.inf
    counted = told["detections"] if (told["detections"] or {}).get("wanted") else None
    time_us = told.get("time_us")  # manifests of earlier releases have none
    wrong = told["right"] is False and told["reason"]
    return {
        "told": told,
        "is_chosen": is_chosen,
        "sqnr_db": float(sqnr_db),
        "decibels": decibels(sqnr_db),
        "detections": counted,
        "kept": "{share:.1%} of {wanted}, at least {at_least:.1%}".format_map(counted) if counted else "–",
        "time_us": time_us,
        "time": "–" if time_us is None else in_time(time_us),
        "npu": "–" if told["on_npu"] is None else f"{told['on_npu']:.0%}",
        "verdict": _verdict(told),
        "judged": {True: "right", False: "wrong"}.get(told["right"], "not judged"),
        "notes": [
            *([f"wrong, as {told['reason']}"] if wrong else []),
            *([f"as packaged: {told['way']}"] if told["way"] else []),
        ],
    }


def _verdict(told: Json) -> str:
    """Whether the candidate reaches the goal, in words."""
    if told["missing"] or told["meets_goal"] is None:
        return f"cannot be told: {told['open']}" if told["open"] else "not measured"
    if not told["meets_goal"]:
        return "misses"
    if told["refused"]:
        return f"reaches, but is refused: {told['refused']}"
    if not told["runs_here"]:
        return "reaches, but does not run here"
    return "reaches" if told["on_npu"] in (None, 1) else "reaches, with work for the host"


def _layer_bars(step: Json) -> list[Json]:
    """Bars for the loss by quantizing single layers, the worst first; empty if a step did not measure this."""
    shown = []
    for row in (step["raised"] or {}).get("sensitivity", ()):
        known = {
            name: math.inf if db is None else -math.inf if isinstance(db, str) else db
            for name, db in row["loss_db"].items()
        }
        # Weights and activations separately if both are known, else together.
        shown.append((row["layer"], {name: db for name, db in known.items() if name != "together"} or known))
    return loss_bars(shown)


class _Axis(Record):
    """The quantity shown as quality: its name, the goal's value (NaN for none), and the format of a value."""

    name: str
    floor: float
    words: str

    @classmethod
    def of(cls, goal: Goal, rows: Sequence[Json]) -> _Axis:
        """The user's measure, detections kept, or decibels, depending on the goal."""
        if goal.needs_metric:
            floor = goal.bound if goal.name == "metric" else math.nan
            return cls(name="the measure", floor=floor, words="{:.4g}")
        if goal.asks_outputs and any(row["detections"] for row in rows):
            return cls(name="detections surely kept", floor=100 * goal.share, words="{:.1f} %")
        return cls(name="signal to noise", floor=goal.decibels, words="{:.1f} dB")

    def value(self, told: Json, sqnr_db: float) -> float:
        """The quality of a published candidate or trial; NaN if unknown."""
        if self.name == "signal to noise":
            return sqnr_db
        if self.name == "the measure":
            return math.nan if told["metric"] is None else float(told["metric"])
        return math.nan if told["detections"] is None else 100 * float(told["detections"]["at_least"])

    def said(self, value: float) -> str:
        return self.words.format(value) if math.isfinite(value) else decibels(value)


def _bars(axis: _Axis, rows: Sequence[Json]) -> list[Json]:
    """The quality and cost of each candidate, on scales from zero to the largest; the goal is a bar of its own."""
    known = [(row, axis.value(row["told"], row["sqnr_db"])) for row in rows if row["told"]["cost"] is not None]
    highest = max((value for value in (axis.floor, *(v for _, v in known)) if math.isfinite(value)), default=1.0)
    dearest = max((row["told"]["cost"]["bit_operations"] for row, _ in known), default=0.0)
    made = [] if math.isnan(axis.floor) else [("the goal", {"quality": (axis.floor, highest, axis.said(axis.floor))})]
    for row, value in known:
        series = {} if math.isnan(value) else {"quality": (value, highest, axis.said(value))}
        bits = row["told"]["cost"]["bit_operations"]
        made.append((row["told"]["precision"], {**series, "cost": (bits, dearest, f"{bits:.3g}")}))
    return [
        {
            "label": label,
            "lengths": {name: share_of(value, most) for name, (value, most, _) in series.items()},
            "words": {name: words for name, (_, _, words) in series.items()},
        }
        for label, series in made
    ]


def _scatter(axis: _Axis, rows: Sequence[Json], trials: Sequence[Json]) -> Json:
    """Candidates and trials by cost and quality, and the front that none beats in both.

    The cost is the estimated time if a compiler was asked, else bit operations; trials are not compiled.
    """
    timed = any(row["time_us"] is not None for row in rows)
    shown = []  # cost, quality, title, label, kind
    for row in rows:
        value, name = axis.value(row["told"], row["sqnr_db"]), row["told"]["precision"]
        kind = "chosen" if row["is_chosen"] else "front" if row["told"]["meets_goal"] else "other"
        if timed and row["time_us"] is not None:
            shown.append((row["time_us"], value, f"{name}: {axis.said(value)}, {row['time']}", name, kind))
        elif not timed and row["told"]["cost"] is not None:
            bits = float(row["told"]["cost"]["bit_operations"])
            shown.append((bits, value, f"{name}: {axis.said(value)}, {bits:.3g}", name, kind))
    for trial in () if timed else trials:
        bits = float(trial["cost"]["bit_operations"])
        value = axis.value(trial, math.nan if trial["sqnr_db"] is None else trial["sqnr_db"])
        title = f"{len(trial['layers'])} layers in {trial['to']}: {axis.said(value)}, {bits:.3g}"
        shown.append((bits, value, title, "", "trial"))
    if not shown:
        return {"points": []}
    *spots, floor = spread([*(row[:3] for row in shown), (shown[0][0], axis.floor, axis.said(axis.floor))])
    # The front: in the order of cost, each one better than all cheaper ones.
    front = list[int]()
    for at in sorted(range(len(shown)), key=lambda at: (shown[at][0], -shown[at][1])):
        if not math.isnan(shown[at][1]) and (not front or shown[at][1] > shown[front[-1]][1]):
            front.append(at)
    points = []
    for at, (spot, (*_, label, kind)) in enumerate(zip(spots, shown, strict=True)):
        # A label above this point would overlap an earlier one.
        below = any(abs(spot["left"] - one["left"]) < 22 and abs(spot["top"] - one["top"]) < 6 for one in spots[:at])
        points.append({"place": spot, "kind": kind, "label": label, "below": below})
    return {
        "points": points,
        "front": list(pairwise(spots[at] for at in front)),
        "goal": None if math.isnan(axis.floor) else floor,
    }


def render_ladder(
    ladder: Json,
    model_name: str,
    samples: str,
    *,
    findings: Sequence[Finding] = (),
) -> str:
    """The page about a published ladder; ``samples`` describes the samples that were measured on."""
    still_open, handled = group_findings(findings)
    values = {"model_name": model_name, "ladder": ladder_section(ladder), "samples": samples}
    return render("ladder.html.j2", {**values, "open": still_open, "handled": handled})


_MOST_LAYERS, _MOST_TENSORS = 40, 60  # nobody reads a longer page


def tensor_words(row: TensorLoss, found: Sensitivity) -> dict[str, str]:
    """A tensor's loss and value statistics in words, for a page or a terminal."""
    shape = row.statistics
    gain = math.nan if row.without is None else row.without.db - found.whole.db
    return {
        "alone": loss_words(row.alone),
        "gain": f"{gain:+.2f} dB" if math.isfinite(gain) else "–",
        "own": decibels(row.own_db),
        "range": "–" if shape is None else f"{shape.low:.4g} … {shape.high:.4g}",
        "outliers": "–" if shape is None else f"{shape.outliers:.3%}",
    }


def loss_words(loss: OutputLoss | None) -> str:
    """The decibels of a measured loss, else a dash."""
    return "–" if loss is None else decibels(loss.db)


def render_sensitivity(found: Sensitivity, model_name: str) -> str:
    """The page on the loss of single layers and tensors; those beyond the worst are counted and left out."""
    layers, tensors = found.worst_layers, found.worst_tensors
    bars = []
    for layer in layers[:_MOST_LAYERS]:
        apart = {"weights": layer.weights, "activations": layer.activations}
        together = math.inf if layer.alone is None else layer.alone.db
        known = {name: loss.db for name, loss in apart.items() if loss is not None}
        bars.append((layer.layer.name, known or {"together": together}))
    rows = [
        {"row": row, "spark": spark(row.statistics.histogram) if row.statistics else (), **tensor_words(row, found)}
        for row in tensors[:_MOST_TENSORS]
    ]
    values = {
        "model_name": model_name,
        "found": found,
        "totals": [
            ("everything quantized", loss_words(found.whole)),
            ("only weights", loss_words(found.weights)),
            ("only activations", loss_words(found.activations)),
        ],
        "samples": found.samples.described_for_humans,
        "bars": loss_bars(bars),
        "tensors": rows,
        "more_layers": max(0, len(layers) - _MOST_LAYERS),
        "more_tensors": max(0, len(tensors) - _MOST_TENSORS),
    }
    return render("sensitivity.html.j2", values)

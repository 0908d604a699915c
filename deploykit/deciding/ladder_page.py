"""One self-contained HTML page that tells a ladder's story: candidates, conclusions, the step taken, the choice.

Pure: from what was measured to text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from deploykit.deciding.ladder import Ladder, Rung
from deploykit.findings import Finding
from deploykit.packages.charts import Place, places
from deploykit.packages.rendering import render

__all__ = ["render_ladder"]


def render_ladder(
    ladder: Ladder, model_name: str, samples: str, *, findings: Sequence[Finding] = (), templates: Path | None = None
) -> str:
    """The page; ``samples`` says in words what was measured on."""
    every = (*ladder.rungs, *(step.rung for step in ladder.steps))
    values = {
        "model_name": model_name,
        "ladder": ladder,
        "samples": samples,
        "findings": findings,
        "rows": [(rung, _verdict(ladder, rung), _decibels(rung.reached.sqnr_db)) for rung in every],
        "points": _points(ladder, every),
        "has_metric": any(not math.isnan(rung.reached.metric) for rung in every),
    }
    return render("ladder.html.j2", values, templates=templates)


def _verdict(ladder: Ladder, rung: Rung) -> str:
    met = ladder.meets(rung)
    if rung.missing or met is None:
        return "not measured"
    if not met:
        return "misses"
    return "reaches" if rung.runs_here else "reaches, but does not run here"


def _decibels(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.1f} dB" if math.isfinite(value) else ("no difference" if value > 0 else "nothing left")


def _points(ladder: Ladder, rungs: Sequence[Rung]) -> tuple[tuple[Place, str], ...]:
    known = [(rung, rung.cost.bit_operations) for rung in rungs if rung.cost is not None]
    spots = places(
        [(bits, rung.reached.sqnr_db, f"{rung.precision}: {_decibels(rung.reached.sqnr_db)}") for rung, bits in known]
    )
    kinds = ["chosen" if rung is ladder.chosen else "front" if ladder.meets(rung) else "other" for rung, _ in known]
    return tuple(zip(spots, kinds, strict=True))

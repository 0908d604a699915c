"""One self-contained HTML page about raised layers: quality against cost, the front, and what was chosen.

Pure: from what was measured to text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploykit.accuracy.search.raising import Raised, Trial
from deploykit.report.charts import Place, places
from deploykit.report.rendering import render

__all__ = ["render_mix"]


def render_mix(raised: Raised, front: Sequence[Trial], model_name: str, *, templates: Path | None = None) -> str:
    """The page."""
    trials = tuple(dict.fromkeys((*raised.trials, *front)))
    values = {
        "model_name": model_name,
        "raised": raised,
        "front": front,
        "points": _points(trials, front, raised.best),
        "best_words": _db(raised.best),
        "rows": [(trial, _db(trial)) for trial in front],
    }
    return render("mix.html.j2", values, templates=templates)


def _points(trials: Sequence[Trial], front: Sequence[Trial], best: Trial) -> tuple[tuple[Place, str], ...]:
    known = places([(trial.cost.bit_operations, trial.reached.sqnr_db, _title(trial)) for trial in trials])
    kinds = ["chosen" if trial == best else "front" if trial in front else "other" for trial in trials]
    return tuple(zip(known, kinds, strict=True))


def _title(trial: Trial) -> str:
    return f"{trial.count} layers in {trial.wide}: {_db(trial)}, {trial.cost.bit_operations:.3g} bit operations"


def _db(trial: Trial) -> str:
    return f"{trial.reached.sqnr_db:.1f} dB"

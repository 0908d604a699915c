"""One self-contained HTML page about a sensitivity analysis: the worst layers as bars, the worst tensors as a table.

Pure: from what was measured to text.
"""

from __future__ import annotations

import math
from pathlib import Path

from deploykit.accuracy.search.sensitivity import LayerLoss, Loss, Sensitivity, TensorLoss
from deploykit.report.charts import loss_bars, spark
from deploykit.report.rendering import render

__all__ = ["render_sensitivity"]

_MOST_LAYERS = 40
_MOST_TENSORS = 60


def render_sensitivity(found: Sensitivity, model_name: str, *, templates: Path | None = None) -> str:
    """The page; layers and tensors beyond the worst are counted and left out."""
    layers, tensors = found.worst_layers, found.worst_tensors
    values = {
        "model_name": model_name,
        "found": found,
        "totals": [(title, _words(loss)) for title, loss in _totals(found)],
        "samples": found.samples.described_for_humans,
        "bars": loss_bars([(row.layer.name, _series(row)) for row in layers[:_MOST_LAYERS]]),
        "tensors": [_tensor(row, found) for row in tensors[:_MOST_TENSORS]],
        "more_layers": max(0, len(layers) - _MOST_LAYERS),
        "more_tensors": max(0, len(tensors) - _MOST_TENSORS),
    }
    return render("sensitivity.html.j2", values, templates=templates)


def _totals(found: Sensitivity) -> list[tuple[str, Loss]]:
    return [
        ("everything quantized", found.whole),
        ("only weights", found.weights),
        ("only activations", found.activations),
    ]


def _series(row: LayerLoss) -> dict[str, float]:
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


def _words(loss: Loss | None) -> str:
    return "–" if loss is None else _decibels(loss.db)


def _decibels(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else ("no difference" if value > 0 else "nothing left")

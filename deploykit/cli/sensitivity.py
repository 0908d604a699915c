"""``deploykit sensitivity``: what quantizing each layer and each tensor costs, on the simulation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table
from deploykit.cli.progress import progress
from deploykit.system.whole_files import write_files

if TYPE_CHECKING:
    from deploykit.accuracy.search.sensitivity import LayerLoss, Loss, Sensitivity, TensorLoss

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("sensitivity", cls=Command)
@click.argument("model", type=_PATH)
@click.option("--encodings", type=_PATH, metavar="FILE", help="AIMET encodings, or a QDQ model.")
@click.option("--precision", metavar="NAME", help="Without encodings: make them from the data, for instance w8a8.")
@click.option("--float-tensors", type=_PATH, metavar="FILE", help="Names meant to be float16 (2.0.0 cannot say).")
@click.option("--data", type=_PATH, metavar="FILE|DIR", help="Inputs: .npz, .npy or a folder of them.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="At most that many; 8 by default.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of inputs that are made.")
@click.option("--seconds", type=click.FloatRange(min=0), metavar="S", help="Stop measuring then; ask again to go on.")
@click.option("--fresh", is_flag=True, help="Measure everything again, whatever an earlier run left.")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows of each table.")
@click.option("--report", type=_PATH, metavar="FILE.html", help="Write a page with charts as well.")
@click.option("--force", is_flag=True, help="Replace the page.")
def command(model: Path, top: int, report: Path | None, force: bool, fresh: bool, **asked: Any) -> int:
    """Measure what MODEL loses when only one layer or tensor is quantized, and when only that one stays float.

    On deploykit's own simulation, which equals AIMET's; only what lies behind a change is run again. The loss is the
    signal to noise of the output that suffers most. Encodings come from a file, from the model, or, with --precision,
    from the range of each tensor on the data. An analysis that was ended goes on where it was.
    """
    with progress() as tell:
        found = api.sensitivity(model, resume=not fresh, progress=tell, **asked)
    if report is not None:
        from deploykit.report.sensitivity_page import render_sensitivity

        write_files({report: render_sensitivity(found, model.name)}, force=force)
    emit(found.to_json, lambda: _text(found, top))
    return 0


def _text(found: Sensitivity, top: int) -> str:
    lines = [
        f"{found.precision}: {_db(found.whole)} with everything quantized, {_db(found.weights)} with only weights, "
        f"{_db(found.activations)} with only activations",
        f"on {found.samples.described_for_humans}, {found.used} measured on",
        "",
        table([_layer(row, found) for row in found.worst_layers[:top]], header=_LAYERS),
        "",
        table([_tensor(row, found) for row in found.worst_tensors[:top]], header=_TENSORS),
    ]
    if str(found.samples.label) == "arbitrary":
        lines.append("the inputs are made up: this order is no evidence; give --data")
    if found.unmeasured:
        lines.append(f"the budget left {found.unmeasured} measurements open; the same command goes on with them")
    return "\n".join(lines)


_LAYERS = ("alone", "weights", "activations", "gain if float", "layer")
_TENSORS = ("alone", "gain if float", "own grid", "range", "outliers", "kind", "tensor")


def _layer(row: LayerLoss, found: Sensitivity) -> tuple[str, ...]:
    name = f"{row.layer.name} ({row.layer.op_type})"
    return _db(row.alone), _db(row.weights), _db(row.activations), _gain(row.without, found), name


def _tensor(row: TensorLoss, found: Sensitivity) -> tuple[str, ...]:
    shape = row.statistics
    reach = "-" if shape is None else f"{shape.low:.4g} .. {shape.high:.4g}"
    share = "-" if shape is None else f"{shape.outliers:.2%}"
    own = _decibels(row.own_db)
    return _db(row.alone), _gain(row.without, found), own, reach, share, f"{row.kind} {row.dtype}", row.name


def _gain(loss: Loss | None, found: Sensitivity) -> str:
    difference = math.nan if loss is None else loss.db - found.whole.db
    return f"{difference:+.2f} dB" if math.isfinite(difference) else "-"


def _db(loss: Loss | None) -> str:
    return "-" if loss is None else _decibels(loss.db)


def _decibels(value: float) -> str:
    return f"{value:.2f} dB" if math.isfinite(value) else ("no loss" if value > 0 else "nothing left")

"""``deploykit locate``: the first operator at which two executions of a model diverge."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table
from deploykit.cli.progress import progress

if TYPE_CHECKING:
    from deploykit.accuracy.search.locating import Located, TensorView

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("locate", cls=Command)
@click.argument("model", type=_PATH)
@click.argument("candidate", type=_PATH, required=False)
@click.option("--encodings", type=_PATH, metavar="FILE", help="Compare with MODEL's own simulation instead.")
@click.option("--data", type=_PATH, metavar="FILE|DIR", help="Inputs: .npz, .npy or a folder of them.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="At most that many; random: 2 by default.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--threshold", type=float, default=20.0, show_default=True, metavar="DB", help="Below it a tensor is off."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="Name the nearest operator known by then.",
)
def command(
    model: Path,
    candidate: Path | None,
    encodings: Path | None,
    data: Path | None,
    samples: int | None,
    seed: int,
    threshold: float,
    time_limit: float,
) -> int:
    """Run MODEL and CANDIDATE (or MODEL's simulation) and name the first operator whose output is off.

    First means that everything the operator reads still agrees. Tensors are matched by name; behind a TopK rows are
    put in the same order first. Exit status 1 when an output of the model is off.
    """
    with progress() as tell:
        tell("comparing")
        found = api.locate(
            model,
            candidate,
            encodings=encodings,
            data=data,
            samples=samples,
            seed=seed,
            threshold_db=threshold,
            time_limit=time_limit,
        )
    emit(found.to_json(), lambda: _text(found))
    return 0 if found.first is None else 1


def _text(found: Located) -> str:
    seen = f"{found.compared} tensors compared in {found.rounds} rounds, {len(found.hidden)} not comparable"
    seen += ", the budget ended before the search did" if found.exhausted else ""
    if found.first is None:
        views, head = found.outputs, f"no output is below {found.threshold_db:g} dB"
    else:
        views = (*found.first.inputs, found.first.output)
        head = f"first divergence: {found.first.op_type} {found.first.node}, output {found.first.output.name}"
        head += "" if found.first.culprit is None else f", from {found.first.culprit}"
    rows = [(_db(view.sqnr_db), _side(view, 0), _side(view, 1), _name(view)) for view in views]
    return "\n".join([head, table(rows, header=("SQNR dB", "left range", "right range", "tensor")), seen])


def _name(view: TensorView) -> str:
    return f"{view.name} (rows reordered, {view.lost:.0%} without partner)" if view.reordered else view.name


def _side(view: TensorView, side: int) -> str:
    low, high = (view.left_range, view.right_range)[side]
    return f"{low:.5g} .. {high:.5g}" if math.isfinite(low) else "-"


def _db(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else ("equal" if value > 0 else "none")

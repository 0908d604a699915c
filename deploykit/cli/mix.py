"""``deploykit mix``: the fewest layers in a wider type that reach a goal, as new encodings."""

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
    from deploykit.accuracy.search.raising import Trial
    from deploykit.flow.mixing_layers import Mixed

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("mix", cls=Command)
@click.argument("model", type=_PATH)
@click.option("--goal", required=True, help="sqnr>=30; with a metric drop<=1%, drop<=0.5 or metric>=0.75.")
@click.option("--encodings", type=_PATH, metavar="FILE", help="AIMET encodings, or a QDQ model.")
@click.option("--precision", metavar="NAME", help="Without encodings: make them from the data, for instance w8a8.")
@click.option("--float-tensors", type=_PATH, metavar="FILE", help="Names meant to be float16 (2.0.0 cannot say).")
@click.option("--data", type=_PATH, required=True, metavar="FILE|DIR", help="Inputs: .npz, .npy or a folder of them.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="At most that many; 8 by default.")
@click.option("--to", type=click.Choice(["float16", "int16"]), help="The wider type. Default: the target's best.")
@click.option("--target", metavar="DEVICE", help="Raise only to what this device mixes with integers.")
@click.option("--sdk", metavar="VERSION", help="With --target: series (2.33) or build.")
@click.option("--metric", metavar="MODULE:FUNCTION", help="Your own measure (docs/metrics.md).")
@click.option("--metric-command", metavar="COMMAND", help="The same as a program; {outputs} and {references}.")
@click.option("--references", type=_PATH, metavar="FILE|DIR", help="For the measure, instead of the float outputs.")
@click.option("--lower-is-better", is_flag=True, help="Of the measure: for error rates and perplexities.")
@click.option("--report", type=_PATH, metavar="FILE.html", help="Write a page with quality against cost as well.")
@click.option("-o", "--out", type=_PATH, metavar="FILE", help="Write the new encodings (1.0.0).")
@click.option("--force", is_flag=True, help="Replace files.")
def command(model: Path, report: Path | None, out: Path | None, force: bool, **asked: Any) -> int:
    """Raise the most sensitive layers of MODEL to float16 or 16-bit integers, as few as reach the goal (LiteMP).

    Layers are ordered by what quantizing each alone costs; the smallest number that reaches the goal is found by
    bisection on the simulation. What cannot stay behind is raised with them: moved data, factors of a product. Exit
    status 1 when no number of layers reaches the goal.
    """
    with progress() as tell:
        found = api.mix(model, front=report is not None, progress=tell, **asked)
    files = {} if out is None else {out: found.text}
    if report is not None:
        from deploykit.report.mix_page import render_mix

        files[report] = render_mix(found.raised, found.front, model.name)
    write_files(files, force=force)
    emit(found.to_json, lambda: _text(found, out))
    return 0 if found.raised.met else 1


def _text(found: Mixed, out: Path | None) -> str:
    best = found.raised.best
    rows = [_row(trial, trial is best) for trial in found.raised.trials]
    lines = [table(rows, header=("layers", "tensors", "SQNR", "metric", "borders", found.raised.goal, "")), ""]
    lines += [f"raised to {best.wide}: {', '.join(best.layers) or 'nothing'}"]
    if not found.raised.met:
        lines.append(f"no number of layers in {best.wide} reaches {found.raised.goal}: this is the best")
    if str(found.sensitivity.samples.label) == "arbitrary":
        lines.append("the inputs are made up: these numbers are no evidence")
    return "\n".join([*lines, *([] if out is None else [f"written to {out}"])])


def _row(trial: Trial, chosen: bool) -> tuple[object, ...]:
    metric = "-" if math.isnan(trial.reached.metric) else f"{trial.reached.metric:.6g}"
    reached = trial.reached.sqnr_db
    shown = f"{reached:.2f} dB" if math.isfinite(reached) else ("no loss" if reached > 0 else "nothing left")
    met = "yes" if trial.met else "no"
    return trial.count, len(trial.tensors), shown, metric, trial.borders, met, "chosen" if chosen else ""

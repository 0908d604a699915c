"""``deploykit ladder``: every precision of a float model measured, explained, and the next step taken."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, findings_text, table
from deploykit.cli.progress import progress
from deploykit.system.whole_files import write_files

if TYPE_CHECKING:
    from deploykit.answers.precision_advice import Conclusion
    from deploykit.flow.ladder import Ladder, Rung, Step
    from deploykit.flow.learned_weights import LearnedStep
    from deploykit.flow.simulated_ladder import SimulatedLadder

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("ladder", cls=Command)
@click.argument("model", type=_PATH)
@click.option("--goal", help="right (the default), kept>=95%, sqnr>=30; with a metric drop<=1%, metric>=0.75.")
@click.option("--data", type=_PATH, metavar="FILE|DIR", help="Inputs: .npz, .npy or a folder of them.")
@click.option("--samples", type=click.IntRange(min=2), metavar="N", help="At most that many; 16 by default.")
@click.option("--target", metavar="DEVICE", help="Raise only to what this device mixes with integers.")
@click.option("--sdk", metavar="VERSION", help="With --target: series (2.33) or build.")
@click.option("--metric", metavar="MODULE:FUNCTION", help="Your own measure (docs/metrics.md).")
@click.option("--metric-command", metavar="COMMAND", help="The same as a program; {outputs} and {references}.")
@click.option("--references", type=_PATH, metavar="FILE|DIR", help="For the measure, instead of the float outputs.")
@click.option("--lower-is-better", is_flag=True, help="Of the measure: for error rates and perplexities.")
@click.option("--report", type=_PATH, metavar="FILE.html", help="Write the story as one page.")
@click.option("--force", is_flag=True, help="Replace the page.")
def command(model: Path, report: Path | None, force: bool, **asked: Any) -> int:
    """Measure fp16, w16a16, w8a16, w4a16 and w8a8 of the float MODEL on the simulation, and say what that means.

    Ranges come from one half of the data, numbers from the other. Where the conclusion is that some layers need more
    bits, the fewest that reach the goal are found ('deploykit mix'). Exit status 1 when nothing reaches
    the goal, or the data was not prepared as in training.
    """
    with progress() as tell:
        found = api.ladder(model, progress=tell, **asked)
    if report is not None:
        from deploykit.flow.ladder_page import render_ladder

        write_files(
            {report: render_ladder(found.ladder, model.name, _samples(found), findings=found.findings)}, force=force
        )
    emit(found.to_json, lambda: _text(found))
    return found.exit_status


def _samples(found: SimulatedLadder) -> str:
    made = found.samples.described_for_humans
    if not found.held_out:
        return f"{made}, ranges and numbers of the same"
    return f"{made}, ranges of {found.seen} and numbers of the other {found.measured}"


def _text(found: SimulatedLadder) -> str:
    ladder = found.ladder
    every = (*ladder.rungs, *(step.rung for step in ladder.steps))
    head = table(
        [_row(ladder, rung) for rung in every], header=("SQNR", "metric", "kept", str(ladder.goal), "candidate")
    )
    parts = [f"on {_samples(found)}", head]
    parts += [findings_text(found.findings)] if found.findings else []
    parts += map(_conclusion, ladder.advice.conclusions if ladder.advice is not None else ())
    parts += map(_step, ladder.steps)
    chosen = "nothing" if ladder.chosen is None else ladder.chosen.precision
    parts.append(f"chosen: {chosen}, {ladder.why}")
    if str(found.samples.label) == "arbitrary":
        parts.append("the inputs are made up: none of this is evidence; give --data")
    return "\n\n".join(parts)


def _conclusion(item: Conclusion) -> str:
    return "\n".join([item.says, *(f"  because {line}" for line in item.because), f"  next: {item.next}"])


def _step(step: Step | LearnedStep) -> str:
    return f"taken: {step.why}\n  {step.told}"


def _row(ladder: Ladder, rung: Rung) -> tuple[str, ...]:
    met = ladder.meets(rung)
    metric = "-" if math.isnan(rung.reached.metric) else f"{rung.reached.metric:.6g}"
    db = rung.reached.sqnr_db
    shown = (
        "-" if math.isnan(db) else f"{db:.2f} dB" if math.isfinite(db) else ("no loss" if db > 0 else "nothing left")
    )
    words = "not measured" if met is None else "yes" if met else "no"
    name = rung.precision if rung.runs_here else f"{rung.precision} (to compare with; not chosen)"
    count = rung.reached.counted
    kept = "-" if count is None else f"{count.share:.1%} of {sum(count.wanted)}, at least {count.surely:.1%}"
    why = rung.missing or ("" if met is not None else ladder.goal.why_open(rung.reached))
    return shown, metric, kept, words, f"{name}: {why}" if why else name

"""``deploykit simulate``: quantized inference as the encodings define it, against the float model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.accuracy.judge.thresholds import ASKED
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table
from deploykit.cli.progress import progress

if TYPE_CHECKING:
    from deploykit.accuracy.simulate.simulation import Simulation

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("simulate", cls=Command)
@click.argument("model", type=_PATH)
@click.option("--encodings", required=True, type=_PATH, metavar="FILE", help="AIMET encodings 0.6.1, 1.0.0 or 2.0.0.")
@click.option("--float-tensors", type=_PATH, metavar="FILE", help="Names meant to be float16 (2.0.0 cannot say).")
@click.option("--data", type=_PATH, metavar="FILE|DIR", help="Inputs: .npz, .npy or a folder of them.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="At most that many, spread over the data.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of inputs that are made.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Fail when any output is below.")
@click.option("--max-box-error", type=float, metavar="PX", help="Fail when boxes are farther off on average.")
@click.option("--min-cosine", type=float, metavar="RATIO", help="Fail when an embedding is below.")
@click.option("--min-agreement", type=float, metavar="SHARE", help="Fail when fewer labels agree.")
def command(model: Path, encodings: Path, min_sqnr: float | None, **asked: Any) -> int:
    """Run MODEL with the quantizers that the encodings describe, bit for bit as AIMET simulates them.

    Int32 biases are not simulated, as AIMET does not either. Without --data the inputs are points of their own
    encodings and domains where there are such, else random numbers, which are no measure of accuracy. Exit status 1
    when what was asked for is missed; the limits of the verdict stand beside its numbers.
    """
    with progress() as tell:
        tell("simulating")
        result = api.simulate(model, encodings, min_sqnr=min_sqnr, **asked)
    made = {} if result.samples is None else {"data": str(result.samples.label), "inputs": result.samples.to_json()}
    emit({**result.to_json(), **made}, lambda: _text(result))
    low = min_sqnr is not None and any(item.sqnr_db < min_sqnr for item in result.fidelity)
    missed = [number for number in (result.verdict.failures if result.verdict else ()) if number.limit.reason == ASKED]
    return 1 if low or missed else 0


def _text(result: Simulation) -> str:
    rows = [
        (item.name, _db(item.sqnr_db), f"{item.cosine:.6f}", f"{item.max_error:.6g}", _step(item.step))
        for item in result.fidelity
    ]
    head = table(rows, header=("output", "SQNR dB", "cosine", "largest error", "step"))
    on = f"{len(result.outputs)} samples" if result.samples is None else result.samples.described_for_humans
    lines = [head, f"{on}, {len(result.applied)} tensors quantized"]
    if result.verdict is not None:
        lines += result.verdict.lines()
    reasons = sorted(set(result.skipped.values()))
    for reason in reasons:
        count = sum(1 for why in result.skipped.values() if why == reason)
        lines.append(f"{count} entries not simulated: {reason}")
    return "\n".join(lines)


def _db(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else ("exact" if value > 0 else "none")


def _step(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"

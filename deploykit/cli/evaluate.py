"""``deploykit evaluate``: how close a candidate's outputs are to a baseline's, whole and per slice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, findings_text, table
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from deploykit.accuracy.judge.comparison import Comparison
    from deploykit.accuracy.judge.evaluation import Evaluation

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("evaluate", cls=Command)
@click.argument("positional", metavar="[BASELINE CANDIDATE]", nargs=-1, type=_PATH)
@click.option("--baseline", "--baseline_results_folder", type=_PATH, help="Outputs of the float model, or the model.")
@click.option("--candidate", "--quantized_results_folder", type=_PATH, help="Outputs to judge, or the model.")
@click.option("--data", type=_PATH, help="Inputs for two models: a folder of .npz or .npy files, or one such file.")
@click.option(
    "--model", type=_PATH, help="The float model: dead channels are traced back to the Concat that mixes ranges."
)
@click.option("--target", default="TARGET", help="The device, for the command that is proposed.")
@click.option("--slices", is_flag=True, help="Every slice of every axis.")
@click.option("--min-cosine", type=float, help="Fail when the worst sample is under it.")
@click.option("--min-psnr", type=float, help="Fail when the worst sample is under it, in dB.")
@click.option("--min-sqnr", type=float, help="Fail when the worst sample is under it, in dB.")
@click.option("--max-error", type=float, help="Fail when any element is farther off.")
@click.option("--max-box-error", type=float, metavar="PX", help="Instead of the table's limit for detections.")
@click.option("--min-agreement", type=float, metavar="SHARE", help="Instead of the table's limit for labels.")
def command(
    positional: tuple[Path, ...],
    baseline: Path | None,
    candidate: Path | None,
    slices: bool,
    **asked: Any,
) -> int:
    """Cosine, L2, PSNR, SSIM, SQNR and the largest error of every output, over two folders, two files or two models.

    Files are matched by name. --baseline and --candidate may stand in any order. With a model every output is judged by
    its kind as well. Exit status 1 when an output is dead or wrong, samples are missing, or a threshold is missed.
    """
    first, second = _sides(positional, baseline, candidate)
    found = api.evaluate(first, second, **asked)
    emit(found.to_json(slices=slices), lambda: _text(found, slices))
    return found.exit_status


def _sides(positional: tuple[Path, ...], baseline: Path | None, candidate: Path | None) -> tuple[Path, Path]:
    """Both sides by position or both by name; a mixture could swap them."""
    if len(positional) == 2 and baseline is None and candidate is None:
        return positional[0], positional[1]
    if not positional and baseline is not None and candidate is not None:
        return baseline, candidate
    raise UsageError(
        "give BASELINE CANDIDATE, or --baseline and --candidate",
        why="one side by position and one by name could be taken the wrong way round" if positional else "",
    )


def _text(found: Evaluation, slices: bool) -> str:
    comparison, findings = found.comparison, found.findings
    parts = [f"{comparison.samples} samples, {len(comparison.outputs)} outputs"]
    parts += [_metrics(comparison)] if comparison.outputs else ["nothing could be compared"]
    parts += ["\n".join(found.verdict.lines())] if found.verdict is not None else []
    parts += [_slices(comparison)] if slices else []
    parts += [findings_text(findings)] if findings else []
    return "\n\n".join(parts)


def _metrics(comparison: Comparison) -> str:
    rows = []
    for output in comparison.outputs.values():
        s = output.summary()
        rows.append(
            (
                output.name or "output",
                "x".join(map(str, output.shape)) or "scalar",
                f"{s['mean_cosine']:.6f} / {s['min_cosine']:.6f}",
                f"{s['mean_l2']:.5g} / {s['max_l2']:.5g}",
                f"{s['mean_psnr_db']:.3f} / {s['min_psnr_db']:.3f}",
                f"{s['mean_ssim']:.6f} / {s['min_ssim']:.6f}",
                f"{s['mean_sqnr_db']:.2f} / {s['min_sqnr_db']:.2f}",
                f"{s['max_max_error']:.5g}",
            )
        )
    header = ("output", "shape", "cosine mean/min", "L2 mean/max", "PSNR mean/min", "SSIM mean/min", "SQNR mean/min")
    return table(rows, header=(*header, "max error"))


def _slices(comparison: Comparison) -> str:
    rows = [
        (output.name or "output", axis.axis, index, f"{sqnr:.2f}", f"{worst:.5g}", "dead" if dead else "")
        for output in comparison.outputs.values()
        for axis in output.axes
        for index, (sqnr, worst, dead) in enumerate(zip(axis.sqnr_db, axis.worst, axis.dead, strict=True))
    ]
    return table(rows, header=("output", "axis", "slice", "SQNR dB", "max error", ""))

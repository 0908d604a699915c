"""``deploykit quantize``: encodings for a float model, made by a quantizer on calibration data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.requests import pair
from deploykit.cli.terminal import emit, findings_text, progress

if TYPE_CHECKING:
    from deploykit.flow.quantizing.command import Quantization

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command("quantize", cls=Command)
@click.argument("model", type=_PATH)
@click.option("--target", required=True, envvar="DEPLOYKIT_TARGET", metavar="DEVICE", help="Device id, chip or name.")
@click.option("--calibration", required=True, type=_PATH, metavar="DIR|FILE", help="Samples .npz, .npy, or images.")
@click.option(
    "--precision", metavar="NAME", help="w8a16, w8a8, w4a16, vint8, bf16 … or auto. Default: the quantizer's first."
)
@click.option("--goal", metavar="GOAL", help="What --precision auto must reach: right (the default), sqnr>=30 …")
@click.option("--metric", metavar="MODULE:FUNCTION", help="With --precision auto: your own measure (docs/quantize.md).")
@click.option("--metric-command", metavar="COMMAND", help="The same as a program; {outputs} and {references}.")
@click.option("--references", type=_PATH, metavar="FILE|DIR", help="For the measure, instead of the float outputs.")
@click.option("--with", "quantizer", metavar="ID", help="aimet, ort … Default: the best that is installed.")
@click.option("--sdk", metavar="VERSION", help="Series (2.33) or build. Default: the newest.")
@click.option("--backend", metavar="ID", help="Default: the device's first.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the quantizer; repeatable.")
@click.option("--time-limit", type=click.FloatRange(min=1), metavar="SECONDS", help="Stop the quantizer after so long.")
@click.option("-o", "--out", required=True, type=_PATH, metavar="DIR", help="The folder to write.")
@click.option("--force", is_flag=True, help="Replace a folder that stands there.")
def command(model: Path, options: tuple[str, ...], **given: Any) -> int:
    """Make encodings for a float MODEL with calibration data; 'deploykit package --precision' does it by itself.

    \b
    deploykit quantize model.onnx --target sm8650 --precision w8a16 --calibration frames/ -o quantized
    """
    with progress() as tell:
        done = api.quantize(model, options=[pair(text) for text in options], progress=tell, **given)
    emit(done.to_json(), lambda: _text(done))
    return done.exit_status


def _text(done: Quantization) -> str:
    lines = [findings_text(done.findings), ""]
    numbers = done.record.get("numbers")
    if numbers is not None:
        value = numbers["sqnr_db"]
        lines.append(f"simulated  {'no difference' if value is None else f'{value:.2f} dB'} against the float model")
    lines.append(f"quantizer  {done.record.get('toolchain') or done.record['quantizer']}")
    lines.append(f"folder     {done.folder} ({', '.join(done.files.values())}, report.md)")
    return "\n".join(lines)

"""``deploykit quantize``: encodings for a float model, made by a quantizer on calibration data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.options import argument, flag, option, pair, path
from deploykit.cli.terminal import emit, findings_text, progress
from deploykit.findings.records import Json

if TYPE_CHECKING:
    from deploykit.flow.quantizing.command import Quantization

__all__ = ["command"]


@click.command("quantize", cls=Command)
@argument("model")
@option("--target", "DEVICE", "Device id, chip or name.", required=True, envvar="DEPLOYKIT_TARGET")
@path("--calibration", "DIR|FILE", "Samples .npz, .npy, or images.", required=True)
@option("--precision", "NAME", "w8a16, w8a8, w4a16, vint8, bf16 … or auto. Default: the quantizer's first.")
@option("--goal", "GOAL", "What --precision auto must reach: right (the default), sqnr>=30 …")
@option("--metric", "MODULE:FUNCTION", "With --precision auto: your own measure (docs/quantize.md).")
@path("--references", "FILE|DIR", "For the measure, instead of the float outputs.")
@option("--with", "ID", "aimet, ort … Default: the best that is installed.", "quantizer")
@option("--sdk", "VERSION", "Series (2.33) or build. Default: the newest.")
@option("--backend", "ID", "Default: the device's first.")
@option("--option", "KEY=VALUE", "An option of the quantizer; repeatable.", "options", multiple=True)
@option("--time-limit", "SECONDS", "Stop the quantizer after so long.", type=click.FloatRange(min=1))
@path("-o", "DIR", "The folder to write.", "--out", required=True)
@flag("--force", "Replace a folder that stands there.")
def command(model: Path, options: tuple[str, ...], **given: Any) -> int:
    """Make encodings for a float MODEL with calibration data; 'deploykit package --precision' does it by itself.

    \b
    deploykit quantize model.onnx --target sm8650 --precision w8a16 --calibration frames/ -o quantized
    """
    with progress() as tell:
        done = api.quantize(model, options=[pair(text) for text in options], progress=tell, **given)
    asked = {name: given[name] for name in ("target", "sdk", "backend", "calibration")}
    emit(done, lambda: _text(done, asked))
    return done.exit_status


def _text(done: Quantization, asked: Json) -> str:
    lines = [findings_text(done.findings), ""]
    numbers = done.record.get("numbers")
    if numbers is not None and numbers["sqnr_db"] is not None:  # DK221 tells of no difference and of no signal left
        lines.append(f"simulated  {numbers['sqnr_db']:.2f} dB against the float model")
    lines.append(f"quantizer  {done.record.get('toolchain') or done.record['quantizer']}")
    lines.append(f"folder     {done.folder} ({', '.join(done.files.values())}, report.md)")
    kinds = ("model", "encodings") if "model" in done.files else ("qdq",)
    model, *encodings = (f"{done.folder / done.files[kind]}" for kind in kinds)
    words = ["deploykit", "package", model, *(word for name in encodings for word in ("--encodings", name))]
    words += [word for name, value in asked.items() if value for word in (f"--{name}", str(value))]
    lines.append(f"next       {shlex.join([*words, '-o', 'out'])}")
    return "\n".join(lines)

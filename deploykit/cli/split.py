"""``deploykit split``: models over the same weights in parts, each a model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table

if TYPE_CHECKING:
    from deploykit.encodings.split_files import PartReport

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("models", type=_PATH, nargs=-1, required=True, metavar="MODEL...")
@click.option("-o", "--out", type=_PATH, required=True, metavar="DIR", help="The folder to make.")
@click.option("--parts", type=click.IntRange(1), required=True, metavar="N", help="Into how many parts.")
@click.option("--encodings", type=_PATH, metavar="FILE", help="Quantization encodings of all models.")
def command(models: tuple[Path, ...], out: Path, parts: int, encodings: Path | None) -> int:
    """Cut every MODEL into N parts of like size, all at the same weights, where the fewest tensors cross.

    Each part is an ordinary model for 'deploykit package'; what one part makes and the next reads has one name in both.

    \b
    deploykit split prefill.onnx decode.onnx --parts 4 -o parts
    """
    reports = api.split(models, out, parts=parts, encodings=encodings)
    emit({"parts": [report.to_json() for report in reports]}, lambda: _text(reports))
    return 0


def _text(reports: tuple[PartReport, ...]) -> str:
    rows = [(report.model, f"{report.weight_bytes:,}", len(report.inputs), len(report.outputs)) for report in reports]
    return table(rows, header=("part", "bytes of weights", "inputs", "outputs"))

"""``deploykit encodings apply`` and ``extract``: encodings into a model as Q/DQ, and back; the group adds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from deploykit.cli.frame import Command
from deploykit.cli.output import emit
from deploykit.system.whole_files import write_files

if TYPE_CHECKING:
    from deploykit.encodings.files import Applied, Removed

__all__ = ["apply", "extract"]

_PATH = click.Path(path_type=Path)


@click.command("apply", cls=Command)
@click.argument("file", type=_PATH)
@click.option("--model", type=_PATH, required=True, metavar="FILE", help="The float model.")
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="The QDQ model to write.")
@click.option(
    "--bias",
    type=click.Choice(["float", "encoded", "int32"]),
    default="float",
    show_default=True,
    help="Biases of linear layers: as they are, by their int32 entries, or all as int32.",
)
@click.option("--signed", is_flag=True, help="Keep signed activation grids; without it they become unsigned ones.")
@click.option("--force", is_flag=True, help="Replace a file that stands there.")
def apply(
    file: Path, model: Path, output: Path, bias: Literal["float", "encoded", "int32"], signed: bool, force: bool
) -> int:
    """Write the encodings of FILE into a model as QuantizeLinear and DequantizeLinear.

    Entries that ONNX cannot store are listed with the reason; exit status 1 then.
    """
    from deploykit.encodings.files import apply_encodings

    done = apply_encodings(model, file, output, bias=bias, signed=signed, force=force)
    emit(done.to_json(), lambda: _applied_text(done))
    return int(bool(done.skipped))


@click.command("extract", cls=Command)
@click.argument("model", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="The encodings file to write.")
@click.option("--to", "version", default="2.0.0", show_default=True, metavar="VERSION", help="1.0.0 or 2.0.0.")
@click.option("--float-model", type=_PATH, metavar="FILE", help="Write the model without Q/DQ here.")
@click.option("--force", is_flag=True, help="Replace files that stand there.")
def extract(model: Path, output: Path, version: str, float_model: Path | None, force: bool) -> int:
    """Take Q/DQ out of MODEL: an encodings file and, if wanted, the float model."""
    from deploykit.encodings.files import extract_encodings

    done = extract_encodings(model, float_model, version=version, force=force)
    write_files({output: done.encodings}, force=force)
    emit({**done.to_json(), "encodings": str(output)}, lambda: _extracted_text(done, output))
    return int(bool(done.kept))


def _applied_text(done: Applied) -> str:
    lines = [f"{name}: not written, {reason}" for name, reason in done.skipped.items()]
    return "\n".join([*lines, f"{len(done.placed)} tensors are quantized in {done.output}"])


def _extracted_text(done: Removed, output: Path) -> str:
    lines = [f"{name}: left in the model, {reason}" for name, reason in done.kept.items()]
    return "\n".join([*lines, f"{done.count} entries written to {output}"])

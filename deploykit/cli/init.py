"""``deploykit init``: a deploykit.toml for a folder of models, made by looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit

if TYPE_CHECKING:
    from deploykit.fleet.scouting import Scouted

__all__ = ["command"]


@click.command("init", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--target", "targets", required=True, multiple=True, metavar="DEVICE", help="Device id or name; repeatable."
)
@click.option("--force", is_flag=True, help="Replace the deploykit.toml that stands there.")
def command(folder: Path, targets: tuple[str, ...], force: bool) -> None:
    """Write FOLDER/deploykit.toml: every model below FOLDER for every target, with what lies beside the models.

    \b
    deploykit init models --target sm8650 --target vek385 && deploykit matrix models/deploykit.toml
    """
    file, scouted = api.init(folder, targets=targets, force=force)
    emit({"file": str(file), **scouted.to_json()}, lambda: _text(file, scouted))


def _text(file: Path, scouted: Scouted) -> str:
    lines = [f"{model.name}: {model.path}{_beside(model.encodings, model.calibration)}" for model in scouted.models]
    lines += [f"left out: {name}: {why}" for name, why in scouted.skipped]
    return "\n".join([*lines, f"written to {file}; next: deploykit matrix {file}"])


def _beside(*names: str) -> str:
    found = [name for name in names if name]
    return f" with {' and '.join(found)}" if found else ""

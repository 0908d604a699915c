"""``deploykit bundle``: a failing case as one file for a report, and back."""

from __future__ import annotations

from pathlib import Path

import click

from deploykit.cli.frame import Command, Group
from deploykit.cli.output import emit
from deploykit.cli.plain import plain
from deploykit.packages.bundling import Bundle, open_bundle, pack_bundle

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.group("bundle", cls=Group)
def command() -> None:
    """A failing case as one file for a report: no weights, no paths, no names of people or machines."""


@command.command("pack", cls=Command)
@click.argument("model", type=_PATH)
@click.option("-o", "--out", type=_PATH, required=True, metavar="FILE.zip", help="The file to make.")
@click.option("--encodings", type=_PATH, metavar="FILE", help="Its encodings.")
@click.option("--log", "logs", type=_PATH, multiple=True, metavar="FILE", help="A log of what failed; repeatable.")
@click.option("--target", metavar="DEVICE", help="The device that was asked for.")
@click.option("--sdk", metavar="VERSION", help="The release that was asked for.")
@click.option("--note", metavar="TEXT", help="What was done, and what was expected.")
@click.option("--numbers", is_flag=True, help="Tensors and nodes are called by numbers.")
def pack(
    model: Path,
    out: Path,
    encodings: Path | None,
    logs: tuple[Path, ...],
    target: str | None,
    sdk: str | None,
    note: str | None,
    numbers: bool,
) -> int:
    """Write MODEL without its weights, and what belongs to the case, into one file; it says what is inside.

    \b
    deploykit bundle pack model.onnx --encodings model.encodings --log convert.log -o case.zip
    """
    from deploykit.cli import version_lines

    asked = {"target": target, "sdk": sdk, "note": note}
    made = pack_bundle(
        model,
        out,
        encodings=encodings,
        logs=logs,
        asked={key: value for key, value in asked.items() if value},
        versions="\n".join([*version_lines(), ""]),
        numbered=numbers,
    )
    emit(made.to_json(), lambda: _text(made))
    return 0


@command.command("unpack", cls=Command)
@click.argument("bundle", type=_PATH)
@click.option("-o", "--out", type=_PATH, required=True, metavar="DIR", help="The folder to make.")
def unpack(bundle: Path, out: Path) -> int:
    """Unpack BUNDLE so that its model can be checked, planned and packaged: every weight is one.

    \b
    deploykit bundle unpack case.zip -o case
    deploykit check case/model.onnx --encodings case/model.encodings --target sm8650
    """
    made = open_bundle(bundle, out)
    emit(made.to_json(), lambda: _text(made))
    return 0


def _text(made: Bundle) -> str:
    lines = [f"{name}: {plain(text)}" for name, text in made.contents.items()]
    return "\n".join([str(made.path), *(f"  {line}" for line in lines)])

"""``deploykit explain``: a package in words."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import columns, emit
from deploykit.cli.plain import plain

if TYPE_CHECKING:
    from deploykit.report.explaining import Explanation

__all__ = ["command"]

_COLORS = {"ship it": "green", "do not ship it": "red", "not judged": "yellow"}


@click.command(cls=Command)
@click.argument("package", type=click.Path(path_type=Path))
def command(package: Path) -> int:
    """Say in words what PACKAGE is: can it be shipped, what was decided and why, what was changed and measured.

    It reads the manifest alone; 'deploykit verify' looks at the files.

    \b
    deploykit explain out
    """
    told = api.explain(package)
    emit(told.to_json, lambda: _text(told))
    return 0


def _text(told: Explanation) -> str:
    word = click.style(str(told.shipping.word), fg=_COLORS[told.shipping.word], bold=True)
    lines = [click.style(plain(told.title), bold=True), *_wrapped(f"{word}: {plain(told.shipping.why)}")]
    lines += _wrapped(f"evidence: {plain(told.shipping.evidence)}") if told.shipping.evidence else []
    lines += _wrapped(f"next: {plain(told.shipping.next)}") if told.shipping.next else []
    for chapter in told.chapters:
        lines += ["", click.style(chapter.title, bold=True)]
        for line in chapter.lines:
            lines += _wrapped(plain(line), "  ")
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> list[str]:
    following = f"{indent}  "
    return textwrap.wrap(text, columns(100), initial_indent=indent, subsequent_indent=following, break_on_hyphens=False)

"""``deploykit options``: what package, plan and check take, and whose option it is."""

from __future__ import annotations

from collections.abc import Iterable

import click

from deploykit.answers.option_pages import OptionEntry, every_option, find_options
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table

__all__ = ["command"]


@click.command("options", cls=Command)
@click.argument("name", required=False)
def command(name: str | None) -> int:
    """Every option of package, plan and check, or those called NAME: what it takes, and which backend has it."""
    entries = every_option()
    shown = entries if name is None else find_options(name, entries)
    emit({"options": [entry.to_json() for entry in shown]}, lambda: _text(shown))
    return 0


def _text(entries: Iterable[OptionEntry]) -> str:
    rows = [
        (entry.spec.flag, " ".join(entry.backends) or "every backend", entry.spec.expects, entry.spec.help)
        for entry in entries
    ]
    return table(rows, header=("OPTION", "OF", "TAKES", "WHAT"))

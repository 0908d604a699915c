"""``deploykit rule``: the page of one rule, or the list."""

from __future__ import annotations

from pathlib import Path

import click

from deploykit.answers.rule_pages import all_rules, find_rule, rule_page, write_pages
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table
from deploykit.flow.rules import CORE_REGISTRIES

__all__ = ["command"]


@click.command("rule", cls=Command)
@click.argument("code", required=False)
@click.option("--write", type=click.Path(path_type=Path), metavar="DIR", help="Write the pages of all rules there.")
def command(code: str | None, write: Path | None) -> int:
    """The page of one rule by CODE or name, or the list of all rules."""
    entries = all_rules(CORE_REGISTRIES)
    if write is not None:
        changed = write_pages(write, entries)
        emit({"changed": list(changed)}, lambda: "\n".join(changed) or "every page is in step")
        return 0
    if code is not None:
        entry = find_rule(code, entries)
        emit({"rule": entry.to_json()}, lambda: rule_page(entry))
        return 0
    rows = [(entry.rule.code, entry.rule.severity, entry.rule.slug, entry.rule.what) for entry in entries]
    emit(
        {"rules": [entry.to_json() for entry in entries]},
        lambda: f"{table(rows, header=('CODE', 'SEVERITY', 'NAME', 'WHAT'))}\n{len(rows)} rules",
    )
    return 0

"""``deploykit rule``: the page of one rule, or the list."""

from __future__ import annotations

import click

from deploykit.answers.rule_pages import all_rules, find_rule, rule_page
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table
from deploykit.flow.rules import CORE_REGISTRIES

__all__ = ["command"]


@click.command("rule", cls=Command)
@click.argument("code", required=False)
def command(code: str | None) -> int:
    """The page of one rule by CODE or name, or the list of all rules."""
    entries = all_rules(CORE_REGISTRIES)
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

"""``deploykit rule``: the page of one rule, or the list."""

from __future__ import annotations

import click

from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table

__all__ = ["command"]


@click.command("rule", cls=Command)
@click.argument("code", required=False)
def command(code: str | None) -> int:
    """The page of one rule by CODE or name, or the list of all rules."""
    from deploykit.ruledocs import all_rules, find_rule, rule_page

    if code is not None:
        entry = find_rule(code)
        emit({"rule": entry.to_json()}, lambda: rule_page(entry))
        return 0
    entries = all_rules()
    rows = [(entry.rule.code, entry.rule.severity, entry.rule.slug, entry.rule.what) for entry in entries]
    emit(
        {"rules": [entry.to_json() for entry in entries]},
        lambda: f"{table(rows, header=('CODE', 'SEVERITY', 'NAME', 'WHAT'))}\n{len(rows)} rules",
    )
    return 0

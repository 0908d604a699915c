"""``deploykit tables check``: are the tables in order, row by row?"""

from __future__ import annotations

from datetime import date

import click

from deploykit.answers.table_audit import Audit, audit_tables
from deploykit.cli.frame import Group
from deploykit.cli.output import emit, table
from deploykit.errors import UsageError

__all__ = ["command"]


@click.group("tables", cls=Group)
def command() -> None:
    """The tables of what SDKs, tools and devices can do: looked after, not asked (that is compat)."""


@command.command("check")
@click.option("--today", metavar="DATE", default="", help="The day to measure the age of sources from. Default: today.")
def check(today: str) -> int:
    """Check that every source names a place, none was compared more than a year ago, no two rows contradict.

    It looks nothing up. Exit status 1 when something is not in order.
    """
    found = audit_tables(_day(today))
    emit(found.to_json, lambda: _text(found))
    return int(bool(found.problems))


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text) if text else date.today()
    except ValueError:
        raise UsageError(f"{text!r} is no date", next="a date looks like 2026-11-22") from None


def _text(found: Audit) -> str:
    forms = ", ".join(f"{count} {form}" for form, count in found.forms.items())
    lines = [f"{found.rows} rows and {found.rules} rules; their sources: {forms}"]
    if found.problems:
        cells = [(problem.kind, problem.subject, problem.detail) for problem in found.problems]
        lines.append(table(cells, header=("kind", "row", "what is not in order")))
    return "\n".join([*lines, f"{len(found.problems)} problems"])

"""How results reach a person or a program: one JSON value on stdout, or text.

It formats; it decides nothing and knows no command.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from deploykit.cli.frame import settings
from deploykit.cli.plain import defused, plain
from deploykit.findings import Finding, FindingGroup, group_findings, headline, listed, sort_findings

__all__ = ["columns", "emit", "findings_text", "status_lines", "table"]


if TYPE_CHECKING:
    from deploykit.backend.status import Status

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}


def emit(value: Mapping[str, Any] | Callable[[], Mapping[str, Any]], text: str | Callable[[], str]) -> None:
    """Print ``value`` as JSON when --json was given, else the text; of two functions only the wanted one is called."""
    if settings().json:
        made = value() if callable(value) else value
        click.echo(json.dumps({"schema": 1, **made}, indent=1, ensure_ascii=not _is_utf8(), allow_nan=False))
    else:
        click.echo(defused((text if isinstance(text, str) else text()).rstrip("\n")))


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str]) -> str:
    """Aligned columns under a header; the last column is wrapped to the terminal."""
    cells = [[str(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max([len(title), *(len(row[i]) for row in cells)]) for i, title in enumerate(header)]
    room = max(30, columns(120) - sum(widths[:-1]) - 2 * (len(widths) - 1))
    lines = list(_row(header, widths, room))
    for row in cells:
        lines.extend(_row(row, widths, room))
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def columns(otherwise: int) -> int:
    """The width of the terminal, as shutil finds it; importing shutil costs more than a query may."""
    try:
        return int(os.environ.get("COLUMNS", "")) or otherwise
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns if sys.__stdout__ else otherwise
    except (OSError, ValueError):
        return otherwise


def _row(cells: Sequence[str], widths: Sequence[int], room: int) -> Iterator[str]:
    left = "  ".join(cell.ljust(width) for cell, width in zip(cells[:-1], widths, strict=False))
    indent = len(left) + 2 if left else 0
    wrapped = textwrap.wrap(cells[-1], room) or [""]
    yield f"{left}{'  ' if left else ''}{wrapped[0]}".rstrip()
    for line in wrapped[1:]:
        yield " " * indent + line


def findings_text(findings: Iterable[Finding]) -> str:
    """Findings for people: open ones by rule with what to do next, then one line for all that is handled.

    With -v every single one is listed, the handled ones with what the plan does about them.
    """
    known = sort_findings(findings)
    if not known:
        return "no findings"
    still_open, handled = group_findings(known)
    if settings().verbosity > 0:
        lines = [_finding(finding) for finding in known]
    else:
        lines = [_group(group) for group in still_open]
        lines += [_handled(handled)] if handled else []
    return "\n".join([*lines, headline(known)])


def _group(group: FindingGroup) -> str:
    others = f" (and {group.others})" if group.others else ""
    return "\n".join([_line(group.first) + others, *_advice(group.first)])


def _finding(finding: Finding) -> str:
    return "\n".join([_line(finding), *_advice(finding)])


def _line(finding: Finding) -> str:
    """An error that is handled is no longer red: it is no error any more."""
    open_color = _COLORS[finding.severity] if finding.handled is None else "green"
    word = click.style(f"{finding.severity}", fg=open_color, bold=finding.blocks)
    return f"{word} {finding.code} {finding.slug}: {plain(finding.message)}"


def _advice(finding: Finding) -> list[str]:
    if finding.handled is not None:
        return [f"    handled: {finding.handled}"]
    return [f"    next: {finding.hint}"] if finding.hint else []


def _handled(groups: Sequence[FindingGroup]) -> str:
    count = sum(len(group.findings) for group in groups)
    rules = [f"{group.first.code} {group.first.slug}" for group in groups]
    return f"{click.style(f'{count} handled', fg='green')}: {listed(rules, most=6)} (-v lists them)"


def status_lines(status: Status) -> list[str]:
    """The three facts about a package, one line each: what is bad red, what is good green, what is open yellow."""
    bad = {
        "intact": not status.intact,
        "compiled": status.compiled.state == "refused",
        "right": status.right.state == "no",
    }
    lines = []
    for key, words in status.lines():
        color = (
            "red"
            if bad[key] or (key == "right" and status.right.broken)
            else "green"
            if words[:3] == "yes"
            else "yellow"
        )
        lines.append(f"{key:<10} {click.style(plain(words), fg=color, bold=bad[key])}")
    return lines

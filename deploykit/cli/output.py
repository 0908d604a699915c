"""How results reach a person or a program: one JSON value on stdout, or text; progress on stderr, on a terminal only.

It formats; it decides nothing and knows no command.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from deploykit.cli.frame import settings
from deploykit.findings import Finding, sort_findings, summarize

__all__ = ["emit", "findings_text", "progress", "table"]

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}


def emit(value: Mapping[str, Any], text: str | Callable[[], str]) -> None:
    """Print ``value`` as JSON when --json was given, else the text (made only when it is needed)."""
    if settings().json:
        click.echo(json.dumps({"schema": 1, **value}, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        click.echo((text if isinstance(text, str) else text()).rstrip("\n"))


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str]) -> str:
    """Aligned columns under a header; the last column is wrapped to the terminal."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(title), *(len(row[i]) for row in cells)]) for i, title in enumerate(header)]
    room = max(30, _columns(120) - sum(widths[:-1]) - 2 * (len(widths) - 1))
    lines = list(_row(header, widths, room))
    for row in cells:
        lines.extend(_row(row, widths, room))
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def _columns(otherwise: int) -> int:
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
    """Findings for people: the blocking ones first, each with what to do next, and a closing count."""
    ordered = sort_findings(findings)
    if not ordered:
        return "no findings"
    counts = ", ".join(f"{count} {name}" for name, count in summarize(ordered).items() if count)
    return "\n".join([*(_finding(finding) for finding in ordered), counts])


def _finding(finding: Finding) -> str:
    word = click.style(f"{finding.severity}", fg=_COLORS[finding.severity], bold=finding.blocks)
    lines = [f"{word} {finding.code} {finding.slug}: {finding.message}"]
    if finding.handled is not None:
        lines.append(f"    handled: {finding.handled}")
    elif finding.hint:
        lines.append(f"    next: {finding.hint}")
    return "\n".join(lines)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows one line of news, overwritten by the next; silent unless stderr is a terminal."""
    live = sys.stderr.isatty() and settings().verbosity >= 0 and not settings().json
    width = _columns(100) - 1

    def show(line: str) -> None:
        if live:
            sys.stderr.write("\r\x1b[2K" + line[:width])
            sys.stderr.flush()

    try:
        yield show
    finally:
        if live:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

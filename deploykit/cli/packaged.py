"""The text about a package that was made: the answer, the facts, open findings, what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit.cli.frame import settings
from deploykit.cli.terminal import finding_lines, findings_text, plain, status_lines
from deploykit.findings import Findings, Severity, group_findings
from deploykit.report.explaining import shipping

if TYPE_CHECKING:
    from deploykit.flow.pipeline import Packaged

__all__ = ["package_text"]

_MOST_LINES = 12
_CHOSEN_HERE = frozenset({"input-size-chosen"})  # infos about choices that the reader may want otherwise
_MOST_LETTERS = 160  # the most letters of a message: two lines of a terminal, with its code


def package_text(packaged: Packaged, folder: Path | None = None) -> str:
    """The answer in one line, the facts, findings that ask something of the
    reader, what to do next; twelve lines at most.

    With -v all findings and reasons, as in the report. ``folder`` is the package's place to show.
    """
    is_all, findings = settings().verbosity > 0, packaged.findings
    if packaged.package is None:
        errors = [findings_text(findings)] if is_all else _asking(findings, _MOST_LINES - 1, "-v lists them")
        return "\n".join([click.style("no package was written", fg="red", bold=True), *errors])
    folder = folder or packaged.package
    told = shipping(packaged.status, findings, folder)
    color = {"ship it": "green", "do not ship it": "red"}.get(str(told.word), "yellow")
    plan, route = packaged.plan, packaged.plan.route
    assert route is not None
    # The full reason is shown beside its fact.
    why = told.why
    for reason in (packaged.status.right.why, packaged.status.compiled.why):
        reason = reason.removeprefix("not judged: ")
        why = why.removesuffix(f": {reason}") if reason and not is_all else why
    lines = [f"{click.style(str(told.word), fg=color, bold=True)}: {plain(why)}", *status_lines(packaged.status)]
    lines += [] if packaged.estimate is None else [f"time       {packaged.estimate.described}"]
    lines += [f"assumed    {plan.assumed}"] if plan.assumed else []
    lines.append(f"route      {route.id} ({route.confidence}){f': {route.why}' if is_all else ''}")
    ending = [f"package    {folder} (open report.html)"]
    if is_all:
        said = [findings_text(findings)]
        ran, left = (", ".join(steps) or "nothing" for steps in (packaged.executed, packaged.generated))
        lines.append("")
        ending = ["", f"executed   {ran}", f"generated  {left}", f"digest     {packaged.digest}", *ending]
    else:
        said = _asking(findings, _MOST_LINES - len(lines) - 2 - told.next.count("; "), "-v and report.html list them")
    if told.next and f"next: {told.next}" not in "\n".join(said):  # the finding that it answers may name it already
        ways = told.next.replace("; ", ";\n           ")
        ending.insert(-1, f"next       {ways}")
    return "\n".join([*lines, *said, *ending])


def _asking(findings: Findings, room: int, where: str) -> list[str]:
    """The findings that ask something of the reader, as far as there is room; the others are counted."""
    still_open, handled = group_findings(findings)
    lines = list[str]()
    shown = 0
    blocking = [group for group in still_open if any(finding.blocks for finding in group.findings)]
    for group in blocking or still_open:
        told = finding_lines(group.first, f" (and {group.others})" if group.others else "", most=_MOST_LETTERS)
        asks = group.first.severity is not Severity.INFO or group.first.slug in _CHOSEN_HERE
        if not asks or len(lines) + len(told) >= room:
            continue
        lines += told
        shown += group.count
    left = sum(group.count for group in still_open) - shown
    done = sum(group.count for group in handled)
    counts = [f"{left}{' more' if shown else ''} finding{'s' if left > 1 else ''}"] if left else []
    counts += [f"{done} handled"] if done else []
    return [*lines, f"{', '.join(counts)}: {where}"] if counts else lines

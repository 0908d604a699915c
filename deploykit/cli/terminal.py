"""Prints results and news: JSON or harmless text on stdout, one line of progress on stderr.

It formats and decides nothing. A terminal obeys control characters, and names come from strangers: a name that moves
the cursor could overwrite "problem" with "ok", one with a line break could add such a line. News of long work are one
line that is overwritten on a terminal, and plain lines now and then in a log.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from deploykit.findings import Finding, group_findings, headline, listed, sort_findings
from deploykit.findings.records import plain as as_json
from deploykit.system.jobs import Begun

if TYPE_CHECKING:
    from deploykit.backend.status import PackageStatus

__all__ = [
    "columns",
    "decibels",
    "defused",
    "emit",
    "finding_lines",
    "findings_text",
    "plain",
    "progress",
    "status_lines",
    "table",
]

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
# A name of a node or a tensor that is too long to read: its beginning, the part left out, its end.
_LONG_NAME = re.compile(r"([/\w][\w./:-]{13})[\w./:-]{12,}([\w./:-]{21})")
# The styles that commands use for their own words: bold, dim, and four visible colours.
_STYLES = re.compile(r"(\x1b\[(?:0|1|2|22|3[1236])m)")


def emit(value: object, text: str | Callable[[], str]) -> None:
    """Prints ``value`` as JSON with --json, else the text; if both are functions, only the one needed is called.

    The value is a mapping, or has a published shape; its content need not be plain.
    """
    from deploykit.cli.frame import settings

    if settings().json:
        made = as_json(value() if callable(value) else value)
        is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        click.echo(json.dumps({"schema": 1, **made}, indent=1, ensure_ascii=not is_utf8, allow_nan=False))
    else:
        click.echo(defused((text if isinstance(text, str) else text()).rstrip("\n")))


def plain(text: str, kept: str = "") -> str:
    """The text with every unprintable character, except those in ``kept``, as an escape: ``\\x1b``, ``\\n``."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in kept else letter.encode("unicode_escape").decode()
        for letter in text
    )


def defused(text: str) -> str:
    """The text, with its styles but without any other character that a terminal would obey."""
    parts = _STYLES.split(text)
    # Every other part is a style.
    parts[::2] = [plain(part, "\n\t") for part in parts[::2]]
    return "".join(parts)


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str]) -> str:
    """Aligned columns under a header; the last column is wrapped to the terminal's width."""
    cells = [[str(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max([len(title), *(len(row[i]) for row in cells)]) for i, title in enumerate(header)]
    room = max(30, columns(120) - sum(widths[:-1]) - 2 * (len(widths) - 1))

    def lines(row: Sequence[str]) -> Iterator[str]:
        left = "".join(f"{cell.ljust(width)}  " for cell, width in zip(row[:-1], widths, strict=False))
        first, *rest = textwrap.wrap(row[-1], room) or [""]
        yield f"{left}{first}".rstrip()
        yield from (" " * len(left) + line for line in rest)

    head, *more = lines(header)
    return "\n".join([click.style(head, bold=True), *more, *(line for row in cells for line in lines(row))])


def columns(otherwise: int) -> int:
    """The width of the terminal, ``otherwise`` if it has none."""
    import shutil  # imported on use: most commands print no table

    return shutil.get_terminal_size((otherwise, 24)).columns


def decibels(value: float) -> str:
    """A signal-to-noise ratio for people; a dash for NaN."""
    if value != value:  # NaN
        return "-"
    return f"{value:.2f} dB" if abs(value) < float("inf") else ("no loss" if value > 0 else "nothing left")


def findings_text(findings: Iterable[Finding]) -> str:
    """Findings for people: open ones by rule with what to do next, then one line for all handled ones.

    With -v every finding is listed, handled ones with what the plan does about them.
    """
    from deploykit.cli.frame import settings

    known = sort_findings(findings)
    if not known:
        return "no findings"
    if settings().verbosity > 0:
        return "\n".join([*(line for finding in known for line in finding_lines(finding)), headline(known)])
    still_open, handled = group_findings(known)
    lines = []
    for group in still_open:
        lines += finding_lines(group.first, f" (and {group.others})" if group.others else "")
    if handled:
        count = click.style(f"{sum(group.count for group in handled)} handled", fg="green")
        rules = [f"{group.first.code} {group.first.slug}" for group in handled]
        lines.append(f"{count}: {listed(rules, most=6)} (-v lists them)")
    return "\n".join([*lines, headline(known)])


def finding_lines(finding: Finding, others: str = "", *, most: int = 0) -> list[str]:
    """One finding with its handling or its advice below; without -v long names are shortened in the middle.

    With ``most`` a message is cut to that many letters.
    """
    from deploykit.cli.frame import settings

    # A handled error is no longer red.
    color = _COLORS[finding.severity] if finding.handled is None else "green"
    word = click.style(f"{finding.severity}", fg=color, bold=finding.blocks)
    message = f"{plain(finding.message)}{others}"
    if settings().verbosity <= 0:
        message = _LONG_NAME.sub(r"\1…\2", message)
    if most and len(message) > most:
        message = f"{message[: most - 1]}…"
    lines = [f"{word} {finding.code} {finding.slug}: {message}"]
    if finding.handled is not None:
        return [*lines, f"    handled: {finding.handled}"]
    return [*lines, f"    next: {finding.hint}"] if finding.hint else lines


def status_lines(status: PackageStatus) -> list[str]:
    """The three facts about a package, one line each: bad ones red, good ones green, open ones yellow."""
    bad = {
        "intact": not status.intact,
        "compiled": status.compiled.state == "refused",
        "right": status.right.state == "no",
    }
    lines = []
    for key, words in status.lines():
        is_red = bad[key] or (key == "right" and status.right.broken)
        color = "red" if is_red else "green" if words[:3] == "yes" else "yellow"
        lines.append(f"{key:<10} {click.style(plain(words), fg=color, bold=bad[key])}")
    return lines


_TICK, _FIRST = 1.0, 0.3
"""Seconds between two updates, and before the first: an immediate answer needs no news."""
_PATIENCE, _AGAIN = 5.0, 30.0
"""Seconds after which a log gets the first news, and between repeated news of the same work."""
_CLEAR = "\r\x1b[2K"


@contextmanager
def progress() -> Iterator[News]:
    """The function to which commands report progress; silent with --json and -q."""
    from deploykit.cli.frame import settings

    news = News(is_shown=not settings().json and settings().verbosity >= 0, is_quiet=settings().verbosity < 0)
    try:
        yield news
    finally:
        news.stop()


def elapsed(seconds: float) -> str:
    """A duration in seconds as a person reads it: ``9 s``, ``1:05``, ``2:03:00``."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class News:
    """Shows lines of news, with a ``Begun`` for the start of a step; a thread updates the elapsed time.

    A terminal has one line, cut to its current width. A file or a pipe gets plain lines if work
    takes long: at each step, and every half minute.
    """

    def __init__(self, *, is_shown: bool, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_drawn = False
        self._began = self._step_began = time.monotonic()
        self._step = self._detail = self._told = ""
        self._when = 0.0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._watch, daemon=True) if is_shown else None
        if self._clock is not None:
            self._clock.start()

    def __call__(self, line: str) -> None:
        """Shows what is being done now."""
        if self._clock is None:
            return
        with self._lock:
            begins, words = isinstance(line, Begun), plain(click.unstyle(line))
            if begins:
                self._step, self._detail, self._step_began = words, "", time.monotonic()
            else:
                self._detail = words
            if self._is_drawn:
                self._draw()
            elif begins and not self._is_live and time.monotonic() - self._began >= _PATIENCE:
                self._line()

    def say(self, line: str) -> None:
        """Prints a line that stays, such as why nothing moves; a log read later needs it with --json, too."""
        with self._lock:
            if not self._is_quiet:
                _write(_CLEAR if self._is_drawn else "")
                click.echo(defused(line), err=True)  # without colours if stderr is not a terminal
            if self._is_drawn:
                self._draw()

    def stop(self) -> None:
        """Stops showing news, and clears the line."""
        self._over.set()
        if self._clock is not None:
            self._clock.join()
        if self._is_drawn:
            _write(_CLEAR)

    def _watch(self) -> None:
        wait = _FIRST
        while not self._over.wait(wait):
            wait = _TICK
            with self._lock:
                now = time.monotonic()
                is_late = now - self._began >= _PATIENCE and (not self._told or now - self._when >= _AGAIN)
                if not self._words:
                    continue
                if self._is_live:
                    self._draw()
                elif is_late:
                    self._line()

    @property
    def _words(self) -> str:
        return ": ".join(part for part in (self._step, self._detail) if part)

    def _draw(self) -> None:
        """Draws the terminal's line: the words, the step's time, and the whole
        time if it is longer. Only the words are cut.
        """
        now, width = time.monotonic(), columns(100) - 1
        step, whole = elapsed(now - self._step_began), elapsed(now - self._began)
        times = f" · {step}" if step == whole else f" · {step}, {whole} in all"
        words, room = self._words, width - len(times)
        if len(words) > room >= 2:
            words = f"{words[: room - 1]}…"
        self._is_drawn = True
        _write(_CLEAR + f"{words}{times}"[: max(width, 0)])

    def _line(self) -> None:
        self._told, self._when = self._words, time.monotonic()
        _write(f"{self._told} ({elapsed(self._when - self._began)})\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()

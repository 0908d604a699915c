"""Puts a diagnosis into words for people; it judges nothing and reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from deploykit.backend.known_errors import KnownError

if TYPE_CHECKING:
    from deploykit.answers.diagnosis import Cause, Diagnosis
    from deploykit.answers.diagnosis.sightings import ErrorLine

__all__ = ["diagnosis_text", "error_text"]

_NAMES_SHOWN = 8
_TAIL_SHOWN = 6


def diagnosis_text(diagnosis: Diagnosis, *, verbose: bool = False) -> str:
    """The causes, likeliest first, each with its way out; where nothing is known, that, and what to collect."""
    lines: list[str] = []
    for number, cause in enumerate(diagnosis.causes, 1):
        lines += [*_cause(number, cause, verbose=verbose), ""]
    if diagnosis.numbers:
        counts = (f"{name} {' of '.join(f'{v:g}' for v in values)}" for name, values in diagnosis.numbers.items())
        lines += [f"counted by the tools: {', '.join(counts)}", ""]
    if diagnosis.codes:
        lines += [*_codes(diagnosis), ""]
    if not diagnosis.errors or not diagnosis.understood:
        lines += _open_end(diagnosis)
    return "\n".join(lines).rstrip()


def _cause(number: int, cause: Cause, *, verbose: bool) -> Iterator[str]:
    row = cause.error
    sure = f" (possible: {cause.because})" if cause.certainty != "likely" else cause.because and f" ({cause.because})"
    yield f"{number}. {row.severity} {row.id}{sure}: {row.cause}"
    if cause.hits:
        times = "once" if cause.count == 1 else f"{cause.count} times"
        yield f"    seen {times}, first in line {cause.first_line}: {cause.hits[0].text}"
    yield from (f"    {term}: {meaning}" for term, meaning in cause.terms)
    yield from _names(cause)
    if row.workaround:
        yield f"    way out: {row.workaround}"
    if row.way_out:
        yield f"    command: {row.way_out}"
    if cause.follow_ups:
        follows = ", ".join(f"{later.error.id} ({later.count}, line {later.first_line})" for later in cause.follow_ups)
        yield f"    only follows from it: {follows}"
    if row.note and verbose:
        yield f"    note: {row.note}"
    versions = f"; versions {row.versions}" if row.versions else ""
    yield f"    source: {'; '.join(row.source)} ({row.confidence}{versions})"


def _names(cause: Cause) -> Iterator[str]:
    for name in cause.names[:_NAMES_SHOWN]:
        probably = "" if name.exact else "probably "
        yield f"    {name.log} is {probably}{name.kind} {' or '.join(name.onnx)}"
    if len(cause.names) > _NAMES_SHOWN:
        yield f"    … and {len(cause.names) - _NAMES_SHOWN} more names"


def _codes(diagnosis: Diagnosis) -> Iterator[str]:
    for code in diagnosis.codes:
        meaning = "unknown code" if code.meaning is None else f"{code.meaning.area}: {code.meaning.meaning}"
        other = hex(code.code) if not code.spelling.startswith("0x") else str(code.code)
        yield f"code {code.spelling} = {other}: {meaning}"


def _open_end(diagnosis: Diagnosis) -> Iterator[str]:
    """What is said where no cause was found: that a tool finished, or that it is not known what happened."""
    if diagnosis.conclusion == "finished":
        yield from _finished(diagnosis)
        return
    yield "the cause itself is not in this log" if diagnosis.errors else _not_understood(diagnosis)
    yield from _lines("lines that look like a failure:", diagnosis.unknown)
    if not diagnosis.unknown:
        yield from _lines("lines that look like a warning:", diagnosis.doubts)
        if diagnosis.tail:
            yield "the last lines:"
            yield from (f"    {line}" for line in diagnosis.tail[-_TAIL_SHOWN:])
    if diagnosis.collect:
        yield "please collect, to have it looked at:"
        yield from (f"    - {text}" for text in diagnosis.collect)


def _finished(diagnosis: Diagnosis) -> Iterator[str]:
    last = diagnosis.finished[-1]
    yield f"no failure: {last.tool} says in line {last.line} that it did its job: {last.text}"
    yield from _lines("lines that look like a warning:", diagnosis.doubts)


def _not_understood(diagnosis: Diagnosis) -> str:
    if diagnosis.unknown:
        return "not understood: no known failure, and lines that look like one"
    if diagnosis.unfinished:
        return f"not understood: {', '.join(diagnosis.unfinished)} began, and nothing says that it did its job"
    if diagnosis.overlooked:
        return "not understood: too many lines look like a failure to read each"
    if diagnosis.understood:
        return "nothing more is known: no failure is seen, and nothing says that a tool did its job"
    return "not understood: no known failure, and nothing says that a tool did its job"


def _lines(title: str, lines: Iterable[ErrorLine]) -> Iterator[str]:
    shown = [f"    line {line.line}{f' ({line.count} times)' if line.count > 1 else ''}: {line.text}" for line in lines]
    return iter([title, *shown] if shown else [])


def error_text(rows: Iterable[KnownError]) -> str:
    """Rows of the catalogue, one paragraph each."""
    return "\n\n".join("\n".join(_row(row)) for row in rows) or "no known error has these words"


def _row(row: KnownError) -> Iterator[str]:
    yield f"{row.severity} {row.id}: {row.cause}"
    glue = " and " if row.match_mode == "all" else " or "
    yield f"    {'message: ' + glue.join(row.match) if row.match else 'no message: ' + row.symptom}"
    yield f"    way out: {row.workaround}"
    if row.way_out:
        yield f"    command: {row.way_out}"
    yield f"    source: {'; '.join(row.source)} ({row.confidence})"

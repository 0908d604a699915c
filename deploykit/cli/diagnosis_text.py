"""Puts a diagnosis into words for people; it judges nothing and reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from deploykit.contract.known_errors import KnownError

if TYPE_CHECKING:
    from deploykit.diagnosis import Cause, Diagnosis

__all__ = ["diagnosis_text", "error_text"]

_NAMES_SHOWN = 8


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
    sure = "" if cause.certainty == "likely" else f" (possible: {cause.because})"
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
        meaning = "no table has it" if code.meaning is None else f"{code.meaning.area}: {code.meaning.meaning}"
        other = hex(code.code) if not code.spelling.startswith("0x") else str(code.code)
        yield f"code {code.spelling} = {other}: {meaning}"


def _open_end(diagnosis: Diagnosis) -> Iterator[str]:
    """What is said where no cause was found: that nothing failed, or that it is not known why."""
    if diagnosis.understood:
        yield "no known failure, and nothing that looks like an error" if not diagnosis.causes else "no failure found"
        return
    yield "the cause itself is not in this log" if diagnosis.errors else "this failure is not known"
    if diagnosis.unknown:
        yield "lines that look like an error:"
    for line in diagnosis.unknown:
        times = f" ({line.count} times)" if line.count > 1 else ""
        yield f"    line {line.line}{times}: {line.text}"
    yield "please collect, to have it looked at:"
    yield from (f"    - {text}" for text in diagnosis.collect)


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

"""``deploykit diagnose``: known failures in a log, or a case packed for a report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.cli.frame import Command, settings
from deploykit.cli.options import flag, option, path
from deploykit.cli.terminal import emit, plain
from deploykit.errors import UsageError
from deploykit.tables.known_errors import KnownError, search_errors

if TYPE_CHECKING:
    from deploykit.answers.diagnosis import Cause, Diagnosis
    from deploykit.answers.diagnosis.collecting import ErrorLine

__all__ = ["command", "diagnosis_text"]

_NAMES_SHOWN = 8


@click.command("diagnose", cls=Command)
@click.argument("log", required=False)
@path("--model", None, "The ONNX model, to map mangled names back to nodes.")
@option("--tool", "NAME", "A tool known to have written the log.", multiple=True)
@option("--known", "WORDS", "Show the known errors that contain these words ('' for all); takes no log.")
@path("--pack", "CASE.zip", "Write --model without weights, and LOG, for a report.")
@path("--encodings", "FILE", "With --pack: the encodings of the model.")
@option("--target", "DEVICE", "With --pack: the device that was asked for.")
@option("--sdk", "VERSION", "With --pack: the release that was asked for.")
@option("--note", "TEXT", "With --pack: what was done, and what was expected.")
@flag("--numbers", "With --pack: tensors and nodes are called by numbers.")
def command(
    log: str | None, model: Path | None, tool: tuple[str, ...], known: str | None, pack: Path | None, **case: Any
) -> int:
    """Find known failures in LOG ('-' for standard input): cause, way out, source.

    Exit status 0 only when a tool says in the log that it did its job and no line looks like a failure; else 1.
    --pack judges nothing: it writes the case into one file, without weights, paths, or names of people and machines.

    \b
    deploykit diagnose convert.log --model model.onnx
    deploykit diagnose convert.log --model model.onnx --encodings model.encodings --pack case.zip
    """
    if pack is not None:
        return _pack(pack, model, log, **case)
    wanted = next((name for name, value in case.items() if value), None)
    if wanted is not None:
        raise UsageError(f"--{wanted} goes with --pack", next="add --pack CASE.zip, or leave it out")
    if known is not None:
        rows = search_errors(catalog_of(load_backends()), known)
        emit({"errors": rows}, lambda: _error_text(rows))
        return 0
    if log is None:
        raise UsageError("no log", next="name a file, '-' for standard input, or ask with --known WORDS")
    if Path(log).suffix == ".onnx":
        raise UsageError(f"{log}: is a model, not a log", next="name the log, and the model with --model")
    diagnosis = api.diagnose(sys.stdin.buffer if log == "-" else log, model=model, tools=tool)
    emit(diagnosis, lambda: diagnosis_text(diagnosis))
    return diagnosis.exit_status


def _pack(
    pack: Path, model: Path | None, log: str | None, *, encodings: Path | None, numbers: bool, **asked: str | None
) -> int:
    from deploykit.cli import version_lines
    from deploykit.packages.bundling import pack_bundle

    if model is None:
        raise UsageError("--pack needs --model", next="name the ONNX model of the case")
    made = pack_bundle(
        model,
        pack,
        encodings=encodings,
        logs=() if log is None else (Path(log),),
        asked={key: value for key, value in asked.items() if value},
        versions="\n".join([*version_lines(), ""]),
        numbered=numbers,
    )
    lines = [f"  {name}: {plain(text)}" for name, text in made.contents.items()]
    emit(made, "\n".join([str(made.path), *lines]))
    return 0


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The causes, likeliest first, each with its way out; without a known cause, what to collect."""
    lines = list[str]()
    for number, cause in enumerate(diagnosis.causes, 1):
        lines += [*_cause(number, cause), ""]
    if diagnosis.numbers:
        counts = (f"{name} {' of '.join(f'{v:g}' for v in values)}" for name, values in diagnosis.numbers.items())
        lines += [f"counted by the tools: {', '.join(counts)}", ""]
    if diagnosis.codes:
        for code in diagnosis.codes:
            meaning = "unknown code" if code.meaning is None else f"{code.meaning.area}: {code.meaning.meaning}"
            other = code.code if code.spelling.startswith("0x") else hex(code.code)
            lines.append(f"code {code.spelling} = {other}: {meaning}")
        lines.append("")
    if not diagnosis.errors or not diagnosis.understood:
        lines += _open_end(diagnosis)
    if diagnosis.collect:
        lines += ["please collect, to have it looked at:", *(f"    - {text}" for text in diagnosis.collect)]
    return "\n".join(lines).rstrip()


def _cause(number: int, cause: Cause) -> Iterator[str]:
    row = cause.error
    sure = cause.because and f" ({cause.certainty}: {cause.because})"
    yield f"{number}. {row.severity} {row.id}{sure}: {row.cause}"
    if cause.hits:
        times = "once" if cause.count == 1 else f"{cause.count} times, first"
        yield f"    seen {times} in line {cause.first_line}{row.stage and ', stage ' + row.stage}: {cause.hits[0].text}"
    if cause.fields:
        yield f"    the line says: {', '.join(f'{name} {text}' for name, text in cause.fields.items())}"
    yield from (f"    {term}: {meaning}" for term, meaning in cause.terms)
    for name in cause.names[:_NAMES_SHOWN]:
        probably = "" if name.exact else "probably "
        yield f"    {name.log} is {probably}{name.kind} {' or '.join(name.onnx)}"
    if len(cause.names) > _NAMES_SHOWN:
        yield f"    … and {len(cause.names) - _NAMES_SHOWN} more names"
    if row.workaround:
        yield f"    way out: {row.workaround}"
    if row.way_out:
        yield f"    command: {row.way_out}"
    if cause.follow_ups:
        follows = ", ".join(f"{later.error.id} ({later.count}, line {later.first_line})" for later in cause.follow_ups)
        yield f"    only follows from it: {follows}"
    if row.note and settings().verbosity > 0:
        yield f"    note: {row.note}"
    versions = row.versions and f"; versions {row.versions}"
    yield f"    source: {'; '.join(row.source)} ({row.confidence}{versions})"


def _open_end(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the end of a diagnosis without a cause: that a tool finished, or what is not understood."""

    def listed(title: str, lines: Iterable[ErrorLine]) -> list[str]:
        shown = [
            f"    line {line.line}{f' ({line.count} times)' if line.count > 1 else ''}: {line.text}" for line in lines
        ]
        return [title, *shown] if shown else []

    if diagnosis.conclusion == "finished":
        last = diagnosis.finished[-1]
        yield f"no failure: {last.tool} says in line {last.line} that it did its job: {last.text}"
        yield from listed("lines that look like a warning:", diagnosis.doubts)
        return
    if diagnosis.errors:
        yield "the cause itself is not in this log"
    elif diagnosis.unknown and not diagnosis.recognised:
        yield "not understood: no tool on the way of a model onto the NPU is recognised in this log; it has failures"
    elif diagnosis.unknown:
        yield "not understood: no known failure, and lines that look like one"
    elif diagnosis.unfinished:
        yield f"not understood: {', '.join(diagnosis.unfinished)} began, and nothing says that it did its job"
    elif diagnosis.overlooked:
        yield "not understood: too many lines look like a failure to read each"
    elif diagnosis.understood:
        yield "nothing more is known: no failure is seen, and nothing says that a tool did its job"
    else:
        yield "not understood: no known failure, and nothing says that a tool did its job"
    yield from listed("lines that look like a failure:", diagnosis.unknown)
    if not diagnosis.unknown:
        yield from listed("lines that look like a warning:", diagnosis.doubts)
        if diagnosis.tail:
            yield from ("the last lines:", *(f"    {line}" for line in diagnosis.tail[-6:]))


def _error_text(rows: Iterable[KnownError]) -> str:
    """Rows of the catalogue, one paragraph each; words for none."""
    parts = (
        [
            f"{row.severity} {row.id}: {row.cause}",
            f"    {'message: ' + ' or '.join(row.patterns) if row.patterns else 'no message: ' + row.symptom}",
            f"    way out: {row.workaround}",
            *([f"    command: {row.way_out}"] if row.way_out else []),
            f"    source: {'; '.join(row.source)} ({row.confidence})",
        ]
        for row in rows
    )
    return "\n\n".join(map("\n".join, parts)) or "no known error has these words"

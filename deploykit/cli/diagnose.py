"""``deploykit diagnose``: known failures in a log."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deploykit import api
from deploykit.backend.known_errors import search_errors
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.cli.diagnosis_text import diagnosis_text, error_text
from deploykit.cli.frame import Command, settings
from deploykit.cli.output import emit
from deploykit.errors import UsageError

__all__ = ["command"]


@click.command("diagnose", cls=Command)
@click.argument("log", required=False)
@click.option("--model", type=click.Path(path_type=Path), help="The ONNX model, to map mangled names back to nodes.")
@click.option("--tool", multiple=True, metavar="NAME", help="A tool known to have written the log.")
@click.option("--known", metavar="WORDS", help="No log: show the known errors that contain these words ('' for all).")
def command(log: str | None, model: Path | None, tool: tuple[str, ...], known: str | None) -> int:
    """Find known failures in LOG ('-' for standard input): cause, way out, source.

    Exit status 0 only when a tool says in the log that it did its job and no line looks like a failure; else 1.
    """
    if known is not None:
        return _show_known(known)
    if log is None:
        raise UsageError("no log", next="name a file, '-' for standard input, or ask with --known WORDS")
    diagnosis = api.diagnose(sys.stdin.buffer if log == "-" else log, model=model, tools=tool)
    emit(diagnosis.to_json(), lambda: diagnosis_text(diagnosis, verbose=settings().verbosity > 0))
    return diagnosis.exit_status


def _show_known(words: str) -> int:
    rows = search_errors(catalog_of(load_backends()), words)
    emit({"errors": [row.to_json() for row in rows]}, lambda: error_text(rows))
    return 0

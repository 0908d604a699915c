"""``deploykit diagnose``: known failures in a log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit.cli.frame import Command, settings
from deploykit.cli.output import emit
from deploykit.errors import InputError, UsageError

if TYPE_CHECKING:
    from deploykit.diagnosis import Catalog, Diagnosis, Names

__all__ = ["command"]


@click.command("diagnose", cls=Command)
@click.argument("log", required=False)
@click.option("--model", type=click.Path(path_type=Path), help="The ONNX model, to map mangled names back to nodes.")
@click.option("--tool", multiple=True, metavar="NAME", help="A tool known to have written the log.")
@click.option("--known", metavar="WORDS", help="No log: show the known errors that contain these words ('' for all).")
def command(log: str | None, model: Path | None, tool: tuple[str, ...], known: str | None) -> int:
    """Find known failures in LOG ('-' for standard input): cause, way out, source.

    Exit status 1 when an error-level cause was found, 0 when not, known or unknown.
    """
    if known is not None:
        return _show_known(known)
    if log is None:
        raise UsageError("no log", next="name a file, '-' for standard input, or ask with --known WORDS")
    from deploykit.diagnosis.reporting import diagnosis_text

    diagnosis = _diagnose(log, None if model is None else _names(model), tool)
    emit(diagnosis.to_json(), lambda: diagnosis_text(diagnosis, verbose=settings().verbosity > 0))
    return diagnosis.exit_status


def _show_known(words: str) -> int:
    from deploykit.diagnosis import search_errors
    from deploykit.diagnosis.reporting import error_text

    rows = search_errors(_catalog(), words)
    emit({"errors": [row.to_json() for row in rows]}, lambda: error_text(rows))
    return 0


def _catalog() -> Catalog:
    from deploykit.contract.plugins import catalog_of, load_backends

    return catalog_of(load_backends())


def _diagnose(log: str, names: Names | None, tools: tuple[str, ...]) -> Diagnosis:
    from deploykit.diagnosis import diagnose

    catalog = _catalog()
    if log == "-":
        return diagnose(sys.stdin.buffer, catalog, names, tools=tools)
    try:
        with Path(log).open("rb") as stream:
            return diagnose(stream, catalog, names, tools=tools)
    except OSError as error:
        raise InputError(f"{log}: cannot be read", why=error.strerror or str(error)) from None


def _names(model: Path) -> Names:
    from deploykit.diagnosis import names_of
    from deploykit.graph import load_model
    from deploykit.graph.collect import collect_facts

    return names_of(collect_facts(load_model(model)))

"""The same matrix as a file for another engine: it runs cells where that engine says, each with ``deploykit matrix``.

One job makes one cell into a result folder; the last job finds all results there, makes none anew, and writes the page.
Text only: nothing is started here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit.errors import UsageError
from deploykit.fleet.keys import input_files
from deploykit.fleet.running import Selected
from deploykit.report.rendering import render

__all__ = ["ENGINES", "emit"]

ENGINES: Mapping[str, str] = {
    "github-actions": "fleet/github.yml.j2",
    "gitlab": "fleet/gitlab.yml.j2",
    "snakemake": "fleet/Snakefile.j2",
}
"""Engines by their template."""

_MOST_JOBS = {"github-actions": 256, "gitlab": 200}
"""What the engines allow in one matrix: docs.github.com, "matrix strategy"; docs.gitlab.com, "parallel:matrix"."""


def emit(engine: str, selected: Selected) -> str:
    """The text of the engine's file. UsageError for another engine, or more cells than it takes."""
    if engine not in ENGINES:
        raise UsageError(f"--emit {engine}: no such engine", next=f"one of {', '.join(ENGINES)}")
    most = _MOST_JOBS.get(engine)
    if most is not None and len(selected.cells) > most:
        raise UsageError(
            f"--emit {engine}: {len(selected.cells)} cells are more than the {most} jobs of one matrix there",
            next="emit parts with --only, or use snakemake",
        )
    return render(ENGINES[engine], _values(selected))


def _values(selected: Selected) -> dict[str, Any]:
    from importlib.metadata import version

    file = selected.file.as_posix()
    return {
        "file": file,
        "version": version("deploykit"),
        "cells": [cell.id for cell in selected.cells],
        "inputs": {cell.id: [path.as_posix() for path in input_files(cell.request)] for cell in selected.cells},
    }

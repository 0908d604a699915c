"""Runs one fleet: decides which cells to make, makes them, and writes the pages at the end.

A cell with a result of the same key is not made again, so an interrupted run continues where it stopped. The matrix can
also be emitted for another engine, which runs each cell with ``deploykit matrix`` and writes the page last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from deploykit.errors import DeploykitError, PackageError, UsageError
from deploykit.fleet.cells import Cell, Keys, cells_of, chosen_cells, input_files
from deploykit.fleet.cluster import address_of, run_on_cluster
from deploykit.fleet.description import read_file
from deploykit.fleet.pages import junit_of, render_matrix
from deploykit.fleet.pool import Tell, batches_of, default_processes, run_batches
from deploykit.fleet.results import CELLS, RESULT, CellResult, Results, error_result, finished, write_result
from deploykit.report.rendering import render
from deploykit.system.files import write_files

__all__ = ["emit", "run_matrix", "select"]

ENGINES: Mapping[str, str] = {
    "github-actions": "fleet/github.yml.j2",
    "gitlab": "fleet/gitlab.yml.j2",
    "snakemake": "fleet/Snakefile.j2",
}
"""Maps each engine to its template."""

# The largest matrix that each engine allows: docs.github.com, "matrix strategy"; docs.gitlab.com, "parallel:matrix".
_MOST_JOBS = {"github-actions": 256, "gitlab": 200}


def select(file: Path, *, only: Iterable[str] = ()) -> tuple[Cell, ...]:
    """Read the file and return the chosen cells."""
    return chosen_cells(cells_of(read_file(file), file.parent), only)


def run_matrix(
    cells: Sequence[Cell],
    name: str,
    out: Path,
    *,
    executor: str,
    processes: int | None,
    time_limit: float,
    fail_fast: bool,
    max_time_us: float,
    fresh: bool,
    tell: Tell,
    done: Callable[[CellResult], None],
) -> Results:
    """Make every cell without a result and write ``matrix.json``, ``matrix.html`` and ``junit.xml``, titled ``name``.

    ``processes`` of None uses all processors; ``time_limit`` is in seconds per cell, ``max_time_us`` in microseconds.
    ``fresh`` makes all cells again. ``done`` is called with each result when it is ready, kept ones first. Raises
    UsageError for an unknown executor, PackageError if the folder cannot be used.
    """
    address = address_of(executor)
    run = (
        partial(run_batches, processes=processes or default_processes())
        if address is None
        else partial(run_on_cluster, address)
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PackageError(f"{out}: cannot be made", why=error.strerror or str(error)) from None
    made = dict[str, CellResult]()
    # The existing results, those of cells with unreadable inputs, and the cells to make with their keys.
    keys, kept, broken, wanted = Keys(), list[CellResult](), list[CellResult](), list[tuple[Cell, str]]()
    for cell in cells:
        try:
            key = keys.key(cell)
        except DeploykitError as error:
            broken.append(error_result(cell.id, "", error))
            write_result(out, broken[-1])
            continue
        if fresh:
            (out / CELLS / cell.id / RESULT).unlink(missing_ok=True)
        known = finished(out, cell.id, key)
        if known is None:
            wanted.append((cell, key))
        else:
            kept.append(known)
    for result in (*kept, *broken):
        made[result.cell] = result
        done(result)
    try:
        if not (fail_fast and broken):
            for result in run(batches_of(wanted), out, limit=time_limit, fail_fast=fail_fast, tell=tell):
                made[result.cell] = result
                done(result)
    finally:
        results = Results(
            models=tuple(dict.fromkeys(cell.model for cell in cells)),
            targets=tuple(dict.fromkeys(cell.id.partition("/")[2] for cell in cells)),
            cells=tuple(made[cell.id] for cell in cells if cell.id in made),
            kept=frozenset(result.cell for result in kept),
            not_run=tuple(cell.id for cell in cells if cell.id not in made),
            max_time_us=max_time_us,
        )
        files = {
            out / "matrix.json": json.dumps({"schema": 1, **results.to_json()}, indent=1) + "\n",
            out / "matrix.html": render_matrix(results, name),
            out / "junit.xml": junit_of(results, name),
        }
        write_files(files, force=True)
    return results


def emit(engine: str, file: Path, cells: Sequence[Cell]) -> str:
    """Return the text of the engine's file. Raises UsageError for an unknown engine or more cells than it allows."""
    if engine not in ENGINES:
        raise UsageError(f"--emit {engine}: no such engine", next=f"one of {', '.join(ENGINES)}")
    most = _MOST_JOBS.get(engine)
    if most is not None and len(cells) > most:
        raise UsageError(
            f"--emit {engine}: {len(cells)} cells are more than the {most} jobs of one matrix there",
            next="emit parts with --only, or use snakemake",
        )
    from importlib.metadata import version

    values = {
        "file": file.as_posix(),
        "version": version("deploykit"),
        "cells": [cell.id for cell in cells],
        "inputs": {cell.id: [path.as_posix() for path in input_files(cell.request)] for cell in cells},
    }
    return render(ENGINES[engine], values)

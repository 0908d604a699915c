"""Runs cells in processes of this machine: cells that share work in one process, failures kept apart.

A process that dies or hangs costs the cell it was at; a new one goes on with the rest. It judges nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from deploykit.errors import ToolError
from deploykit.fleet.cells import Cell, request_to_json
from deploykit.fleet.results import CellResult, error_result, read_result
from deploykit.fleet.work import TOO_LONG, write_result
from deploykit.system.processes import Completed, run

__all__ = ["Batch", "Tell", "batches_of", "default_processes", "run_batch", "run_batches"]

Tell: TypeAlias = Callable[[str, str], None]
"""Called with a cell's id and one line of news."""

Batch: TypeAlias = tuple[tuple[Cell, str], ...]
"""Cells that share work, each with its key."""

_GRACE = 60.0
"""Seconds beyond the limits of its cells that a process may take before it is ended from outside."""


def default_processes() -> int:
    """As many as there are processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batches_of(cells: Iterable[tuple[Cell, str]]) -> tuple[Batch, ...]:
    """Cells whose requests differ in device, backend and SDK only, together; the order is kept."""
    found: dict[str, list[tuple[Cell, str]]] = {}
    for cell, key in cells:
        same = replace(cell.request, target="", backend=None, sdk=None)
        found.setdefault(json.dumps(request_to_json(same), sort_keys=True), []).append((cell, key))
    return tuple(map(tuple, found.values()))


def run_batches(
    batches: Sequence[Batch], folder: Path, *, processes: int, limit: float, fail_fast: bool, tell: Tell
) -> Iterator[CellResult]:
    """Run all, ``processes`` at a time, and give each result when it is there; the cells' results lie in ``folder``.

    With ``fail_fast`` nothing new is begun after a cell that failed or is a no.
    """
    stop = threading.Event()

    def one(batch: Batch) -> tuple[CellResult, ...]:
        made = []
        for result in run_batch(batch, folder, limit=limit, fail_fast=fail_fast, tell=tell, stop=stop):
            made.append(result)
            if fail_fast and result.exit_status != 0:
                stop.set()
        return tuple(made)

    with ThreadPoolExecutor(processes) as pool:
        try:
            for done in as_completed([pool.submit(one, batch) for batch in batches]):
                yield from done.result()
        finally:
            stop.set()


def run_batch(
    batch: Batch,
    folder: Path,
    *,
    limit: float,
    tell: Tell,
    fail_fast: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[CellResult]:
    """Run one batch to its end, in a new process after each that died; every cell that was begun has a result."""
    left = list(batch)
    while left and not (stop is not None and stop.is_set()):
        seen = _Seen(tell)
        done = _start(left, folder, limit, fail_fast, seen)
        finished = [cell for cell, _ in left if cell.id in seen.done]
        for cell in finished:
            result = read_result(folder, cell.id)
            assert result is not None, cell.id
            yield result
        left = [(cell, key) for cell, key in left if cell.id not in seen.done]
        if left and (done.returncode != 0 or not finished):
            (cell, key), *left = left
            yield _died(cell.id, key, done, limit, folder)


def _start(cells: Sequence[tuple[Cell, str]], folder: Path, limit: float, fail_fast: bool, seen: _Seen) -> Completed:
    told = [{**cell.to_json(), "key": key} for cell, key in cells]
    return run(
        (sys.executable, "-m", "deploykit.fleet.work", str(folder), str(limit), *(["first"] if fail_fast else [])),
        given=json.dumps(told).encode(),
        timeout=limit * len(cells) + _GRACE,
        on_line=seen.line,
    )


class _Seen:
    """What a process said so far."""

    def __init__(self, tell: Tell) -> None:
        self.done: set[str] = set()
        self._tell = tell

    def line(self, text: str) -> None:
        """Take one line of its output; what is not about a cell is no news."""
        said = _said(text)
        cell = str(said.get("cell", ""))
        if said.get("state") == "done":
            self.done.add(cell)
        if cell:
            self._tell(cell, str(said.get("verdict") or said.get("news") or said.get("state")))


def _said(text: str) -> Mapping[str, Any]:
    if not text.startswith('{"cell"'):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _died(cell: str, key: str, done: Completed, limit: float, folder: Path) -> CellResult:
    """The result of the cell that a process ended at."""
    if done.timed_out or done.returncode == TOO_LONG:
        error = ToolError(f"took longer than {limit:g} seconds and was ended", next="give it more with --time-limit")
    else:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        words = [line for line in done.tail if line.strip() and not _said(line)]
        error = ToolError(f"the process that made it ended with {how}", why=" | ".join(words[-3:]))
    result = error_result(cell, key, error, seconds=done.seconds)
    write_result(folder, result)
    return result

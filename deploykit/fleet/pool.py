"""Makes cells in processes of this machine: cells that share work use one process, and failures do not spread.

A process that dies or hangs loses only the cell it was making; a new process continues with the rest. The
process runs this module: ``python -m deploykit.fleet.pool FOLDER LIMIT [first]`` reads a JSON list of ``{"id",
"key", "request"}``, writes each result below FOLDER as soon as it is made, and reports progress on standard
output in lines of JSON. If a cell takes longer than LIMIT seconds, the process ends with status 124; with
``first`` it ends after the first cell that is not good.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from deploykit.errors import DefectError, DeploykitError, ToolError
from deploykit.findings.records import Json, grouped, replace
from deploykit.fleet.cells import Cell, request_from_json, request_to_json
from deploykit.fleet.results import CELLS, PACKAGE, CellResult, error_result, finished, read_result, write_result
from deploykit.system.folders import waiting_for
from deploykit.system.jobs import json_object
from deploykit.system.processes import run

if TYPE_CHECKING:
    from deploykit.flow.pipeline import Packaged

__all__ = ["Batch", "Tell", "batches_of", "default_processes", "run_batch", "run_batches"]

Tell: TypeAlias = Callable[[str, str], None]
"""Takes a cell's id and one line of progress."""

Batch: TypeAlias = tuple[tuple[Cell, str], ...]
"""Cells that share work, each with its key."""

_TOO_LONG = 124  # the status that ``timeout`` of the shell uses
_GRACE = 60.0  # seconds beyond the limits of its cells after which a process is killed from outside


def default_processes() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batches_of(cells: Iterable[tuple[Cell, str]]) -> tuple[Batch, ...]:
    """Group cells whose requests differ only in device, backend and SDK; the order is kept."""
    alike = ((replace(cell.request, target="", backend=None, sdk=None), cell, key) for cell, key in cells)
    found = grouped((json.dumps(request_to_json(same), sort_keys=True), (cell, key)) for same, cell, key in alike)
    return tuple(map(tuple, found.values()))


def run_batches(
    batches: Sequence[Batch], folder: Path, *, processes: int, limit: float, fail_fast: bool, tell: Tell
) -> Iterator[CellResult]:
    """Run all batches, ``processes`` at a time, and yield each result when it is ready.

    ``limit`` is in seconds per cell. The results are also written below ``folder``. With ``fail_fast`` nothing new is
    started after a cell that failed or is a "no".
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
    """Run one batch to its end, in a new process after each one that died; every cell that was started has a result."""
    left = list(batch)
    while left and not (stop is not None and stop.is_set()):
        made = set[str]()

        def hear(line: str, made: set[str] = made) -> None:
            said = _said(line)
            cell = str(said.get("cell", ""))
            if said.get("state") == "done":
                made.add(cell)
            if cell:
                tell(cell, str(said.get("verdict") or said.get("news") or said.get("state")))

        done = run(
            (sys.executable, "-m", __name__, str(folder), str(limit), *(["first"] if fail_fast else [])),
            given=json.dumps([{**cell.to_json(), "key": key} for cell, key in left]).encode(),
            timeout=limit * len(left) + _GRACE,
            on_line=hear,
        )
        for cell, _ in left:
            if cell.id in made:
                result = read_result(folder, cell.id)
                assert result is not None, cell.id
                yield result
        left = [(cell, key) for cell, key in left if cell.id not in made]
        if left and (done.returncode != 0 or not made):
            (cell, key), *left = left
            if done.timed_out or done.returncode == _TOO_LONG:
                what = f"took longer than {limit:g} seconds and was ended"
                error = ToolError(what, next="give it more with --time-limit")
            else:
                how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
                words = [line for line in done.tail if line.strip() and not _said(line)]
                error = ToolError(f"the process that made it ended with {how}", why=" | ".join(words[-3:]))
            result = error_result(cell.id, key, error, seconds=done.seconds)
            write_result(folder, result)
            yield result


def _said(text: str) -> Json:
    """Parse one line of the process; {} if the line is not about a cell."""
    return json_object(text) if text.startswith('{"cell"') else {}


def work(
    cells: Sequence[Json],
    folder: Path,
    limit: float,
    *,
    fail_fast: bool = False,
    tell: Callable[[Json], None],
) -> None:
    """Make every cell in this process; all are of one model and differ only in device, backend and SDK."""
    makers = _makers(cells, folder, tell)
    for cell in cells:
        name = str(cell["id"])
        tell({"cell": name, "state": "started"})
        # Two runs with the same folder do not make a cell at the same time; the second finds it made.
        news = {"cell": name, "news": "another run makes it: waiting"}
        with waiting_for(folder / CELLS / name, waiting=partial(tell, news)):
            result = finished(folder, name, cell["key"])
            if result is None:
                # A hang may be in native code, which can be ended only by ending the process.
                timer = threading.Timer(limit, os._exit, [_TOO_LONG])
                timer.daemon = True
                timer.start()
                result = _made(name, str(cell["key"]), makers[name])
                timer.cancel()
                write_result(folder, result)
        tell({"cell": name, "state": "done", "verdict": str(result.verdict)})
        if fail_fast and result.exit_status != 0:
            return


def _makers(cells: Sequence[Json], folder: Path, tell: Callable[[Json], None]) -> Mapping[str, Callable[[], Packaged]]:
    """Return the function that makes each package. If they cannot be opened together, each one is opened separately."""
    from deploykit.flow.pipeline import PackageJob, read_jobs

    def read(some: Sequence[Json]) -> tuple[PackageJob, ...]:
        return read_jobs(
            [request_from_json(cell["request"]) for cell in some],
            [folder / CELLS / cell["id"] / PACKAGE for cell in some],
            force=True,
            progress=[partial(say, cell["id"]) for cell in some],
        )

    def say(cell: str, line: str) -> None:
        tell({"cell": cell, "news": line})

    def alone(cell: Json) -> Packaged:
        return read([cell])[0].make()

    try:
        return {cell["id"]: job.make for cell, job in zip(cells, read(cells), strict=True)}
    except DeploykitError:
        return {cell["id"]: partial(alone, cell) for cell in cells}


def _made(name: str, key: str, make: Callable[[], Packaged]) -> CellResult:
    started, used = time.monotonic(), _processor_seconds()
    try:
        packaged = make()
    except DeploykitError as error:
        return error_result(name, key, error, seconds=time.monotonic() - started)
    except Exception as error:  # a defect ends one cell, not the whole fleet
        defect = DefectError(f"a defect of deploykit: {type(error).__name__}: {error}")
        return error_result(name, key, defect, seconds=time.monotonic() - started)
    # Store no paths of this machine: the package is beside the result.
    outcome, size = packaged.to_json(), 0
    if packaged.package is not None:
        manifest = packaged.manifest.name if packaged.manifest else ""
        outcome |= {"package": PACKAGE, "manifest": f"{PACKAGE}/{manifest}"}
        files = (path for path in packaged.package.rglob("*") if path.is_file() and not path.is_symlink())
        size = sum(path.stat().st_size for path in files)
    return CellResult(
        cell=name,
        key=key,
        exit_status=packaged.exit_status,
        seconds=time.monotonic() - started,
        processor_seconds=_processor_seconds() - used,
        bytes=size,
        outcome=outcome,
    )


def _processor_seconds() -> float:
    return sum(os.times()[:4])  # of this process and its ended children, user and system


if __name__ == "__main__":
    work(
        json.load(sys.stdin),
        Path(sys.argv[1]),
        float(sys.argv[2]),
        fail_fast="first" in sys.argv[3:],
        tell=lambda value: print(json.dumps(value), flush=True),
    )

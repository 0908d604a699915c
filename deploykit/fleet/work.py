"""The process that packages the cells of one model, one after another.

``python -m deploykit.fleet.work FOLDER LIMIT [first]`` reads a JSON list of ``{"id", "key", "request"}``. Each result
is written below FOLDER when it is there; lines of JSON on standard output say what is going on. A cell that takes
longer than LIMIT seconds ends the whole process with status 124, and whoever started it goes on with the next. With
``first`` it ends after the first cell that is not good.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import DefectError, DeploykitError
from deploykit.fleet.cells import request_from_json
from deploykit.fleet.results import CELLS, PACKAGE, RESULT, CellResult, error_result, finished
from deploykit.system.files import write_files
from deploykit.system.folders import waiting_for

if TYPE_CHECKING:
    from deploykit.flow.pipeline import Job, Packaged

__all__ = ["TOO_LONG", "main", "work"]

TOO_LONG = 124
"""The exit status of a process whose cell took too long, as ``timeout`` of the shell has it."""


def main(argv: Sequence[str]) -> int:
    """Read the cells and make them."""
    folder, limit = Path(argv[0]), float(argv[1])
    work(json.load(sys.stdin), folder, limit, fail_fast="first" in argv[2:], tell=_print)
    return 0


def work(
    cells: Sequence[Mapping[str, Any]],
    folder: Path,
    limit: float,
    *,
    fail_fast: bool = False,
    tell: Callable[[Mapping[str, Any]], None],
) -> None:
    """Make every cell; they are of one model and differ in device, backend and SDK only."""
    made = _open(cells, folder, tell)
    for cell in cells:
        tell({"cell": cell["id"], "state": "started"})
        with _held(folder, cell, tell):
            result = finished(folder, cell["id"], cell["key"])
            if result is None:
                with _watched(limit):
                    result = _result(cell, made)
                write_result(folder, result)
        tell({"cell": cell["id"], "state": "done", "verdict": str(result.verdict)})
        if fail_fast and result.exit_status != 0:
            return


@contextmanager
def _held(folder: Path, cell: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Hold a cell, so that two runs with one folder do not make it at the same time; the second finds it made."""
    place = folder / CELLS / cell["id"]
    with waiting_for(place, waiting=lambda: tell({"cell": cell["id"], "news": "another run makes it: waiting"})):
        yield


def write_result(folder: Path, result: CellResult) -> None:
    """Put one result where ``read_result`` finds it."""
    place = folder / CELLS / result.cell
    place.mkdir(parents=True, exist_ok=True)
    write_files({place / RESULT: json.dumps(result.to_json(), indent=1) + "\n"}, force=True)


def _open(
    cells: Sequence[Mapping[str, Any]], folder: Path, tell: Callable[[Mapping[str, Any]], None]
) -> Mapping[str, Callable[[], Packaged]]:
    """What makes each cell's package. Where they cannot be opened together, each is opened by itself and says why."""
    try:
        jobs = _jobs(cells, folder, tell)
        return {cell["id"]: job.make for cell, job in zip(cells, jobs, strict=True)}
    except DeploykitError:
        return {cell["id"]: partial(_alone, cell, folder, tell) for cell in cells}


def _alone(cell: Mapping[str, Any], folder: Path, tell: Callable[[Mapping[str, Any]], None]) -> Packaged:
    (job,) = _jobs([cell], folder, tell)
    return job.make()


def _jobs(
    cells: Sequence[Mapping[str, Any]], folder: Path, tell: Callable[[Mapping[str, Any]], None]
) -> tuple[Job, ...]:
    from deploykit.flow.pipeline import read_jobs

    return read_jobs(
        [request_from_json(cell["request"]) for cell in cells],
        [folder / CELLS / cell["id"] / PACKAGE for cell in cells],
        force=True,
        progress=[_news(cell["id"], tell) for cell in cells],
    )


def _news(cell: str, tell: Callable[[Mapping[str, Any]], None]) -> Callable[[str], None]:
    return lambda line: tell({"cell": cell, "news": line})


def _result(cell: Mapping[str, Any], made: Mapping[str, Callable[[], Packaged]]) -> CellResult:
    started, used = time.monotonic(), _processor_seconds()
    name, key = str(cell["id"]), str(cell["key"])
    try:
        packaged = made[name]()
    except DeploykitError as error:
        return error_result(name, key, error, seconds=time.monotonic() - started)
    except Exception as error:  # a defect ends one cell, not the fleet
        defect = DefectError(f"a defect of deploykit: {type(error).__name__}: {error}")
        return error_result(name, key, defect, seconds=time.monotonic() - started)
    return CellResult(
        cell=name,
        key=key,
        exit_status=packaged.exit_status,
        seconds=time.monotonic() - started,
        processor_seconds=_processor_seconds() - used,
        bytes=_size(packaged.package),
        outcome=_relative(packaged),
    )


def _relative(packaged: Packaged) -> dict[str, Any]:
    """The outcome without paths of this machine: the package is beside the result."""
    outcome = packaged.to_json()
    if packaged.package is not None:
        outcome |= {"package": PACKAGE, "manifest": f"{PACKAGE}/{packaged.manifest.name if packaged.manifest else ''}"}
    return outcome


def _size(package: Path | None) -> int:
    if package is None:
        return 0
    return sum(path.stat().st_size for path in package.rglob("*") if path.is_file() and not path.is_symlink())


def _processor_seconds() -> float:
    return sum(os.times()[:4])  # its own and that of children that ended, user and system


@contextmanager
def _watched(limit: float) -> Iterator[None]:
    """End the process when the time is up: what hangs may be native code that nothing else can end."""
    timer = threading.Timer(limit, os._exit, [TOO_LONG])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

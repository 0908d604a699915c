"""Runs the packages of a matrix on the devices of its file: one run at a time per device, all devices in parallel."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from deploykit.accuracy.latency import in_time
from deploykit.devices.places import DeviceRow
from deploykit.devices.run import RunOptions, run_package
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings.records import Json, Published, field, replace
from deploykit.fleet.pages import junit_of
from deploykit.fleet.results import CELLS, PACKAGE, Results, write_result
from deploykit.packages.manifests import read_manifest
from deploykit.report.for_ci import JUnitCase
from deploykit.system.files import write_files

__all__ = ["DeviceRun", "device_targets", "run_on_devices"]


class DeviceRun(Published):
    """One cell on one device: the JSON of ``deploykit run --json``, or the error that ended the run."""

    cell: str
    device: str
    exit_status: int
    outcome: Json = field(default_factory=dict)
    error: str = ""

    @property
    def words(self) -> str:
        """One line: whether the outputs are right and how long it takes."""
        if self.error:
            return self.error.splitlines()[0]
        right, latency = self.outcome.get("right") or {}, self.outcome.get("latency") or {}
        told = f"right: {right.get('right', 'the program failed')} ({self.outcome.get('where', 'device')})"
        return f"{told}, p90 {in_time(latency['p90_us'])}" if latency else told

    @property
    def case(self) -> JUnitCase:
        """The run as a test case for a continuous integration server."""
        seconds = (self.outcome.get("latency") or {}).get("median_us")
        took = None if seconds is None else seconds / 1e6
        kinds: tuple[Literal["", "failure", "error"], ...] = ("", "failure", "error")
        kind = kinds[min(self.exit_status, 2)]
        return JUnitCase(name=self.cell, kind=kind, message=self.words, text=self.error, seconds=took)


def device_targets(rows: Mapping[str, DeviceRow], targets: Collection[str]) -> dict[str, str]:
    """Return the target of each device: the one its row names, else the one with its own name.

    Raises UsageError if there is no device, or for a device without a target.
    """
    if not rows:
        raise UsageError("--run: the file names no device", next='[devices.phone] with at = "adb" and target = "…"')
    found = {name: row.target or name for name, row in rows.items()}
    for name, target in found.items():
        if target not in targets:
            known = ", ".join(sorted(targets))
            raise UsageError(f"devices.{name}: {target} is no target of the matrix", next=f"target = one of {known}")
    return found


def run_on_devices(
    results: Results, rows: Mapping[str, DeviceRow], out: Path, tell: Callable[[str, str], None]
) -> tuple[DeviceRun, ...]:
    """Run every package on each device of its target, and write ``runs.json`` and ``junit.xml``.

    A failed run is also a result. Raises UsageError as ``device_targets`` does.
    """
    targets = device_targets(rows, results.targets)
    there = [cell for cell in results.cells if cell.outcome.get("package")]

    def visit(name: str) -> list[DeviceRun]:
        mine = [cell.cell for cell in there if cell.cell.partition("/")[2] == targets[name]]
        return [_run(cell, name, rows[name], out, tell) for cell in mine]

    with ThreadPoolExecutor(max_workers=len(rows)) as pool:
        runs = tuple(run for found in pool.map(visit, rows) for run in found)
    for cell in there:
        # The stored record changes the package's digest; update it, so that the next matrix keeps the package.
        digest = read_manifest(out / CELLS / cell.cell / PACKAGE)["digest"]
        if digest != cell.outcome.get("digest"):
            write_result(out, replace(cell, outcome={**cell.outcome, "digest": digest}))
    told = {"schema": 1, "runs": [run.to_json() for run in runs]}
    suites = {f"runs on {name}": [run.case for run in runs if run.device == name] for name in rows}
    pages = {"runs.json": json.dumps(told, indent=1) + "\n", "junit.xml": junit_of(results, "matrix", suites)}
    write_files({out / name: text for name, text in pages.items()}, force=True)
    return runs


def _run(cell: str, name: str, row: DeviceRow, out: Path, tell: Callable[[str, str], None]) -> DeviceRun:
    package = out / CELLS / cell / PACKAGE
    try:
        report = run_package(package, row, RunOptions(), lambda line: tell(cell, f"{name}: {line}"))
    except DeploykitError as error:
        return DeviceRun(cell=cell, device=name, exit_status=error.exit_status, error=str(error))
    return DeviceRun(cell=cell, device=name, exit_status=report.exit_status, outcome=report.to_json())

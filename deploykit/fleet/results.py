"""Reads, writes, summarizes and compares the results of cells in the result folder. It makes no package.

``cells/MODEL/TARGET/result.json`` is one result and ``package/`` beside it
its package; ``matrix.json`` holds all results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert

from deploykit.accuracy.latency import in_time
from deploykit.errors import DeploykitError, InputError
from deploykit.findings.records import Json, Names, Published, field, published
from deploykit.packages.manifests import MANIFEST, sealed
from deploykit.system.files import read_regular, write_files

__all__ = [
    "CELLS",
    "PACKAGE",
    "RESULT",
    "CellResult",
    "CellVerdict",
    "Results",
    "RunDifference",
    "compare",
    "error_result",
    "finished",
    "read_result",
    "read_results",
    "write_result",
]

CELLS = "cells"
RESULT = "result.json"
PACKAGE = "package"
_LARGEST = 64 << 20
# What may be raised while reading a file that is not one of our results.
_UNREADABLE = (ValueError, ValidationError, KeyError, TypeError, AttributeError, RecursionError)
_MOST_DB = 0.1  # decibels; a smaller difference between two runs is not reported
_MOST_SIZE = 0.01
_MOST_TIME = 0.02  # the share by which an estimate may grow before it is reported as worse


class CellVerdict(StrEnum):
    """The verdict on one cell: the answer of ``package``, or ``FAILED`` if it gave no answer."""

    YES = "yes"
    NO = "no"
    NOT_JUDGED = "not judged"
    FAILED = "failed"


class CellResult(Published):
    """One cell's result. ``outcome`` is the JSON of ``package --json``; ``error`` is the error that ended it, if any.

    ``seconds`` is wall time, ``processor_seconds`` the processor time of the process and its
    children; ``bytes`` is the size of the package.
    """

    cell: str
    key: str
    exit_status: int
    seconds: float = 0.0
    processor_seconds: float = 0.0
    bytes: int = 0
    outcome: Json = field(default_factory=dict)
    error: Mapping[str, str] = {}

    @property
    def _status(self) -> Any:
        return self.outcome.get("status", {})

    @property
    def verdict(self) -> CellVerdict:
        """``YES`` only if the numbers were judged and are within limits."""
        if self.error or self.exit_status not in (0, 1):
            return CellVerdict.FAILED
        if self.exit_status == 1:
            return CellVerdict.NO
        return CellVerdict.YES if self._status.get("right") == "yes" else CellVerdict.NOT_JUDGED

    @property
    def compiled(self) -> str:
        """``yes``, ``refused``, ``not run``, or "" if there is no answer."""
        return str(self._status.get("compiled", ""))

    @property
    def worst_db(self) -> float | None:
        """The signal-to-noise ratio of the worst output over all samples in dB; None if no output was judged by it."""
        values = [row.get("value") for row in self._status.get("numbers", []) if row.get("measure") == "sqnr"]
        return min((value for value in values if isinstance(value, int | float)), default=None)

    @property
    def time_us(self) -> float | None:
        """The estimate by the compiler's cost model for exactly this chip
        in microseconds; None without such an estimate.
        """
        estimate = self.outcome.get("estimate") or {}
        time = None if estimate.get("instead_of") else estimate.get("time_us")
        return time if isinstance(time, int | float) else None

    @property
    def why(self) -> str:
        """One line on the first problem, or on why it could not be judged; "" if there is none."""
        if self.error:
            return str(self.error.get("what", ""))
        open_errors = [
            f"{row['code']}: {row['message']}"
            for row in self.outcome.get("findings", [])
            if row.get("severity") == "error" and not row.get("handled")
        ]
        told = (*open_errors, self._status.get("compiled_why"), self._status.get("right_why"))
        return str(next(filter(None, told), ""))

    def as_published(self) -> Json:
        """The published JSON, with the verdict."""
        shown = {"outcome": self.outcome or None, "error": self.error or None}
        seconds = {name: round(getattr(self, name), 3) for name in ("seconds", "processor_seconds")}
        return {"schema": 1, **published(self, also=("verdict",)), **seconds, **shown}


class Results(Published):
    """All cells of one run in the order of the file. ``kept`` names those that an earlier run made.

    ``max_time_us`` limits the estimated time of each cell in microseconds, 0
    for no limit; a cell without an estimate passes.
    """

    models: Names
    targets: Names
    cells: tuple[CellResult, ...]
    kept: frozenset[str] = frozenset()
    not_run: Names
    max_time_us: float = 0.0

    @property
    def too_slow(self) -> Names:
        """The cells whose estimated time exceeds the limit."""
        return tuple(cell.cell for cell in self.cells if 0 < self.max_time_us < (cell.time_us or 0.0))

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells with each verdict."""
        found = Counter(str(cell.verdict) for cell in self.cells)
        return {str(verdict): found[str(verdict)] for verdict in CellVerdict}

    @property
    def exit_status(self) -> int:
        """1 if a cell is a "no", failed, did not run or exceeds the time limit, else 0."""
        bad = any(cell.verdict in (CellVerdict.NO, CellVerdict.FAILED) for cell in self.cells)
        return int(bad or bool(self.not_run) or bool(self.too_slow))

    def as_published(self) -> Json:
        """What ``matrix --json`` prints and ``matrix.json`` holds."""
        return published(self, without=("kept", "max_time_us"), also=("too_slow",)) | {
            "summary": {**self.counts, "not run": len(self.not_run)},
            "cells": [{**cell.as_published(), "kept": cell.cell in self.kept} for cell in self.cells],
        }


def error_result(cell: str, key: str, error: DeploykitError, *, seconds: float = 0.0) -> CellResult:
    """Return the result of a cell that ended in an error."""
    said = {"what": error.what, "why": error.why, "next": error.next}
    return CellResult(cell=cell, key=key, exit_status=error.exit_status, seconds=seconds, error=said)


def write_result(folder: Path, result: CellResult) -> None:
    """Write one result to the place where ``read_result`` finds it."""
    place = folder / CELLS / result.cell
    place.mkdir(parents=True, exist_ok=True)
    write_files({place / RESULT: json.dumps(result.to_json(), indent=1) + "\n"}, force=True)


def read_result(folder: Path, cell: str) -> CellResult | None:
    """Return the result of one cell in a result folder, None if there is none that can be read."""
    try:
        return _result(json.loads(read_regular(folder / CELLS / cell / RESULT, limit=_LARGEST)))
    except (InputError, *_UNREADABLE):
        return None


def finished(folder: Path, cell: str, key: str) -> CellResult | None:
    """Return the existing result if its key is the same and its package is
    unchanged; else None. A failed cell is not kept.
    """
    result = read_result(folder, cell)
    if result is None or (result.cell, result.key) != (cell, key) or result.verdict is CellVerdict.FAILED:
        return None
    if not result.outcome.get("package"):
        return result
    try:
        manifest = json.loads(read_regular(folder / CELLS / cell / PACKAGE / MANIFEST, limit=1 << 30))
        return result if sealed(manifest)[1] == result.outcome.get("digest") else None
    except (InputError, *_UNREADABLE):
        return None


def read_results(path: Path) -> Results:
    """Read ``matrix.json`` from a result folder, or the named file. Raises InputError if it does not hold results."""
    file = path / "matrix.json" if path.is_dir() else path
    try:
        value = json.loads(read_regular(file, limit=1 << 30))
        return Results(
            models=convert(value["models"], Names),
            targets=convert(value["targets"], Names),
            cells=tuple(_result(row) for row in value["cells"]),
            kept=frozenset(row["cell"] for row in value["cells"] if row.get("kept")),
            not_run=convert(value["not_run"], Names),
        )
    except _UNREADABLE:
        raise InputError(
            f"{file}: not the results of 'deploykit matrix'", next="name its result folder, or the matrix.json in it"
        ) from None


def _result(value: Json) -> CellResult:
    return convert({name: field for name, field in value.items() if field is not None}, CellResult)


class CellChange(Published):
    """One cell whose result changed; ``worse`` if its verdict, compilation or speed got worse."""

    cell: str
    what: Names
    worse: bool


class RunDifference(Published):
    """The differences between two runs; ``gone`` and ``new`` are the cells that only one of them has."""

    changes: tuple[CellChange, ...]
    gone: Names
    new: Names
    same: int

    @property
    def exit_status(self) -> int:
        """1 if a cell got worse, else 0."""
        return int(any(change.worse for change in self.changes))


def compare(old: Results, new: Results) -> RunDifference:
    """Compare the cells that both runs have, and list those that only one has."""
    before = {cell.cell: cell for cell in old.cells}
    after = {cell.cell: cell for cell in new.cells}
    both = [(before[name], after[name]) for name in after if name in before]
    changes = tuple(change for one, other in both if (change := _change(one, other)) is not None)
    return RunDifference(
        changes=changes,
        gone=tuple(name for name in before if name not in after),
        new=tuple(name for name in after if name not in before),
        same=len(both) - len(changes),
    )


def _change(old: CellResult, new: CellResult) -> CellChange | None:
    what = []
    if old.verdict is not new.verdict:
        what.append(f"{old.verdict} -> {new.verdict}{f': {new.why}' if new.why else ''}")
    if old.compiled != new.compiled:
        what.append(f"compiled: {old.compiled or 'no answer'} -> {new.compiled or 'no answer'}")
    before, after = (str((cell.outcome.get("route") or {}).get("id") or "none") for cell in (old, new))
    if before != after:
        what.append(f"route: {before} -> {after}")
    if old.worst_db is not None and new.worst_db is not None and abs(old.worst_db - new.worst_db) > _MOST_DB:
        what.append(f"{old.worst_db:.1f} dB -> {new.worst_db:.1f} dB")
    slower = False
    if old.time_us and new.time_us and abs(new.time_us - old.time_us) > _MOST_TIME * old.time_us:
        slower = new.time_us > old.time_us
        what.append(f"estimated {in_time(old.time_us)} -> {in_time(new.time_us)}")
    if old.bytes and new.bytes and abs(new.bytes - old.bytes) > _MOST_SIZE * old.bytes:
        what.append(f"{old.bytes:,} bytes -> {new.bytes:,} bytes")
    order = (CellVerdict.YES, CellVerdict.NOT_JUDGED, CellVerdict.NO, CellVerdict.FAILED)
    refused = old.compiled == "yes" and new.compiled == "refused"
    worse = order.index(new.verdict) > order.index(old.verdict) or refused or slower
    return CellChange(cell=new.cell, what=tuple(what), worse=worse) if what else None

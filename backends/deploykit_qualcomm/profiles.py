"""Reads profiles in QNN's CSV format: the provider writes it, and qnn-profile-viewer makes it from qnn-net-run's log.

The provider's was seen with onnxruntime-qnn 2.7.0 on its emulator; for qnn-profile-viewer its documentation and others'
files. Releases differ in columns (one more with ``enable_framework_op_trace``), in the order of rows, and in the name
of the row for a whole run; all of these are read. Nothing is judged.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deploykit.backend.on_device import MeasuredOperator
from deploykit.devices.profiles import Origins
from deploykit.errors import InputError
from deploykit.system.files import open_regular

__all__ = ["CsvProfile", "profile_rows", "read_profile_csv"]

_COLUMNS = ("message", "time", "unit of measurement", "timing source", "event level", "event identifier")
# "/conv1/Conv_token_1:OpId_26 (cycles)", and "Input OpId_2 (cycles)" for the ends of the graph; then the ONNX sources.
_NODE = re.compile(r"(.*?)[: ]OpId_\d+(?: \(cycles\))?(?:,.*)?", re.DOTALL)
_LARGEST, _LONGEST_LINE = 1 << 30, 1 << 16


class ProfileRow(NamedTuple):
    """One event. ``value`` is NaN if it is not a number; ``source`` is what measured it (BACKEND, NETRUN)."""

    message: str
    value: float
    unit: str
    source: str
    level: str
    name: str


class CsvProfile(NamedTuple):
    """The measurements of one profile: operators, the most expensive first, and the caller's waiting time of each run.

    Times are from qnn-net-run's own clock if it gives any, else from the backend's.
    """

    operators: tuple[MeasuredOperator, ...]
    execute_us: tuple[float, ...]
    init_us: float | None


def profile_rows(path: Path) -> Iterator[ProfileRow]:
    """Yields the events of one file; lines before its header are skipped. Raises InputError if it cannot be read."""
    columns = list[int]()
    with open_regular(path, limit=_LARGEST) as stream:
        while (data := stream.readline(_LONGEST_LINE)).endswith(b"\n"):  # a last line without a line end is cut off
            try:
                fields = next(csv.reader([data.decode("utf-8", "replace").rstrip("\r\n")]), [])
            except csv.Error:
                continue
            named = [field.strip().lower() for field in fields]
            if not columns:
                columns = [named.index(column) for column in _COLUMNS] if set(_COLUMNS) <= set(named) else []
                continue
            if len(fields) <= max(columns):
                continue
            message, took, unit, source, level, name = (fields[at].strip() for at in columns)
            if columns[-1] == max(columns):
                # The provider quotes nothing, so a comma in an operator's name looks like a separator.
                name = ",".join(fields[columns[-1] :]).strip()
            try:
                value = float(took)
            except ValueError:
                value = math.nan
            yield ProfileRow(message, value, unit, source, level, name)


def read_profile_csv(path: Path, origins: Origins) -> CsvProfile:
    """Reads the cycles of each operator and the times of each run. Raises InputError for a file without any run."""
    nodes: dict[str, list[float]] = defaultdict(list)
    waited: dict[bool, list[float]] = {True: [], False: []}
    init = None
    for row in profile_rows(path):
        if not 0 <= row.value < math.inf:
            continue
        if row.message == "NODE":
            found = _NODE.fullmatch(row.name)
            nodes[row.name.rstrip(",") if found is None else found[1]].append(row.value)
        elif row.message == "INIT" and row.unit == "US":
            init = max(row.value, init or 0.0)
        elif row.message == "EXECUTE" and row.unit == "US" and row.level == "ROOT":
            waited[row.source == "NETRUN"].append(row.value)
    if not nodes and not any(waited.values()):
        raise InputError(f"{path}: not a profile of QNN", why="it tells of no run", next="run once more with --profile")
    return CsvProfile(origins.measured(nodes), tuple(waited[True] or waited[False]), init)

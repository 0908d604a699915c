"""The record of one run on a device: its values, their JSON, and how a package stores it. It runs nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from deploykit.backend.on_device import MeasuredOperator, Place
from deploykit.backend.status import Correctness, Right
from deploykit.devices.measure import Comparison, Latency
from deploykit.devices.profiles import EstimateRow
from deploykit.errors import InputError, PackageError
from deploykit.findings.records import Json, Published, published
from deploykit.packages.manifests import REPORT_PAGE, RUNS, content_of, json_text, read_manifest
from deploykit.packages.writing import record_run
from deploykit.report.pages import with_runs
from deploykit.system.folders import holding
from deploykit.tables.reading import read_json

__all__ = ["OutputBeside", "RunRecord", "keep_record", "last_samples"]

_WAIT_SECONDS, _ASKED_EVERY = 60.0, 0.1
_PARTS_DB = 3.0  # twice the noise: more than the difference in rounding between an emulator and its device


class OutputBeside(Published):
    """One output in decibels: device and emulator, each compared with the reference and with each other.

    A value is None if it was not compared or is not finite.
    """

    output: str
    device_db: float | None
    emulator_db: float | None
    beside_db: float | None

    @property
    def parts(self) -> bool:
        """Whether the device loses clearly more than the emulator."""
        pair = self.device_db, self.emulator_db
        return None not in pair and float(pair[1] or 0) - float(pair[0] or 0) > _PARTS_DB


class RunRecord(Published):
    """One run: the device, how it was run, whether the outputs are right, and how long it took in microseconds.

    ``where`` says what computed the outputs: device, emulator or simulated. ``emulator`` is the verdict on the
    emulator's outputs for the same samples. ``libraries`` maps what ran there to versions or build ids. ``budget``
    holds the limit for the 90th percentile and whether it was ``held``. None means not measured or not requested.
    """

    package: str
    backend: str
    target: str
    device: Place
    where: str
    started: str
    power: str
    right: Correctness
    emulator: Correctness | None = None
    outputs: tuple[OutputBeside, ...] = ()
    init_us: float | None = None
    latency: Latency | None = None
    peak_mb: float | None = None
    temperature_after: float | None = None
    units: Mapping[str, int] = {}
    operators: tuple[MeasuredOperator, ...] = ()
    estimate: tuple[EstimateRow, ...] = ()
    libraries: Mapping[str, str] = {}
    budget: Json | None = None
    against: Comparison | None = None

    @property
    def exit_status(self) -> int:
        """1 if the outputs are wrong or the budget is exceeded, else 0."""
        missed = self.budget is not None and not self.budget["held"]
        return int(self.right.state is Right.NO or self.right.broken or missed)

    @property
    def times_mean_something(self) -> bool:
        """Whether the times describe a device; those of an emulator or of this machine's processor do not."""
        return self.where == "device"

    def as_published(self) -> Json:
        """The published JSON, without paths and names that would identify the owner of the machine."""
        place = published(self.device, without=("folder", "python", "free_bytes", "temperature"))
        told = published(self, without=("device", "temperature_after"))
        temperature = {"before": self.device.temperature, "after": self.temperature_after}
        meaning = "measured on the device" if self.times_mean_something else "no device: the times mean nothing"
        return {"schema": 1, **told, "device": place, "temperature": temperature, "times": meaning}


def keep_record(package: Path, content: str, record: RunRecord) -> str:
    """Store a record in the package it is about, add it to the package's report, and return its path in the package.

    ``content`` identifies what was run. Runs that end at the same time wait for each other and all are kept. Raises
    PackageError if the package has changed since, or stays in use for a minute.
    """
    until = time.monotonic() + _WAIT_SECONDS
    with ExitStack() as held:
        while not held.enter_context(holding(package)):
            if time.monotonic() > until:
                raise PackageError(f"{package}: is in use by another process", next="run it again later")
            time.sleep(_ASKED_EVERY)
        manifest = read_manifest(package)
        if content != content_of(manifest):
            raise PackageError(f"{package}: was changed while it ran", next="run it again")
        number = f"{len(manifest.get('runs', ())) + 1:04d}"
        path = f"{RUNS}/{number}.json"
        entry = {
            "id": number,
            "content": content,
            "device": record.device.name,
            "serial": record.device.serial,
            **record.right.to_json(),
            "where": record.where,
            "emulator": None if record.emulator is None else str(record.emulator.state),
            "parts": [output.output for output in record.outputs if output.parts],
            "median_us": None if record.latency is None else record.latency.median_us,
            "p90_us": None if record.latency is None else record.latency.p90_us,
            "record": path,
        }
        runs = [*manifest.get("runs", ()), entry]
        texts = {path: json_text(record.to_json())}
        report = (package / REPORT_PAGE).read_text("utf-8") if REPORT_PAGE in manifest["files"] else ""
        record_run(package, manifest, entry, texts, with_runs(report, {**manifest, "runs": runs}))
    return path


def last_samples(place: Path) -> tuple[float, ...]:
    """Return the raw times of a record file, or of the last run in a package. Raises InputError if there are none."""
    file = place
    if place.is_dir():
        runs = read_manifest(place).get("runs") or []
        if not runs:
            raise InputError(f"{place}: holds no run", next="deploykit run it first")
        file = place / str(runs[-1]["record"])
    latency = read_json(file).get("latency")
    samples = latency.get("samples_us") if isinstance(latency, dict) else None
    if not isinstance(samples, list) or not samples or not all(isinstance(value, int | float) for value in samples):
        raise InputError(f"{file}: holds no measured times")
    return tuple(map(float, samples))

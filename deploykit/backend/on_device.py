"""The values exchanged between the core and a backend about a run on a device. Nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploykit.findings.records import Arrays, Names, Published, Record

__all__ = ["LONGEST_RUN", "DeviceFile", "DeviceJob", "DeviceRequest", "DeviceResults", "MeasuredOperator"]
__all__ += ["Measuring", "Place"]

LONGEST_RUN = 1800.0
"""The seconds after which a program on a device is ended."""


class Place(Published):
    """The properties of a device; "" if it does not state one. ``serial`` is a hash.

    ``folder`` is the absolute path of this run's own folder there, ``temperature`` the highest one it reads, in °C.
    """

    kind: str
    system: str
    machine: str
    folder: str
    abi: str = ""
    soc: str = ""
    release: str = ""
    serial: str = ""
    python: str = ""
    free_bytes: int | None = None
    temperature: float | None = None

    @property
    def name(self) -> str:
        """The chip, system, release and machine in a few words."""
        return " ".join(filter(None, (self.soc, self.system, self.release, self.machine)))


class Measuring(Record, eq=False):
    """How to measure: inference is repeated ``iterations`` times after ``warmup``, for at most ``seconds``.

    ``profile`` requests the times of single operators, in a separate run.
    """

    iterations: int = 100
    warmup: int = 10
    seconds: float = 10.0
    profile: bool = True


class DeviceRequest(Measuring, eq=False):
    """A request to a device: the samples to judge on, and how to measure.

    ``power`` is burst, balanced, saver, or "" for the package's own setting.
    """

    feeds: Sequence[Arrays]
    place: Place
    power: str = ""


class DeviceFile(Record, kw_only=False):
    """One file in the run's folder, by its path there; ``source`` is a local file, or the bytes."""

    path: str
    source: Path | bytes
    executable: bool = False


class DeviceJob(Record):
    """The files to push, the command to start in the run's folder, and the ``results`` that must be there afterwards.

    ``where`` is the source of the outputs: ``device``, ``emulator``, or ``simulated`` for a plain CPU.
    ``started`` describes how the program runs, if that affects its times. ``distributions`` of Python
    must be installed there in these exact versions.
    """

    files: tuple[DeviceFile, ...]
    argv: tuple[str, ...]
    results: Names
    optional: Names = ()
    environment: Mapping[str, str] = {}
    where: str = "device"
    started: str = ""
    distributions: Mapping[str, str] = {}
    timeout: float = LONGEST_RUN


class MeasuredOperator(Published):
    """One operator of a profile: the user's ``node`` ("" if there is none), and its ``raw`` name in the profile.

    ``unit`` is cycles or us; cycles are not converted to times, since operators
    run in parallel. ``on`` is NPU, GPU, CPU or "".
    """

    node: str
    raw: str
    value: float
    unit: str
    op_type: str = ""
    on: str = ""


class DeviceResults(Record, eq=False):
    """The results of a device: the outputs of each sample, single times in microseconds, and the profile's operators.

    ``libraries`` are the build ids or versions of the libraries that ran.
    """

    outputs: tuple[Arrays, ...]
    latencies_us: tuple[float, ...] = ()
    init_us: float | None = None
    peak_mb: float | None = None
    operators: tuple[MeasuredOperator, ...] = ()
    libraries: Mapping[str, str] = {}

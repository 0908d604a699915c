"""What goes between the core and a backend about a run on a device: values only, nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploykit.findings.records import Arrays, Names, Published, Record

__all__ = ["LONGEST_RUN", "DeviceFile", "DeviceJob", "DeviceRequest", "DeviceResults", "MeasuredOperator"]
__all__ += ["Measuring", "Place"]

LONGEST_RUN = 1800.0
"""Seconds after which a program on a device is ended."""


class Place(Published):
    """What a device says of itself. "" is what it does not say; ``serial`` is a hash.

    ``folder`` is the absolute path of this run's own folder there, ``temperature`` the highest that it reads, in °C.
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
        """In a few words."""
        return " ".join(filter(None, (self.soc, self.system, self.release, self.machine)))


class Measuring(Record, eq=False):
    """How to measure: inference is repeated ``iterations`` times after ``warmup``, for at most ``seconds``.

    ``profile`` asks for times of single operators, in a run of their own.
    """

    iterations: int = 100
    warmup: int = 10
    seconds: float = 10.0
    profile: bool = True


class DeviceRequest(Measuring, eq=False):
    """What is asked of a device: the samples to judge on, and how to measure.

    ``power`` is burst, balanced, saver or "" for what the package says.
    """

    feeds: Sequence[Arrays]
    place: Place
    power: str = ""


class DeviceFile(Record, kw_only=False):
    """One file of the run's folder, by its path there; ``source`` is a file here, or the bytes."""

    path: str
    source: Path | bytes
    executable: bool = False


class DeviceJob(Record):
    """What is pushed, started in the run's folder, and pulled: ``results`` must be there afterwards.

    ``where`` says what the outputs come from: ``device``, ``emulator``, or ``simulated`` for a plain CPU. ``started``
    says how the program runs, where that matters to its times. ``distributions`` of Python must be installed there in
    these very versions.
    """

    files: tuple[DeviceFile, ...]
    argv: tuple[str, ...]
    results: Names
    optional: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    where: str = "device"
    started: str = ""
    distributions: Mapping[str, str] = {}
    timeout: float = LONGEST_RUN


class MeasuredOperator(Published):
    """One operator of a profile: the user's ``node`` ("" where it maps to none), and its ``raw`` name in the profile.

    ``unit`` is cycles or us; cycles stay cycles, since operators run in parallel. ``on`` is NPU, GPU, CPU or "".
    """

    node: str
    raw: str
    value: float
    unit: str
    op_type: str = ""
    on: str = ""


class DeviceResults(Record, eq=False):
    """What a device gave: the outputs of each sample, times in microseconds one by one, and what its profile says.

    ``libraries`` are build ids or versions of what ran.
    """

    outputs: tuple[Arrays, ...]
    latencies_us: tuple[float, ...] = ()
    init_us: float | None = None
    peak_mb: float | None = None
    operators: tuple[MeasuredOperator, ...] = ()
    libraries: Mapping[str, str] = {}

"""Bounds on the memory and the time that one piece of work may take; it knows nothing of the work."""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from deploykit.errors import UsageError

__all__ = [
    "VARIABLE",
    "guarded_memory",
    "limited_memory",
    "limited_time",
    "lost_patience",
    "memory_budget",
    "one_patience",
    "time_left",
    "unbounded",
    "with_memory",
]

VARIABLE = "DEPLOYKIT_MEMORY"
"""The environment variable that states the budget: processes started by this one obey it too."""

_LOCK = threading.Lock()
_BOUNDS: list[int] = []  # what the process had, then each bound that is in force
_END: ContextVar[float | None] = ContextVar("_END", default=None)  # of the caller's work, on the monotonic clock
_LOST: ContextVar[list[bool] | None] = ContextVar("_LOST", default=None)  # one entry for each run that was ended
_SHARE = 0.6  # of free memory: the rest is for ONNX Runtime's own buffers, which nobody counts
_CHECKING = 2 << 30  # nothing that a check does with a real model comes near
_COPIES = 4
_UNKNOWN = 4 << 30  # what counts as free where the system does not say
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@contextmanager
def limited_time(seconds: float | None) -> Iterator[None]:
    """Let the programs and the sessions that are run inside take so many seconds altogether; None sets no bound.

    Bounds nest, and the tightest counts. They are ended when it is over; code of our own asks ``time_left`` between two
    of its steps.
    """
    left = time_left()
    ends = [time.monotonic() + bound for bound in (seconds, left) if bound is not None]
    before = _END.set(min(ends, default=None))
    try:
        yield
    finally:
        _END.reset(before)


def time_left() -> float | None:
    """The seconds that are left to the caller, 0 when its time is over, None without a bound."""
    end = _END.get()
    return None if end is None else max(0.0, end - time.monotonic())


@contextmanager
def one_patience() -> Iterator[None]:
    """Let what is done inside know when one run of a stranger's model took too long: then no other has to."""
    before = _LOST.set([] if (outer := _LOST.get()) is None else outer)
    try:
        yield
    finally:
        _LOST.reset(before)


def lost_patience() -> list[bool]:
    """One entry for each run that was ended inside ``one_patience``; outside of it nothing is kept."""
    lost = _LOST.get()
    return [] if lost is None else lost


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let the process write to at most ``more`` bytes beyond what it has now; asking for more fails as if none were.

    Files that are only looked into are left out. Works where the system tells the size of a process (Linux); elsewhere
    nothing is bounded. Threads share the bound; programs that are started inside have none.
    """
    pages = _text(Path("/proc/self/statm")).split()
    if not pages:
        yield
        return
    wanted = int(pages[5]) * resource.getpagesize() + more
    # Threads end their work in any order: the tightest of what is still under way counts, and in the end the first.
    with _LOCK:
        if not _BOUNDS:
            _BOUNDS.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
        _BOUNDS.append(wanted)
        _set_tightest()
    try:
        yield
    finally:
        with _LOCK:
            _BOUNDS.remove(wanted)
            _set_tightest()
            if len(_BOUNDS) == 1:
                _BOUNDS.clear()


def _set_tightest() -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    known = [bound for bound in (*_BOUNDS, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known, default=resource.RLIM_INFINITY), hard))


@contextmanager
def guarded_memory(size: int = 0, *, checking: bool = False) -> Iterator[None]:
    """The bound for work on a stranger's model of ``size`` bytes: the budget, at most 2 GiB where it is only checked.

    Beside it stands what the model takes by itself, as bytes, as a message, and once more where it is changed.
    """
    most = min(memory_budget(), _CHECKING) if checking else memory_budget()
    with limited_memory(most + _COPIES * size):
        yield


def unbounded(pid: int) -> None:
    """Take the bounds of memory from a program that was started inside of some: it has its own."""
    with suppress(OSError, AttributeError):  # gone already, or not Linux
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.prlimit(pid, resource.RLIMIT_DATA, (hard, hard))


def read_size(text: str) -> int:
    """The bytes of ``3G``, ``512M`` or ``1.5GiB``; powers of 1024. Raises UsageError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * 1024 ** _POWERS[found[2].upper()]) if found else 0
    if not 0 < size < 1 << 60:  # no machine has more
        raise UsageError(f"{text!r} is no amount of memory", next="give bytes, or a number with K, M, G or T: 3G")
    return size


def memory_budget() -> int:
    """The bytes that simulations may take: ``DEPLOYKIT_MEMORY`` (``--memory``), else 60 % of what is free now."""
    said = os.environ.get(VARIABLE)
    return read_size(said) if said else int(_SHARE * free_memory())


@contextmanager
def with_memory(size: str | None) -> Iterator[None]:
    """State the budget for what is done inside, in this process and those it starts; None changes nothing."""
    before = os.environ.get(VARIABLE)
    if size is None:
        yield
        return
    read_size(size)
    os.environ[VARIABLE] = size
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that could be had now without swapping, in the machine and in the control group (v2) of this process."""
    known = [int(kilobytes) * 1024 for kilobytes in re.findall(r"MemAvailable: *(\d+)", _text(root / "proc/meminfo"))]
    top = root / "sys/fs/cgroup"
    for path in re.findall(r"^0::(.*)", _text(root / "proc/self/cgroup"), re.MULTILINE):
        here = top / path.lstrip("/")
        for group in (here, *here.parents):
            most, taken = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
            if group.is_relative_to(top) and most.isdigit() and taken.isdigit():
                # Caches of files count as free, since the kernel gives them up first.
                cached = re.findall(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                known.append(int(most) - int(taken) + sum(map(int, cached)))
    return max(0, min(known, default=_UNKNOWN))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii")
    except (OSError, UnicodeError):
        return ""

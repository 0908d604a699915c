"""Limits the memory and the time that one piece of work may take, whatever the work is."""

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
    "memory_budget",
    "share_timeouts",
    "shared_timeouts",
    "time_left",
    "unbounded",
    "with_memory",
]

VARIABLE = "DEPLOYKIT_MEMORY"
"""The environment variable that sets the budget; child processes obey it too."""

_LOCK = threading.Lock()
_BOUNDS: list[int] = []  # the original limit of the process, then each bound in force
_END: ContextVar[float | None] = ContextVar("_END", default=None)  # of the caller's work, on the monotonic clock
_LOST: ContextVar[list[bool] | None] = ContextVar("_LOST", default=None)  # one entry for each run that was ended
_SHARE = 0.6  # of free memory: the rest is for ONNX Runtime's own buffers, which are not counted
_CHECKING = 2 << 30  # far above what a check of a real model needs
_COPIES = 4
_UNKNOWN = 4 << 30  # free memory to assume if the system does not report it
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@contextmanager
def limited_time(seconds: float | None) -> Iterator[None]:
    """Limit the total time of programs and sessions that are run inside, in seconds; None sets no limit.

    Limits nest, and the tightest one counts. Programs are ended when the time is up; our
    own code checks ``time_left`` between two steps.
    """
    left = time_left()
    ends = [time.monotonic() + bound for bound in (seconds, left) if bound is not None]
    before = _END.set(min(ends, default=None))
    try:
        yield
    finally:
        _END.reset(before)


def time_left() -> float | None:
    """Return the seconds left to the caller, 0 if the time is up, None without a limit."""
    end = _END.get()
    return None if end is None else max(0.0, end - time.monotonic())


@contextmanager
def share_timeouts() -> Iterator[None]:
    """Share the fact that one run of an untrusted model took too long, so that no other run inside waits again."""
    before = _LOST.set([] if (outer := _LOST.get()) is None else outer)
    try:
        yield
    finally:
        _LOST.reset(before)


def shared_timeouts() -> list[bool]:
    """The list with one entry per run ended inside ``share_timeouts``; outside of it, a list that nobody else sees."""
    lost = _LOST.get()
    return [] if lost is None else lost


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Allow the process at most ``more`` bytes of writable memory beyond what it has now; further allocations fail.

    Read-only mapped files do not count. It works if the system reports the size of a process (Linux) and has no effect
    elsewhere. Threads share the limit; programs started inside have none.
    """
    pages = _text(Path("/proc/self/statm")).split()
    if not pages:
        yield
        return
    wanted = int(pages[5]) * resource.getpagesize() + more
    # Threads end in any order: the tightest limit in force counts, and in the end the original one.
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
    """Limit memory for work on an untrusted model of ``size`` bytes to the budget, or to 2 GiB if only ``checking``.

    The memory of the model itself is added: as bytes, as a parsed message, and copies of it that are changed.
    """
    most = min(memory_budget(), _CHECKING) if checking else memory_budget()
    with limited_memory(most + _COPIES * size):
        yield


def unbounded(pid: int) -> None:
    """Remove inherited memory limits from a child program, which has its own."""
    with suppress(OSError, AttributeError):  # ended already, or not Linux
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.prlimit(pid, resource.RLIMIT_DATA, (hard, hard))


def read_size(text: str) -> int:
    """Return the bytes of ``3G``, ``512M`` or ``1.5GiB``, with powers of 1024. Raises UsageError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * 1024 ** _POWERS[found[2].upper()]) if found else 0
    if not 0 < size < 1 << 60:  # no machine has more
        raise UsageError(f"{text!r} is no amount of memory", next="give bytes, or a number with K, M, G or T: 3G")
    return size


def memory_budget() -> int:
    """Return the bytes that simulations may use: ``DEPLOYKIT_MEMORY`` (``--memory``), else 60 % of free memory."""
    said = os.environ.get(VARIABLE)
    return read_size(said) if said else int(_SHARE * free_memory())


@contextmanager
def with_memory(size: str | None) -> Iterator[None]:
    """Set the memory budget inside, for this process and its children; None changes nothing."""
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
    """Return the bytes available without swapping, on the machine and in this process's control group (v2)."""
    known = [int(kilobytes) * 1024 for kilobytes in re.findall(r"MemAvailable: *(\d+)", _text(root / "proc/meminfo"))]
    top = root / "sys/fs/cgroup"
    for path in re.findall(r"^0::(.*)", _text(root / "proc/self/cgroup"), re.MULTILINE):
        here = top / path.lstrip("/")
        for group in (here, *here.parents):
            most = _text(group / "memory.max").strip()  # most groups have no limit: then nothing more is read
            taken = _text(group / "memory.current").strip() if most.isdigit() else ""
            if group.is_relative_to(top) and taken.isdigit():
                # File caches count as free, since the kernel releases them first.
                cached = re.findall(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                known.append(int(most) - int(taken) + sum(map(int, cached)))
    return max(0, min(known, default=_UNKNOWN))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii")
    except (OSError, UnicodeError):
        return ""

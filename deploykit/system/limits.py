"""Bounds on the memory and the time that one piece of work may take; it knows nothing of the work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["limited_memory", "limited_time", "time_left"]

_PAGES = Path("/proc/self/statm")
_END: ContextVar[float | None] = ContextVar("_END", default=None)
"""When the work of the caller has to be done, on the monotonic clock."""


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
def limited_memory(more: int) -> Iterator[None]:
    """Let the process take at most ``more`` bytes beyond what it has now; asking for more fails as if there were none.

    Works where the system tells the size of a process (Linux); elsewhere nothing is bounded. Threads share the bound.
    """
    taken = _taken()
    if resource is None or taken is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = taken + more
    if any(limit != resource.RLIM_INFINITY and limit < wanted for limit in (soft, hard)):
        yield  # a tighter bound stands already
        return
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _taken() -> int | None:
    """The address space of this process in bytes."""
    try:
        return int(_PAGES.read_text("ascii").split()[0]) * resource.getpagesize()
    except (OSError, AttributeError):
        return None

"""Bounds on the memory of this process, for the time of one piece of work; it knows nothing of the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["limited_memory"]

_PAGES = Path("/proc/self/statm")


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

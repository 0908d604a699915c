"""Locks between processes, held by a file: the system frees one when its process ends, however that happens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["holding", "is_held", "lock_file"]


def lock_file(path: Path) -> Path:
    """The file whose lock stands for whatever lies at ``path``."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def holding(path: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of ``path``. Where another process has it, call ``waiting`` once, then wait as long as it takes.

    ``waiting`` may raise instead, where waiting makes no sense.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(path).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """True while some process holds the lock of ``path``."""
    import fcntl

    try:
        with lock_file(path).open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False

"""Locks between processes, held by a file: the system frees one when its process ends, however that happens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deploykit.system.platforms import hold

__all__ = ["holding", "is_held", "lock_file"]

_ASKED_EVERY = 0.2
"""Seconds between two tries of one that waits."""


def lock_file(path: Path) -> Path:
    """The file whose lock stands for whatever lies at ``path``."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def holding(path: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of ``path``. Where another process has it, call ``waiting`` once, then wait as long as it takes.

    ``waiting`` may raise instead, where waiting makes no sense.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    with lock_file(path).open("w") as handle, contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(hold(handle, shared=False))
                break
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(_ASKED_EVERY)
        yield


def is_held(path: Path) -> bool:
    """True while some process holds the lock of ``path``."""
    try:
        with lock_file(path).open("r") as handle, hold(handle, shared=True):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False

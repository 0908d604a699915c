"""How often Python looks for values that only hold each other; it frees nothing by itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collecting_seldom"]

_NEW = 50_000
"""New values after which the youngest are gone through, where Python waits for 700: nearly all of ours live on."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """For a command: it makes hundreds of thousands of values that live until it ends, and few that hold each other."""
    before = gc.get_threshold()
    gc.set_threshold(_NEW, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

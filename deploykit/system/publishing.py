"""Puts a finished folder where others look for it, in one step: the whole folder or none is seen there.

It compares nothing and removes nothing; what may be replaced is decided by whoever calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["exchange", "put_in_place"]

_HERE = -100
"""AT_FDCWD of Linux: names are relative to the working folder."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2), Linux 3.15."""
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def put_in_place(fresh: Path, place: Path) -> None:
    """Move a folder to a place where nothing, or an empty folder, stands. Raises OSError where something else does."""
    if os.name == "nt" and place.is_dir():
        place.rmdir()  # a rename there replaces nothing at all
    # A rename never replaces a folder that holds something, however short ago that came.
    fresh.rename(place)


def exchange(fresh: Path, place: Path, aside: Path) -> None:
    """Move ``fresh`` to ``place`` and what stands there to ``aside``, in one step where the system has it.

    Else there is a moment in which nothing stands at ``place``; killed there, a process leaves the old folder at
    ``aside`` and the new one at ``fresh``. Raises OSError; then everything is where it was.
    """
    if _swapped(fresh, place):
        fresh.rename(aside)
        return
    place.rename(aside)
    try:
        fresh.rename(place)
    except OSError:
        aside.rename(place)
        raise


def _swapped(one: Path, other: Path) -> bool:
    """True when the system has exchanged two names; False where it cannot."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(other))


@cache
def _renameat2() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # a C library older than the call
        return None

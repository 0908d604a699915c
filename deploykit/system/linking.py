"""Puts a file under a second name without copying it: blocks shared where the disk can, else a hard link.

Blocks that are shared are a copy to everybody who looks: each name keeps its content whatever is written to the other.
A hard link is one file with two names. It hashes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

__all__ = ["link"]

_FICLONE = 0x40049409
"""The request of Linux that makes a file share all blocks of another (``linux/fs.h``)."""


def link(source: Path, place: Path) -> bool:
    """Give ``source`` the new name ``place``; True where it is one file now, False where blocks are shared.

    Raises OSError where the disk can do neither, or the two lie on different ones.
    """
    if _shares_blocks(source, place):
        return False
    os.link(source.resolve(), place)  # a link to a link would break with the package's first move
    return True


def _shares_blocks(source: Path, place: Path) -> bool:
    if fcntl is None:
        return False
    with source.open("rb") as stream, place.open("xb") as sink:
        try:
            fcntl.ioctl(sink.fileno(), _FICLONE, stream.fileno())
        except OSError:  # another disk, one that has no such thing, or a system that calls it otherwise
            place.unlink()
            return False
    return True

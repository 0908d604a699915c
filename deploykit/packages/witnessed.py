"""Remembers what large files hashed to, for as long as the system says that nobody wrote to them; nothing is kept.

Four gigabytes are then read once while a package is made, and not again for the list of inputs and for the check of
what was written. A file of a few megabytes is read each time.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from deploykit.packages.manifests import hash_file

__all__ = ["Look", "Witnessed"]

_LARGE = 16 << 20
# Nanoseconds after which another change would show in the time of the last one, on any disk.
_SETTLED = 2_000_000_000
# The same where times tell more than hundredths of a second: they then step with the system's own clock.
_SETTLED_FINE = 100_000_000
_HUNDREDTH = 10_000_000

_Identity = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of a file before it is read, and whether every change from then on shows in its times."""

    status: os.stat_result
    settled: bool

    @classmethod
    def at(cls, status: os.stat_result) -> Look:
        """A state that was asked for just now.

        To give a file another name, or to take one away, is a change too: its time is that of what was done last.
        """
        least = _SETTLED_FINE if status.st_ctime_ns % _HUNDREDTH else _SETTLED
        age = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)
        return cls(status=status, settled=age > least)


class Witnessed:
    """The sizes and digests of files that were hashed while they were read or written, by their identity."""

    def __init__(self) -> None:
        self._known: dict[_Identity, tuple[int, str]] = {}

    def note_read(self, before: Look, after: os.stat_result, size: int, digest: str, *, linked: bool = False) -> None:
        """A file of somebody else's, which has these states before and after it was read whole.

        One that was ``linked`` in between has a later change time; a write shows in the time of the last one.
        """
        was, is_now = _identity(before.status), _identity(after)
        if before.settled and (was == is_now or (linked and was[:-1] == is_now[:-1])):
            self._note(after, size, digest)

    def note_written(self, path: Path, size: int, digest: str) -> None:
        """A file that this process wrote, where no other writes."""
        self._note(path.stat(), size, digest)

    def hash(self, path: Path, *, size: int | None = None, follow: bool = True) -> tuple[int, str]:
        """What ``hash_file`` says: remembered for a large file that nobody wrote to since, else read now."""
        try:
            known = self._known.get(_identity(path.stat(follow_symlinks=follow)))
        except OSError:
            known = None
        if known is None or size not in (None, known[0]):
            return hash_file(path, size=size, follow=follow)
        return known

    def _note(self, status: os.stat_result, size: int, digest: str) -> None:
        if size >= _LARGE and status.st_size == size:
            self._known[_identity(status)] = (size, digest)


def _identity(status: os.stat_result) -> _Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

"""Private folders that a process works in: held while it lives, found and cleared by the next one when it died.

The lock is the system's, so it ends with the process however that ends. Nothing here knows what lies in the folders.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from deploykit.system.platforms import is_own

try:
    import fcntl
except ImportError:  # Windows: nothing is known to be abandoned there, so nothing is cleared
    fcntl = None  # type: ignore[assignment]

__all__ = ["GONE", "abandoned", "discard", "holding", "scratch", "workspace"]

GONE = "gone"
"""The folder of a workspace whose content was judged and may be removed, however much of it still stands."""

_LONGEST_STEM = 200
_TRIES = 100


@contextmanager
def workspace(parent: Path, stem: str) -> Iterator[Path]:
    """A new folder in ``parent``, named after ``stem``; it is removed at the end. Raises OSError."""
    tried: list[Path] = []
    handle = None
    try:
        folder, handle = _hold_new(parent, stem, tried)
        yield folder
    finally:
        for made in tried:
            _remove_surely(made)
        _close(handle)


def _hold_new(parent: Path, stem: str, tried: list[Path]) -> tuple[Path, int]:
    """A new folder and its lock. ``tried`` names a folder before it is made: a signal may come while it is."""
    for _ in range(_TRIES):
        folder = parent / f"{_prefix(stem)}{secrets.token_hex(8)}"
        tried.append(folder)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            tried.remove(folder)
            continue
        handle = _lock(folder)
        # Between the two another process may have taken the folder for an abandoned one.
        if folder.is_dir() and handle is not None:
            return folder, handle
        _close(handle)
    raise OSError(f"no folder in {parent} can be held")


def _remove_surely(folder: Path) -> None:
    """Remove a folder, also when the one signal that a command takes comes in the middle of it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def abandoned(parent: Path, stem: str) -> Iterator[Path]:
    """The folders that ``workspace`` made with these arguments in processes that died, each held while it is given."""
    try:
        found = sorted(path for path in parent.iterdir() if path.name.startswith(_prefix(stem)) and is_own(path))
    except OSError:
        return
    for folder in found:
        handle = _lock(folder) if not folder.is_symlink() and folder.is_dir() else None
        if handle is None or handle == _UNLOCKED:
            continue
        try:
            yield folder
        finally:
            _close(handle)


def discard(folder: Path) -> None:
    """Remove a folder of a workspace about which it was decided that it may go. Raises OSError.

    It is renamed first: a process that dies while it removes files leaves a part, and a part cannot be judged again.
    """
    gone = folder.with_name(GONE)
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def holding(folder: Path) -> Iterator[bool]:
    """Hold a folder that exists; False while another process does."""
    handle = _lock(folder)
    try:
        yield handle is not None
    finally:
        _close(handle)


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A folder for what is needed for a moment, in the system's temporary folder or in ``parent``.

    What processes that died left there is removed first.
    """
    place = parent or Path(tempfile.gettempdir())
    for left in abandoned(place, _SCRATCH):
        shutil.rmtree(left, ignore_errors=True)
    with workspace(place, _SCRATCH) as folder:
        yield folder


_SCRATCH = "scratch"
_UNLOCKED = -1


def _prefix(stem: str) -> str:
    long = len(os.fsencode(stem)) > _LONGEST_STEM
    return f".{sha256(os.fsencode(stem)).hexdigest()[:32] if long else stem}.deploykit-"


def _lock(folder: Path) -> int | None:
    """The lock's handle; ``_UNLOCKED`` where the system or the disk has no locks, None where another holds it."""
    if fcntl is None:
        return _UNLOCKED
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError:
        return _UNLOCKED
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        return _UNLOCKED
    return handle


def _close(handle: int | None) -> None:
    if handle is not None and handle != _UNLOCKED:
        os.close(handle)

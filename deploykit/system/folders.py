"""Private working folders of a process, moving finished folders into place, and locks between processes.

The locks are the operating system's, so they end with their process in every case: the next process finds what a dead
one left and removes it. The content of the folders does not matter here.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

__all__ = [
    "GONE",
    "abandoned",
    "discard",
    "exchange",
    "holding",
    "is_locked",
    "scratch",
    "waiting_for",
    "workspace",
]

GONE = "gone"
"""The folder of a workspace for content that was judged removable, even if only a part of it is left."""

_SCRATCH = "scratch"
_LONGEST_STEM = 200  # file systems allow names of 255 bytes; the rest is for the suffix
_TRIES = 100
_ASKED_EVERY = 0.2  # seconds between two attempts while waiting
_UNLOCKED = -1  # the handle on a disk without locks


@contextmanager
def workspace(parent: Path, stem: str, *, keeps: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Make a folder in ``parent`` named after ``stem`` and remove it at the end unless ``keeps()``. Raises OSError."""
    tried = list[Path]()
    handle = None
    try:
        folder, handle = _hold_new(parent, stem, tried)
        yield folder
    finally:
        for made in () if keeps() else tried:
            try:
                shutil.rmtree(made, ignore_errors=True)
            except BaseException:  # a signal arrived in the middle of it
                shutil.rmtree(made, ignore_errors=True)
                raise
        _close(handle)


def _hold_new(parent: Path, stem: str, tried: list[Path]) -> tuple[Path, int]:
    """Return a new folder and its lock. Adds the folder to ``tried`` before making it: a signal may arrive then."""
    for _ in range(_TRIES):
        folder = parent / f"{_prefix(stem)}{secrets.token_hex(8)}"
        tried.append(folder)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            tried.remove(folder)
            continue
        handle = _lock(folder)
        # In between another process may have removed the folder as abandoned.
        if folder.is_dir() and handle is not None:
            return folder, handle
        _close(handle)
    raise OSError(f"no folder in {parent} can be held")


def abandoned(parent: Path, stem: str) -> Iterator[Path]:
    """Yield the folders that ``workspace`` made with these arguments in dead processes, each locked meanwhile."""
    try:
        prefix = _prefix(stem)
        named = sorted(path for path in parent.iterdir() if path.name.startswith(prefix))
        own = [path for path in named if path.lstat().st_uid == os.getuid()]
    except OSError:
        return
    for folder in own:
        handle = _lock(folder) if not folder.is_symlink() and folder.is_dir() else None
        if handle is None or handle == _UNLOCKED:
            continue
        try:
            yield folder
        finally:
            _close(handle)


def discard(folder: Path) -> None:
    """Remove a folder of a workspace that may be removed. Raises OSError.

    It is renamed first: a process that dies while removing files leaves a
    part of them, which could not be judged again.
    """
    gone = folder.with_name(GONE)
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Make a temporary folder in the system's temporary folder, or in ``parent``, and remove it at the end.

    Folders left there by dead processes are removed first.
    """
    place = parent or Path(tempfile.gettempdir())
    for left in abandoned(place, _SCRATCH):
        shutil.rmtree(left, ignore_errors=True)
    with workspace(place, _SCRATCH) as folder:
        yield folder


def exchange(fresh: Path, place: Path, aside: Path) -> None:
    """Move the folder at ``place`` to ``aside`` and ``fresh`` to
    ``place``. Raises OSError after undoing a partial move.

    For a moment nothing is at ``place``: a process killed then leaves the old folder at ``aside`` and the new one at
    ``fresh``, and the next process restores the old one.
    """
    try:
        place.rename(aside)
        fresh.rename(place)
    except BaseException:  # a signal is raised after the rename during which it arrived
        if not os.path.lexists(place):
            aside.rename(place)
        raise


@contextmanager
def holding(folder: Path) -> Iterator[bool]:
    """Lock an existing folder; yields False if another process holds it."""
    handle = _lock(folder)
    try:
        yield handle is not None
    finally:
        _close(handle)


@contextmanager
def waiting_for(path: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock for ``path``, which need not exist.

    If another process holds it, ``waiting`` is called once (it may raise), then this one waits as long as necessary.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    with _lock_file(path).open("w") as handle:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if not told:
                waiting()
            told = True
            time.sleep(_ASKED_EVERY)
        yield


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of ``path``."""
    try:
        with _lock_file(path).open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _prefix(stem: str) -> str:
    long = len(os.fsencode(stem)) > _LONGEST_STEM
    return f".{sha256(os.fsencode(stem)).hexdigest()[:32] if long else stem}.deploykit-"


def _lock(folder: Path) -> int | None:
    """Return the handle of a folder's lock.

    ``_UNLOCKED`` if the disk has no locks, None if another process holds the lock.
    """
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

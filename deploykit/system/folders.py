"""Private folders that a process works in, what it puts in place when it is done, and locks between processes.

A lock is the system's, so it ends with the process however that ends: the next process finds what a dead one left and
clears it. Nothing here knows what lies in the folders.
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
    "is_waited_for",
    "scratch",
    "waiting_for",
    "workspace",
]

GONE = "gone"
"""The folder of a workspace whose content was judged and may be removed, however much of it still stands."""

_SCRATCH = "scratch"
_LONGEST_STEM = 200  # file systems take names of 255 bytes; the rest is for what is added
_TRIES = 100
_ASKED_EVERY = 0.2  # seconds between two tries of one that waits
_UNLOCKED = -1  # the handle where the disk has no locks


@contextmanager
def workspace(parent: Path, stem: str, *, keeps: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """A new folder in ``parent``, named after ``stem``; removed at the end, unless it ``keeps``. Raises OSError."""
    tried: list[Path] = []
    handle = None
    try:
        folder, handle = _hold_new(parent, stem, tried)
        yield folder
    finally:
        for made in () if keeps() else tried:
            try:
                shutil.rmtree(made, ignore_errors=True)
            except BaseException:  # the one signal that a command takes came in the middle of it
                shutil.rmtree(made, ignore_errors=True)
                raise
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


def abandoned(parent: Path, stem: str) -> Iterator[Path]:
    """The folders that ``workspace`` made with these arguments in processes that died, each held while it is given."""
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
    """Remove a folder of a workspace about which it was decided that it may go. Raises OSError.

    It is renamed first: a process that dies while it removes files leaves a part, and a part cannot be judged again.
    """
    gone = folder.with_name(GONE)
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


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


def exchange(fresh: Path, place: Path, aside: Path) -> None:
    """Move what stands at ``place`` to ``aside`` and ``fresh`` to ``place``. Raises OSError; then all is as it was.

    Between the two nothing stands at ``place``: a process that is killed there leaves the old folder at ``aside`` and
    the new one at ``fresh``, and the next one puts it back.
    """
    try:
        place.rename(aside)
        fresh.rename(place)
    except BaseException:  # a signal is told behind the rename during which it came
        if not os.path.lexists(place):
            aside.rename(place)
        raise


@contextmanager
def holding(folder: Path) -> Iterator[bool]:
    """Hold a folder that exists; False while another process does."""
    handle = _lock(folder)
    try:
        yield handle is not None
    finally:
        _close(handle)


@contextmanager
def waiting_for(path: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock that stands for ``path``, which need not exist. Where another process has it, call ``waiting`` once
    (it may raise), then wait as long as it takes.
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


def is_waited_for(path: Path) -> bool:
    """True while some process holds the lock of ``path``."""
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
    """The lock's handle; ``_UNLOCKED`` where the disk has no locks, None where another process holds it."""
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

"""Stores results: within a run by a key, between runs by a hash of all inputs. Losing an entry only costs time.

An entry is written completely or not at all; it begins with the digest of the rest and is ignored if that does not
match. A folder in which another user could have written is not read. The meaning of the entries does not matter here.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property, wraps
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast

from deploykit.findings.records import Json, Published, grouped

__all__ = [
    "Kept",
    "Room",
    "Store",
    "cache_folder",
    "clear",
    "code_digest",
    "is_off",
    "key_of",
    "limit",
    "made_once",
    "rooms",
    "user_cache",
    "user_home",
]

T = TypeVar("T")

_LIMIT = 2 << 30  # bytes of all entries together, unless DEPLOYKIT_CACHE_LIMIT is set
_LARGEST = 512 << 20  # writing a larger entry would cost more than it is likely to save
# The file names of entries: no other files are counted or deleted.
_ENTRY = re.compile(r"[0-9a-f]{64}\.(json|zip|bin)")


def cache_folder() -> Path:
    """The folder of all entries: ``DEPLOYKIT_CACHE``, else deploykit's part of the user's cache folder."""
    return Path(os.environ.get("DEPLOYKIT_CACHE") or user_cache() / "deploykit")


def user_cache() -> Path:
    """The user's cache folder (``XDG_CACHE_HOME`` is honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or user_home() / ".cache")


def user_home() -> Path:
    """The user's home; a user unknown to the system, as in containers, gets a path under which nothing can exist."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def is_off() -> bool:
    """Whether ``DEPLOYKIT_NO_CACHE`` forbids reading and writing entries."""
    return os.environ.get("DEPLOYKIT_NO_CACHE", "").lower() not in ("", "0", "false", "no")


def limit() -> int:
    """The largest total size of all entries in bytes: ``DEPLOYKIT_CACHE_LIMIT``, else 2 GiB."""
    given = os.environ.get("DEPLOYKIT_CACHE_LIMIT", "")
    return int(given) if given.isascii() and given.isdigit() else _LIMIT


def key_of(content: bytes, asked: Json) -> str:
    """Return the name of an entry: a hash of the content and of all else the answer depends on, as JSON."""
    digest = sha256(json.dumps(asked, sort_keys=True).encode())
    digest.update(content)
    return digest.hexdigest()


@cache
def code_digest(folder: Path) -> str:
    """Return the digest of all code and tables in a folder, so that changing them invalidates entries."""
    found = sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml"):
            found.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return found.hexdigest()


class Kept:
    """Base class that keeps values made once, each under a key that always means the same thing."""

    @cached_property
    def _derived(self) -> dict[Hashable, object]:
        return {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value under ``key``, made now if there is none."""
        if key not in self._derived:
            self._derived[key] = make()
        return cast("T", self._derived[key])

    def known(self, key: Hashable) -> Any:
        """Return the value under a key, None if there is none; unlike ``once`` it adds no call depth."""
        return self._derived.get(key)

    def keep(self, key: Hashable, made: T) -> T:
        """Store and return a value, which ``known`` and ``once`` then find."""
        self._derived[key] = made
        return made


K = TypeVar("K", bound=Kept)


def made_once(make: Callable[[K], T]) -> Callable[[K], T]:
    """Decorate a function of a ``Kept`` object so that it computes its result once per object."""

    @wraps(make)
    def found(kept: K) -> T:
        if make not in kept._derived:
            kept._derived[make] = make(kept)
        return cast("T", kept._derived[make])

    return found


class Store:
    """Entries of one kind: JSON objects or sets of files, each in a separate file below ``cache_folder()``."""

    def __init__(self, kind: str) -> None:
        self.folder = cache_folder() / kind

    def get(self, key: str) -> Json | None:
        """Return the answer under a key, None if there is none or it is damaged."""
        data = self._read(f"{key}.json")
        found: Json | None = None if data is None else json.loads(data)
        return found

    def put(self, key: str, answer: Json, *, tidy: bool = True) -> None:
        """Store an answer, completely or not at all; does nothing if the folder cannot be written to.

        Without ``tidy`` no old entries are removed to make room: for many small answers in a row.
        """
        self._write(f"{key}.json", json.dumps(answer).encode(), tidy=tidy)

    def take(self, key: str, folder: Path) -> bool:
        """Restore the files of an entry into an empty folder; False if there is no such entry or it is incomplete."""
        from zipfile import BadZipFile, ZipFile

        data = self._read(f"{key}.zip")
        if data is None:
            return False
        try:
            with ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    pure = PurePosixPath(name)
                    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\\" in name:
                        return False
                archive.extractall(folder)
        except (OSError, ValueError, BadZipFile):
            return False
        return True

    def keep(self, key: str, folder: Path, names: Iterable[str]) -> None:
        """Store files by their path within a folder; does nothing if they are too large."""
        from zipfile import ZipFile

        paths = {name: folder / name for name in names}
        if sum(path.stat().st_size for path in paths.values()) > _LARGEST:
            return
        made = io.BytesIO()
        with ZipFile(made, "w") as archive:
            for name, path in paths.items():
                archive.write(path, name)
        self._write(f"{key}.zip", made.getvalue())

    def _read(self, name: str) -> bytes | None:
        if is_off() or not _is_private(self.folder):
            return None
        path = self.folder / name
        try:
            digest, _, data = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if digest != sha256(data).hexdigest().encode():
            return None
        with suppress(OSError):
            os.utime(path)  # the least recently used entries are removed first
        return data

    def _write(self, name: str, data: bytes, *, tidy: bool = True) -> None:
        if is_off() or len(data) > limit():
            return
        import tempfile

        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.folder):
                return
            with tempfile.NamedTemporaryFile("wb", dir=self.folder, prefix=".", delete=False) as file:
                made = Path(file.name)
                try:
                    file.write(sha256(data).hexdigest().encode() + b"\n" + data)
                    file.flush()
                    made.replace(self.folder / name)
                except OSError:
                    made.unlink(missing_ok=True)
                    raise
            if tidy:
                _make_room(self.folder.parent)


def _is_private(folder: Path) -> bool:
    """Whether a folder belongs to this user and nobody else may write to it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_room(root: Path) -> None:
    """Remove the least recently used entries until the rest is within the limit."""
    found = sorted(_entries(root))
    left, most = sum(size for _, size, _ in found), limit()
    for _, size, path in found:
        if left <= most:
            return
        with suppress(OSError):
            path.unlink()
        left -= size


def _entries(root: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield every entry of every kind: time of last use, bytes, path. Other files are ignored."""
    try:
        kinds = sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    for kind in kinds:
        with suppress(OSError):
            for path in kind.iterdir():
                if _ENTRY.fullmatch(path.name) and not path.is_symlink():
                    status = path.stat()
                    yield status.st_mtime_ns, status.st_size, path


class Room(Published):
    """What is stored of one kind: the number of entries and their bytes."""

    kind: str
    entries: int
    bytes: int


def rooms() -> tuple[Room, ...]:
    """Return every kind that has entries."""
    found = grouped((path.parent.name, size) for _, size, path in _entries(cache_folder()))
    return tuple(Room(kind=kind, entries=len(sizes), bytes=sum(sizes)) for kind, sizes in sorted(found.items()))


def clear() -> tuple[Room, ...]:
    """Remove all entries and return what there was."""
    before = rooms()
    for _, _, path in list(_entries(cache_folder())):
        path.unlink(missing_ok=True)
    return before

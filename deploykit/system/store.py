"""What is kept: within a run by a key, between runs by a hash of all it depends on, which costs time to lose, no more.

An entry is written whole or not at all, begins with the digest of the rest, and is no entry where that does not agree.
A folder in which another user could have written is not read. It knows no tool and no meaning of an answer.
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

_LIMIT = 2 << 30  # bytes of all entries together, where DEPLOYKIT_CACHE_LIMIT says no other number
_LARGEST = 512 << 20  # writing a larger entry would cost more than it is likely to save
# What an entry is called: nothing else is counted, and nothing else is ever deleted.
_ENTRY = re.compile(r"[0-9a-f]{64}\.(json|zip|bin)")


def cache_folder() -> Path:
    """Where entries live: ``DEPLOYKIT_CACHE``, else deploykit's part of the user's cache folder."""
    return Path(os.environ.get("DEPLOYKIT_CACHE") or user_cache() / "deploykit")


def user_cache() -> Path:
    """The user's cache folder (``XDG_CACHE_HOME`` honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or user_home() / ".cache")


def user_home() -> Path:
    """The user's home. Whom the system does not know, as in containers, has none: a place where nothing can be."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def is_off() -> bool:
    """True where ``DEPLOYKIT_NO_CACHE`` says that nothing is to be taken from here, nor left."""
    return os.environ.get("DEPLOYKIT_NO_CACHE", "").lower() not in ("", "0", "false", "no")


def limit() -> int:
    """Bytes that all entries together may take: ``DEPLOYKIT_CACHE_LIMIT``, else 2 GiB."""
    given = os.environ.get("DEPLOYKIT_CACHE_LIMIT", "")
    return int(given) if given.isascii() and given.isdigit() else _LIMIT


def key_of(content: bytes, asked: Json) -> str:
    """The name of an answer: what was looked at, and everything else that the answer depends on, as JSON values."""
    digest = sha256(json.dumps(asked, sort_keys=True).encode())
    digest.update(content)
    return digest.hexdigest()


@cache
def code_digest(folder: Path) -> str:
    """The digest of all code and tables of a folder: who changes them asks anew."""
    found = sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml"):
            found.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return found.hexdigest()


class Kept:
    """What was made once and is found again, each under a key that always stands for one thing."""

    @cached_property
    def _derived(self) -> dict[Hashable, object]:
        return {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made under ``key``, made now where it was not."""
        if key not in self._derived:
            self._derived[key] = make()
        return cast("T", self._derived[key])

    def known(self, key: Hashable) -> Any:
        """What was kept under a key, None for nothing: for work that would otherwise stand two calls deeper."""
        return self._derived.get(key)

    def keep(self, key: Hashable, made: T) -> T:
        """The same value, found again by ``known`` and ``once``."""
        self._derived[key] = made
        return made


K = TypeVar("K", bound=Kept)


def made_once(make: Callable[[K], T]) -> Callable[[K], T]:
    """A function of one such thing alone, which makes its answer once."""

    @wraps(make)
    def found(kept: K) -> T:
        if make not in kept._derived:
            kept._derived[make] = make(kept)
        return cast("T", kept._derived[make])

    return found


class Store:
    """The entries of one kind: JSON objects, or sets of files, each in a file of its own below ``cache_folder()``."""

    def __init__(self, kind: str) -> None:
        self.folder = cache_folder() / kind

    def get(self, key: str) -> Json | None:
        """The answer under a key, None where there is none, or another than was written."""
        data = self._read(f"{key}.json")
        found: Json | None = None if data is None else json.loads(data)
        return found

    def put(self, key: str, answer: Json, *, tidy: bool = True) -> None:
        """Keep an answer, whole or not at all; a folder that cannot be written to keeps none.

        Without ``tidy`` nothing else makes room for it: for many small answers one after another.
        """
        self._write(f"{key}.json", json.dumps(answer).encode(), tidy=tidy)

    def take(self, key: str, folder: Path) -> bool:
        """Put the files of an entry back into an empty folder; False where there is no such entry, or not all of it."""
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
        """Keep files by their path within a folder; none where they are too many bytes."""
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
            os.utime(path)  # the oldest use goes first
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
    """True for a folder of this user's that nobody else may write to."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_room(root: Path) -> None:
    """Remove the entries that were not used for the longest time until all together are within the limit."""
    found = sorted(_entries(root))
    left, most = sum(size for _, size, _ in found), limit()
    for _, size, path in found:
        if left <= most:
            return
        with suppress(OSError):
            path.unlink()
        left -= size


def _entries(root: Path) -> Iterator[tuple[int, int, Path]]:
    """Every entry of every kind: when it was used last, its bytes, its place. What else lies there is not touched."""
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
    """What is kept of one kind: how many entries, and how many bytes."""

    kind: str
    entries: int
    bytes: int


def rooms() -> tuple[Room, ...]:
    """Every kind of which something is kept."""
    found = grouped((path.parent.name, size) for _, size, path in _entries(cache_folder()))
    return tuple(Room(kind=kind, entries=len(sizes), bytes=sum(sizes)) for kind, sizes in sorted(found.items()))


def clear() -> tuple[Room, ...]:
    """Remove all entries; what there was."""
    before = rooms()
    for _, _, path in list(_entries(cache_folder())):
        path.unlink(missing_ok=True)
    return before

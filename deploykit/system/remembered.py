"""The one room for what is kept between runs, by a hash of everything it depends on; losing it costs time and no more.

An entry is written whole or not at all, begins with the digest of the rest, and is no entry where that does not agree.
A folder in which another user could have written is not read. It knows no tool and no meaning of an answer.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from deploykit.system.entries import cache_folder, is_off, is_private, read_entry

__all__ = ["Remembered", "Room", "cache_folder", "clear", "is_off", "key_of", "limit", "rooms"]

_LIMIT = 2 << 30
"""Bytes of all entries together, where ``DEPLOYKIT_CACHE_LIMIT`` says no other number."""
_LARGEST = 512 << 20
"""An entry beyond it is not kept: writing it would cost more than it is likely to save."""
_ENTRY = re.compile(r"[0-9a-f]{64}\.(bin|json|zip)")
"""What an entry is called: nothing else is counted, and nothing else is ever deleted."""


def limit() -> int:
    """Bytes that all entries together may take: ``DEPLOYKIT_CACHE_LIMIT``, else 2 GiB."""
    given = os.environ.get("DEPLOYKIT_CACHE_LIMIT", "")
    return int(given) if given.isascii() and given.isdigit() else _LIMIT


def key_of(content: bytes, asked: Mapping[str, Any]) -> str:
    """The name of an answer: what was looked at, and everything else that the answer depends on, as JSON values."""
    digest = sha256(json.dumps(asked, sort_keys=True).encode())
    digest.update(content)
    return digest.hexdigest()


class Remembered:
    """The entries of one kind: JSON objects, or sets of files, each in a file of its own below ``cache_folder()``."""

    def __init__(self, kind: str) -> None:
        self.folder = cache_folder() / kind

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer under a key, None where there is none that can be read."""
        data = read_entry(self.folder / f"{key}.json")
        try:
            found = None if data is None else json.loads(data)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer, whole or not at all; a folder that cannot be written to keeps none."""
        self._write(f"{key}.json", json.dumps(answer).encode())

    def get_bytes(self, key: str) -> bytes | None:
        """The bytes under a key, None where there are none that can be read."""
        return read_entry(self.folder / f"{key}.bin")

    def put_bytes(self, key: str, content: bytes) -> None:
        """Keep bytes, whole or not at all; none where they are too many."""
        if len(content) <= _LARGEST:
            self._write(f"{key}.bin", content)

    def take(self, key: str, folder: Path) -> bool:
        """Put the files of an entry back into an empty folder; False where there is no such entry, or not all of it."""
        data = read_entry(self.folder / f"{key}.zip")
        if data is None:
            return False
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if not all(map(_is_inside, archive.namelist())):
                    return False
                archive.extractall(folder)
        except (OSError, ValueError, zipfile.BadZipFile):
            return False
        return True

    def keep(self, key: str, folder: Path, names: Iterable[str]) -> None:
        """Keep files by their path within a folder; none where they are too many bytes."""
        paths = {name: folder / name for name in names}
        if sum(path.stat().st_size for path in paths.values()) > _LARGEST:
            return
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for name, path in paths.items():
                archive.write(path, name)
        self._write(f"{key}.zip", made.getvalue())

    def _write(self, name: str, data: bytes) -> None:
        if is_off() or len(data) > limit():
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private(self.folder):
                return
            _put(self.folder / name, sha256(data).hexdigest().encode() + b"\n" + data)
            _make_room(self.folder.parent)


def _put(path: Path, data: bytes) -> None:
    """The whole file or none, readable by this user alone."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".", delete=False) as file:
        made = Path(file.name)
        try:
            file.write(data)
            file.flush()
            made.replace(path)
        except OSError:
            made.unlink(missing_ok=True)
            raise


def _is_inside(name: str) -> bool:
    pure = PurePosixPath(name)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and "\\" not in name


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
    for kind in _folders(root):
        with suppress(OSError):
            for path in kind.iterdir():
                if _ENTRY.fullmatch(path.name) and not path.is_symlink():
                    status = path.stat()
                    yield status.st_mtime_ns, status.st_size, path


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is kept of one kind: how many entries, and how many bytes."""

    kind: str
    entries: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {"kind": self.kind, "entries": self.entries, "bytes": self.bytes}


def rooms() -> tuple[Room, ...]:
    """Every kind of which something is kept."""
    found: dict[str, list[int]] = {}
    for _, size, path in _entries(cache_folder()):
        found.setdefault(path.parent.name, []).append(size)
    return tuple(Room(kind=kind, entries=len(sizes), bytes=sum(sizes)) for kind, sizes in sorted(found.items()))


def clear(kind: str | None = None) -> tuple[Room, ...]:
    """Remove the entries of one kind, or of all; what there was."""
    before = tuple(room for room in rooms() if kind in (None, room.kind))
    for _, _, path in list(_entries(cache_folder())):
        if kind in (None, path.parent.name):
            path.unlink(missing_ok=True)
    return before

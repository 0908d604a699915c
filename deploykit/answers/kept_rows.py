"""The rows of backends, of which a question makes only those that it needs; between runs they lie in the cache.

A backend says from which folders its rows follow (``answered_from``): they are kept for as long as no file there and
none of what reads them here is another. Those of any other backend are asked for each time. It judges no row.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.answers.capability_answers import Query, names_of, passes, phrases_of
from deploykit.errors import InputError
from deploykit.system.entries import cache_folder, is_off, read_entry
from deploykit.tables.capabilities import CompatRow
from deploykit.tables.reading import READ_FROM, parse_rows

if TYPE_CHECKING:
    from deploykit.backend.backend import AnyBackend

__all__ = ["Shelf", "shelf_of"]

_KIND = "rows"
_READERS = tuple(Path(__file__).parents[1] / room for room in ("findings", "answers", "tables"))
"""The code that reads tables and writes rows down: what it made before it changed is not used."""
_SETTLED = 2_000_000_000
"""Nanoseconds before the first table was read: what changed since might have been read before it did. It is as much as
the clock of a file system may lag."""
_FIELDS = tuple(field.name for field in fields(CompatRow))
_values = attrgetter(*_FIELDS)
_encode = json.JSONEncoder(separators=(",", ":")).encode
_Rows = tuple[CompatRow, ...]


class Shelf:
    """The rows of one backend: the features of all, and rows by their words; ``make`` gives those of some numbers."""

    def __init__(self, features: Sequence[str], names: Sequence[str], make: Callable[[Sequence[int]], _Rows]) -> None:
        self.features = features
        self._names = names
        self._make = make

    def rows(self) -> _Rows:
        """All of them."""
        return self._make(range(len(self.features)))

    def named(self, query: Query) -> _Rows:
        """Those among whose names all words stand, and those that these are renamed to, in the order of all."""
        phrases = phrases_of(query.words)
        found = [at for at, names in enumerate(self._names) if all(phrase in names for phrase in phrases)]
        right = {row.renamed_to for row in self._make(found) if row.renamed_to and passes(row, query)}
        more = (at for at, feature in enumerate(self.features) if feature in right)
        return self._make(sorted({*found, *more}))


def shelf_of(backend: AnyBackend) -> Shelf:
    """The rows of a backend, from the cache where they follow from files that are still the same."""
    path, state = _place(backend) if backend.offers("answered_from") and not is_off() else (None, "")
    kept = None if path is None else _opened(path, state, backend)
    if kept is not None:
        return kept
    rows = tuple(backend.compat())
    features, names = [row.feature for row in rows], [names_of(row) for row in rows]
    if path is not None:
        _keep(path, state, rows, {"features": features, "names": names})
    return Shelf(features, names, lambda numbers: tuple(rows[at] for at in numbers))


def _place(backend: AnyBackend) -> tuple[Path | None, str]:
    """Where the backend's entry is, and what its rows follow from; nowhere while that changes, or cannot be told."""
    folders = [str(folder) for folder in (*_READERS, *backend.answered_from())]
    try:
        found = sorted(seen for folder in folders for seen in _seen(folder))
    except OSError:
        return None, ""
    if any(max(times) > READ_FROM - _SETTLED for _, _, *times in found):
        return None, ""
    name = sha256(repr((sys.version, backend.id, folders)).encode()).hexdigest()
    return cache_folder() / _KIND / f"{name}.bin", sha256(repr(found).encode()).hexdigest()


@cache
def _seen(folder: str) -> list[tuple[str, int, int, int]]:
    """A folder and all that is in it: path, size, and when its content and what is known of it were changed last."""
    status, inner = Path(folder).stat(), list[str]()
    found = [(folder, 0, status.st_mtime_ns, status.st_ctime_ns)]
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                status = entry.stat()
                found.append((entry.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
            elif entry.name != "__pycache__":
                inner.append(entry.path)
    return [*found, *(seen for path in inner for seen in _seen(path))]


def _keep(path: Path, state: str, rows: Iterable[CompatRow], index: dict[str, list[str]]) -> None:
    """What the rows follow from, the index, and a line for each row."""
    from deploykit.system.remembered import Remembered

    lines = [state, _encode(index), *map(_encode, map(_values, rows))]
    Remembered(_KIND).put_bytes(path.stem, "\n".join(lines).encode())


def _opened(path: Path, state: str, backend: AnyBackend) -> Shelf | None:
    """The rows in an entry, as long as they follow from the same; None where it holds others, or none."""
    key, _, rest = (read_entry(path) or b"").partition(b"\n")
    return _read(rest, backend) if key == state.encode() else None


def _read(kept: bytes, backend: AnyBackend) -> Shelf | None:
    """An index and the lines of rows; None where they are not what was written. A line is read when it is needed."""
    index, *lines = kept.split(b"\n")

    def make(numbers: Sequence[int]) -> _Rows:
        try:
            values = json.loads(b"[%s]" % b",".join(lines[at] for at in numbers))
            return parse_rows(CompatRow, [dict(zip(_FIELDS, row, strict=True)) for row in values], where="kept")
        except (InputError, ValueError, TypeError, RecursionError):  # no rows that were written here
            rows = tuple(backend.compat())
            return tuple(rows[at] for at in numbers if at < len(rows))

    try:
        found = json.loads(index)
        features, names = found["features"], found["names"]
        whole = len(features) == len(names) == len(lines) and {*map(type, features), *map(type, names)} <= {str}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return Shelf(features, names, make) if whole else None

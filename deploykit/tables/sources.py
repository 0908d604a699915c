"""Short names of sources: rows of data files use them, one table of a folder says what each stands for, and of when.

They are written out before a document becomes rows, so that no row is ever seen with a short name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from packaging.version import Version

from deploykit.findings import Confidence
from deploykit.findings.records import Record
from deploykit.tables.reading import read_toml, structure

__all__ = [
    "NO_SOURCES",
    "NotedRow",
    "SourceFile",
    "SourcedRow",
    "read_source_file",
    "sourced_file",
    "write_out",
]

NO_SOURCES: Mapping[str, str] = MappingProxyType({})
"""For a folder whose rows name every source in full."""

Extent: TypeAlias = tuple[str, str]
"""The first and the last release that a source speaks of; "" for the last when it says "from this one on"."""

T = TypeVar("T")
_SHORT = re.compile(r"^\w+(?=$|[ :(])")


class SourcedRow(Record):
    """What a row of any file says of itself: who says so, and how sure that is."""

    source: tuple[str, ...]
    confidence: Confidence


class NotedRow(SourcedRow):
    """A row with remarks, and who says otherwise."""

    note: str = ""
    contradicts: str = ""


class SourceFile(Record):
    """``sources.toml``: the short names that rows use, written out.

    ``extent`` holds, for a short name or the beginning of a source, the releases that it speaks of: one, or the first
    and the last. A source without one is not bound to releases, or nobody knows to which. ``verified`` holds by the
    same names the day ("2026-09-30") on which a source was last compared with its rows, under ``rest`` for all others;
    words behind the date say why it need not be compared again.
    """

    schema: int
    sources: Mapping[str, str]
    extent: Mapping[str, tuple[str, ...]] = {}
    verified: Mapping[str, str] = {}

    @property
    def dates(self) -> Mapping[str, str]:
        """When sources were compared with their rows, by what they begin with; under "" for every other one."""
        return {"" if name == "rest" else self.sources.get(name, name): when for name, when in self.verified.items()}

    def extent_of(self, written_out: Iterable[str]) -> Extent | None:
        """The releases of which sources speak together; None when one of them is not bound to releases."""
        extents, found = {self.sources.get(name, name): given for name, given in self.extent.items()}, []
        for source in written_out:
            begins = [start for start in extents if source.startswith(start)]
            if not begins:
                return None
            found.append(extents[max(begins, key=len)])
        if not found:
            return None
        first = min((one[0] for one in found), key=Version)
        last = "" if any(not one[-1] for one in found) else max((one[-1] for one in found), key=Version)
        return first, last


def read_source_file(path: Path) -> SourceFile:
    """The short names of one folder, and the releases that their sources speak of."""
    return structure(SourceFile, read_toml(path, shipped=True), where=f"{path.name}:")


def sourced_file(kind: type[T], path: Path) -> T:
    """A file that says itself, under ``sources``, what its short names stand for."""
    raw = read_toml(path, shipped=True)
    given = raw.get("sources")
    write_out(raw, given if isinstance(given, dict) else NO_SOURCES)
    return structure(kind, raw, where=f"{path.name}:")


def write_out(document: Any, sources: Mapping[str, str]) -> None:
    """Replace, in place, the short name that an entry of any ``source`` list in a document begins with."""
    if isinstance(document, dict):
        if isinstance(document.get("source"), list):
            document["source"] = [
                _SHORT.sub(lambda short: sources.get(short[0], short[0]), entry) if isinstance(entry, str) else entry
                for entry in document["source"]
            ]
        document = document.values()
    for item in document:
        if isinstance(item, dict) or (isinstance(item, list) and item and isinstance(item[0], dict)):
            write_out(item, sources)

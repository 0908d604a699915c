"""Short names of sources: rows of data files use them, and one table per folder maps them to full names and releases.

They are expanded before a document is converted into rows, so no row ever contains a short name.
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
"""The first and last release that a source covers; the last is "" if it covers all later ones too."""

T = TypeVar("T")
_SHORT = re.compile(r"^\w+(?=$|[ :(])")


class SourcedRow(Record):
    """The base of all rows: the sources of a statement and its confidence."""

    source: tuple[str, ...]
    confidence: Confidence


class NotedRow(SourcedRow):
    """A row with remarks, on its confidence too, and with the sources that contradict it."""

    note: str = ""
    contradicts: str = ""
    confidence_note: str = ""


class SourceFile(Record):
    """``sources.toml``: the short names that rows use, with the full ones.

    ``extent`` maps a short name or the beginning of a source to the releases that it covers: one, or the first and the
    last. A source without an entry is not bound to releases, or its releases are unknown. ``verified`` maps the same
    names to the day ("2026-09-30") on which a source was last compared with its rows, with ``rest`` for all others;
    text after the date says why no new comparison is needed.
    """

    schema: int
    sources: Mapping[str, str]
    extent: Mapping[str, tuple[str, ...]] = {}
    verified: Mapping[str, str] = {}

    @property
    def dates(self) -> Mapping[str, str]:
        """The dates of comparison by beginning of the source; "" is the key for all others."""
        return {"" if name == "rest" else self.sources.get(name, name): when for name, when in self.verified.items()}

    def extent_of(self, written_out: Iterable[str]) -> Extent | None:
        """Return the releases that the sources cover together, None if one of them is not bound to releases."""
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
    """Read the short names of one folder and the releases that their sources cover."""
    return structure(SourceFile, read_toml(path, shipped=True), where=f"{path.name}:")


def sourced_file(kind: type[T], path: Path) -> T:
    """Read a file that itself defines its short names, under ``sources``."""
    raw = read_toml(path, shipped=True)
    given = raw.get("sources")
    write_out(raw, given if isinstance(given, dict) else NO_SOURCES)
    return structure(kind, raw, where=f"{path.name}:")


def write_out(document: Any, sources: Mapping[str, str]) -> None:
    """Expand, in place, the short name at the beginning of each entry in any ``source`` list of a document."""
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

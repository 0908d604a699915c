"""Short names of sources: rows of data files use them, one table of a folder says what each stands for.

They are written out before a document becomes rows, so that no row is ever seen with a short name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deploykit.tables.reading import read_toml, structure
from deploykit.tables.records import dataclass

__all__ = ["NO_SOURCES", "SourceFile", "read_sources", "write_out"]

NO_SOURCES: Mapping[str, str] = MappingProxyType({})
"""For a folder whose rows name every source in full."""

_SHORT = re.compile(r"\w+(?=$|[ :(])")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """``sources.toml``: the short names that rows use, written out."""

    schema: int
    sources: Mapping[str, str]


def read_sources(path: Path) -> Mapping[str, str]:
    """What the short names of one folder stand for."""
    return structure(SourceFile, read_toml(path), where=f"{path.name}:").sources


def write_out(document: Any, sources: Mapping[str, str]) -> None:
    """Replace, in place, the short name that an entry of any ``source`` list in a document begins with."""
    if isinstance(document, dict):
        if isinstance(document.get("source"), list):
            document["source"] = [_written_out(entry, sources) for entry in document["source"]]
        document = document.values()
    for item in document:
        if isinstance(item, dict) or (isinstance(item, list) and item and isinstance(item[0], dict)):
            write_out(item, sources)


def _written_out(entry: Any, sources: Mapping[str, str]) -> Any:
    short = _SHORT.match(entry) if isinstance(entry, str) else None
    if short is None or short[0] not in sources:
        return entry
    return sources[short[0]] + entry[short.end() :]

"""Reads encodings files of AIMET; what the content says must agree with the version it claims to be.

It needs no model. Values that only a graph can place stay unplaced; see ``deploykit.encodings.place``.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploykit.encodings.formats import v061, v100, v200
from deploykit.encodings.formats.grids import json_name
from deploykit.encodings.formats.ordinary import read_ordinary
from deploykit.encodings.place import fit
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.errors import InputError
from deploykit.system.files import read_regular
from deploykit.tables.reading import parse_json

__all__ = ["LIMIT", "VERSIONS", "parse_encodings", "read_encodings", "without_collecting"]

LIMIT = 1 << 30
"""The largest file that is opened at all, in bytes."""

_BUDGET = 3_000_000_000
"""The memory that parsing may take, in bytes: blocks of 64 of a decoder with 1.3 billion weights take most of it."""

_COSTS = {b"{": 120, b"[": 130, b":": 170, b",": 40}
"""What each of these characters costs in memory once parsed, in bytes; measured with CPython 3.11, rounded up."""


@dataclass(frozen=True, slots=True)
class _Layout:
    sections: Mapping[str, type]
    parse: Callable[[dict[str, Any], str], Iterator[Encoding]]


_V061 = _Layout(v061.SECTIONS, v061.parse_sections)
_V200 = _Layout(v200.SECTIONS, v200.parse_sections)
_LAYOUTS = {
    "0.6.1": _V061,
    "0.6.2": _V061,
    "1.0.0": _Layout(v100.SECTIONS, v100.parse_sections),
    "2.0.0": _V200,
    "2.1.0": _V200,
}
VERSIONS = tuple(_LAYOUTS)
"""The versions that are read."""

_HEAD = ("version", "producer", "quantizer_args")


def read_encodings(path: Path, *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> EncodingSet:
    """The encodings of one file; ``shapes`` of the model's tensors settle negative axes and are checked against.

    Raises InputError, naming the file and the entry, for whatever is not exactly an encodings file.
    """
    data = read_regular(path, limit=LIMIT)
    if not data.strip():
        raise InputError(f"{path}: the file is empty", next="export the encodings again")
    _check_cost(data, path)
    with without_collecting():
        ordinary = read_ordinary(data)
        if ordinary is not None:
            return _encodings(*ordinary, str(path), shapes)
        try:
            document = parse_json(data, where=str(path))
        except InputError as error:
            raise _located(error, data, str(path)) from None
        except ValueError as error:
            # Python refuses to convert integers of thousands of digits with a plain ValueError.
            raise InputError(f"{path}: holds a number that cannot be read", why=str(error)) from None
        return parse_encodings(document, where=str(path), shapes=shapes)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Hundreds of thousands of values that all live on: looking for cycles among them takes as long as reading them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _check_cost(data: bytes, path: Path) -> None:
    """Refuse a file whose values would not fit into memory, before a single one is made."""
    cost = 2 * len(data) + sum(data.count(letter) * each for letter, each in _COSTS.items())
    if cost > _BUDGET:
        raise InputError(
            f"{path}: {len(data)} bytes with {data.count(b',')} values, too much to be read",
            why=f"parsing would take about {cost >> 20} MiB of memory; {_BUDGET >> 20} are allowed",
            next="is this really an encodings file? Blockwise scales take least room in version 1.0.0",
        )


def _located(error: InputError, data: bytes, where: str) -> InputError:
    """The parser cannot say which entry holds a NaN or an Infinity: read on with them to find out."""
    if not error.what.endswith("is not a JSON number"):
        return error
    try:
        parse_encodings(json.loads(data.decode("utf-8-sig")), where=where)
    except InputError as located:
        return located
    except (ValueError, RecursionError):
        return error
    return error


def parse_encodings(document: Any, *, where: str, shapes: Mapping[str, tuple[int, ...]] | None = None) -> EncodingSet:
    """The encodings of an already parsed JSON document; ``where`` names it in messages."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: an object is expected at the top, not {json_name(document)}")
    layout = _LAYOUTS[_version(document, where)]
    _check_sections(document, _version(document, where), where)
    return _encodings(document, _unique(layout.parse(document, where), where), where, shapes)


def _encodings(
    document: dict[str, Any],
    entries: Mapping[str, Encoding],
    where: str,
    shapes: Mapping[str, tuple[int, ...]] | None,
) -> EncodingSet:
    version = _version(document, where)
    layout = _LAYOUTS[version]
    _check_sections(document, version, where)
    if shapes:
        entries = {name: fit(entry, shapes.get(name), where) for name, entry in entries.items()}
    return EncodingSet(
        version=version,
        entries=entries,
        producer=_object(document, "producer", where),
        quantizer_args=_object(document, "quantizer_args", where),
        extra={key: value for key, value in document.items() if key not in (*_HEAD, *layout.sections)},
        source=where,
    )


def _version(document: dict[str, Any], where: str) -> str:
    version = document.get("version")
    if isinstance(version, str) and version in _LAYOUTS:
        return version
    said = "no 'version'" if "version" not in document else f"the version {_brief(version)}"
    looks = _looks_like(document)
    hint = f"; its content is laid out as in {looks}" if looks else ""
    raise InputError(
        f"{where}: an encodings file with {said}",
        why=f"known versions: {', '.join(VERSIONS)}{hint}",
        next="export the encodings again with one of the known versions",
    )


def _brief(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, str | int | float) else json_name(value)


def _looks_like(document: dict[str, Any]) -> str:
    """The version whose layout the top level has, or "" when it is none of them."""
    for version in ("0.6.1", "1.0.0", "2.0.0"):
        sections = _LAYOUTS[version].sections
        if all(isinstance(document.get(name), kind) for name, kind in sections.items()):
            return version
    return ""


def _check_sections(document: dict[str, Any], version: str, where: str) -> None:
    """The sections of the claimed version must be there, and none of the others'."""
    looks = _looks_like(document)
    if looks and _LAYOUTS[looks] is not _LAYOUTS[version]:
        raise InputError(
            f"{where}: says version {version}, but is laid out as version {looks}",
            why="every reader would take the entries for something else than they are",
            next=f"correct 'version' to \"{looks}\" if you are sure, or export the encodings again",
        )
    for name, kind in _LAYOUTS[version].sections.items():
        if name not in document:
            raise InputError(f"{where}: {name!r} is missing", why=f"version {version} has this section")
        if not isinstance(document[name], kind):
            wanted = "a list" if kind is list else "an object"
            raise InputError(
                f"{where}: {name!r} must be {wanted} in version {version}, not {json_name(document[name])}",
                next="does the file's 'version' match its content?",
            )
    others = {name for layout in _LAYOUTS.values() for name in layout.sections} - _LAYOUTS[version].sections.keys()
    foreign = sorted(others & document.keys())
    if foreign:
        raise InputError(f"{where}: {foreign[0]!r} is a section of another version than {version}")


def _unique(entries: Iterable[Encoding], where: str) -> dict[str, Encoding]:
    found: dict[str, Encoding] = {}
    for entry in entries:
        if entry.name in found:
            raise InputError(
                f"{where}: {entry.name!r} has two entries",
                why="one of them would be used and the other silently dropped",
                next="remove one of them, or export the encodings again",
            )
        if not entry.name.isascii() or not entry.name:
            _check_name(entry.name, where)
        found[entry.name] = entry
    return found


def _check_name(name: str, where: str) -> None:
    if not name:
        raise InputError(f"{where}: an entry without a tensor name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: {name!a} is not a valid name: it holds half a character") from None


def _object(document: dict[str, Any], key: str, where: str) -> Mapping[str, Any] | None:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{where}: {key!r} must be an object, not {json_name(value)}")
    return value

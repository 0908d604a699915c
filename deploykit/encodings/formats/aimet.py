"""Reads and writes the encodings files of AIMET; a file's content must agree with the version that it claims.

It needs no model. Values that only a graph can place stay unplaced; see ``deploykit.encodings.place``. A value that a
version cannot hold is left out when it is written; ``deploykit.encodings.formats.conversion`` names those values
beforehand.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from deploykit.encodings.formats import v061
from deploykit.encodings.formats.grids import SECTIONS, json_name
from deploykit.encodings.values import Encoding, EncodingSet, Float, Lpbq
from deploykit.errors import InputError, UsageError
from deploykit.findings.records import Json
from deploykit.system.files import read_regular
from deploykit.tables.reading import parse_json

__all__ = ["WRITTEN_VERSIONS", "fits", "read_encodings", "write_encodings"]

LIMIT = 1 << 30
"""The largest file that is opened at all, in bytes."""

_BUDGET = 3_000_000_000
"""The memory that parsing may take, in bytes: blocks of 64 of a decoder with 1.3 billion weights take most of it."""

_COSTS = {b"{": 120, b"[": 130, b":": 170, b",": 40}
"""What each of these characters costs in memory once parsed, in bytes; measured with CPython 3.11, rounded up."""

_MOST = {"0": (1500, 700, 0), "1": (3300, 100, 0), "2": (2100, 120, 230)}
"""By layout: what an entry, each of its numbers, and each list in a list costs at most, counted like that."""

VERSIONS = ("0.6.1", "0.6.2", "1.0.0", "2.0.0", "2.1.0")
"""The versions that can be read."""

# The sections at the top of a file beside the head, by the first digit of its version.
_SECTIONS: dict[str, dict[str, type]] = {
    "0": dict.fromkeys(SECTIONS, dict),
    "1": dict.fromkeys(SECTIONS, list),
    "2": {"encodings": list},
}

WRITTEN_VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
"""The versions to convert to; 0.6.2 is written as well, where it is what was read."""

_Plain: TypeAlias = str | bool | int | float | None
_DECODER = msgspec.json.Decoder(dict[str, dict[str, v061.Items | _Plain] | list[Any] | _Plain])
"""Decodes any version; entries with an item for each scale, of which there may be a million, become structs at once."""

_HEAD = ("version", "producer", "quantizer_args")


def read_encodings(path: Path) -> EncodingSet:
    """The encodings of one file, not placed on any graph yet.

    Raises InputError, naming the file and the entry, for whatever is not exactly an encodings file.
    """
    data, where = read_regular(path, limit=LIMIT), str(path)
    if not data.strip():
        raise InputError(f"{path}: the file is empty", next="export the encodings again")
    _check_budget(data, where)
    with _without_collecting():
        try:
            document = parse_json(data, where=where, reader=_DECODER.decode)
        except InputError as error:
            if not error.what.endswith("is not a JSON number"):
                raise
            # The parser cannot say which entry holds a NaN or an Infinity: read on with them to find out.
            with suppress(ValueError, RecursionError):
                parse_encodings(json.loads(data.decode("utf-8-sig")), where=where)
            raise
        del data
        return parse_encodings(document, where=where)


def _check_budget(data: bytes, what: str) -> None:
    """Raises InputError where parsing would take more memory than is allowed."""
    cost = _cost(data)
    if cost > _BUDGET:
        raise InputError(
            f"{what}: {len(data)} bytes with {data.count(b',')} values, too much to be read",
            why=f"parsing would take about {cost >> 20} MiB of memory; {_BUDGET >> 20} are allowed",
            next="version 1.0.0 takes least room: deploykit compat encodings-1.0.0 says what reads it",
        )


def _cost(data: bytes) -> int:
    return 2 * len(data) + sum(data.count(letter) * each for letter, each in _COSTS.items())


def fits(encodings: EncodingSet, version: str) -> bool:
    """True where ``write_encodings`` writes a file of ``version`` for certain, told by names and counts alone.

    What a file says about itself is not counted: it is small beside what the counts leave.
    """
    entry, number, inner = _MOST[version[0]]
    cost = entry * len(encodings) + _cost(json.dumps([*encodings.entries]).encode())
    for value in (entry.value for entry in encodings):
        if isinstance(value, Lpbq):
            arrays = [value.block_scale, value.channel_scale, value.channel_scale]
        else:  # a scale, a zero point and its fraction
            arrays = [] if isinstance(value, Float) else [value.scale] * 3
        cost += sum(number * one.size + inner * sum(accumulate(one.shape[:-1], mul)) for one in arrays)
    return cost <= _BUDGET


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Switches garbage collection off: hundreds of thousands of values all live on.

    Looking for cycles among them takes as long as reading them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def parse_encodings(document: Any, *, where: str) -> EncodingSet:
    """The encodings of an already parsed JSON document; ``where`` names it in messages."""
    if not isinstance(document, dict):
        raise InputError(
            f"{where}: an object is expected at the top, not {json_name(document)}",
            next="is this really an encodings file?",
        )
    version = _version(document, where)
    # The sections of the claimed version must be there, and no section of another version.
    sections, looks = _SECTIONS[version[0]], _looks_like(document)
    if looks and looks[0] != version[0]:
        raise InputError(
            f"{where}: says version {version}, but is laid out as version {looks}",
            why="every reader would take the entries for something else than they are",
            next=f"correct 'version' to \"{looks}\" if you are sure, or export the encodings again",
        )
    for name, kind in sections.items():
        if name not in document:
            raise InputError(f"{where}: {name!r} is missing", why=f"version {version} has this section")
        if not isinstance(document[name], kind):
            wanted = "a list" if kind is list else "an object"
            raise InputError(
                f"{where}: {name!r} must be {wanted} in version {version}, not {json_name(document[name])}",
                next="does the file's 'version' match its content?",
            )
    others = {name for each in _SECTIONS.values() for name in each} - sections.keys()
    foreign = others & document.keys()
    if foreign:
        raise InputError(f"{where}: {min(foreign)!r} is a section of another version than {version}")
    entries = dict[str, Encoding]()
    for entry in _layout(version).parse_sections(document, where):
        name = entry.name
        if name in entries:
            raise InputError(
                f"{where}: {name!r} has two entries",
                why="one of them would be used and the other silently dropped",
                next="remove one of them, or export the encodings again",
            )
        if not name:
            raise InputError(f"{where}: an entry without a tensor name")
        if not name.isascii() and name.encode(errors="ignore").decode() != name:
            raise InputError(f"{where}: {name!a} is not a valid name: it holds half a character")
        entries[name] = entry
    for key in ("producer", "quantizer_args"):
        if not isinstance(document.get(key), dict | None):
            raise InputError(f"{where}: {key!r} must be an object, not {json_name(document[key])}")
    return EncodingSet(
        version,
        entries,
        producer=document.get("producer"),
        quantizer_args=document.get("quantizer_args"),
        extra={key: value for key, value in document.items() if key not in (*_HEAD, *_SECTIONS[version[0]])},
        source=where,
    )


def _layout(version: str) -> Any:
    """The module that reads and writes a version."""
    if version.startswith("0"):
        return v061
    return import_module(f"deploykit.encodings.formats.v{version[0]}00")


def _version(document: Json, where: str) -> str:
    version = document.get("version")
    if version in VERSIONS:
        return str(version)
    brief = repr(version)[:40] if isinstance(version, str | int | float) else json_name(version)
    said = "no 'version'" if "version" not in document else f"the version {brief}"
    looks = _looks_like(document)
    hint = f"; its content is laid out as in {looks}" if looks else ""
    raise InputError(
        f"{where}: an encodings file with {said}",
        why=f"known versions: {', '.join(VERSIONS)}{hint}",
        next="export the encodings again with one of the known versions",
    )


def _looks_like(document: Json) -> str:
    """The version whose layout the top level has, or "" when it is none of them."""
    for version in WRITTEN_VERSIONS:
        if all(isinstance(document.get(name), kind) for name, kind in _SECTIONS[version[0]].items()):
            return version
    return ""


def write_encodings(encodings: EncodingSet, version: str) -> str:
    """The text of a file of ``version``, ending in a newline; keys are sorted, entries keep the order of the set.

    Raises InputError where it would be too much to be read.
    """
    if version not in (*WRITTEN_VERSIONS, "0.6.2"):
        known = ", ".join(WRITTEN_VERSIONS)
        raise UsageError(f"encodings cannot be written as version {version!r}", next=f"known versions: {known}")
    head = {**encodings.extra, "version": version}
    if encodings.producer is not None:
        head["producer"] = dict(encodings.producer)
    if encodings.quantizer_args is not None and version != "2.0.0":
        head["quantizer_args"] = dict(encodings.quantizer_args)
    with _without_collecting():
        document = {key: msgspec.Raw(json.dumps(value, sort_keys=True, allow_nan=False)) for key, value in head.items()}
        # Nothing but the text itself is kept: of two million scales each form takes as much as the file.
        packed = msgspec.json.encode(document | _layout(version).format_sections(encodings), order="sorted")
        written = msgspec.json.format(packed, indent=1) + b"\n"
        del packed
    # A file that could not be read back is not written.
    _check_budget(written, f"encodings of version {version}")
    text = written.decode()
    return text if text.isascii() and "\x7f" not in text else _NOT_ASCII.sub(lambda one: json.dumps(one[0])[1:-1], text)


_NOT_ASCII = re.compile("[\x7f-\U0010ffff]")

"""The list of tensors meant to be 16-bit float, beside a format that has no entry for them.

The file is ``{"schema": 1, "float_tensors": ["name", …]}``; a bare JSON list or one name per line is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploykit.encodings.formats.fields import json_name
from deploykit.encodings.values import EncodingSet, Float
from deploykit.errors import InputError
from deploykit.tables.reading import parse_json, read_bytes

__all__ = ["float_tensors_to_json", "read_float_tensors", "with_float_tensors"]

_LIMIT = 64 << 20
_SCHEMA = 1


def float_tensors_to_json(names: Iterable[str]) -> str:
    """The text of the side file, names sorted, ending in a newline."""
    return json.dumps({"schema": _SCHEMA, "float_tensors": sorted(names)}, indent=1, ensure_ascii=False) + "\n"


def read_float_tensors(path: Path) -> frozenset[str]:
    """The names in a side file or list; InputError names the file and what is wrong with it."""
    data = read_bytes(path, limit=_LIMIT)
    if data.lstrip()[:1] not in (b"{", b"["):
        return _from_lines(data, path)
    document = parse_json(data, where=str(path))
    names = document if isinstance(document, list) else _from_object(document, path)
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"{path}: item {index} must be a tensor's name, not {json_name(name)}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: {twice!r} is listed twice")
    return frozenset(names)


def _from_object(document: dict[str, Any], path: Path) -> list[Any]:
    schema = document.get("schema", _SCHEMA)
    if schema != _SCHEMA:
        raise InputError(f"{path}: schema {schema!r} is not known", why=f"this release reads schema {_SCHEMA}")
    names = document.get("float_tensors")
    if not isinstance(names, list):
        raise InputError(
            f"{path}: 'float_tensors' must be a list of names, not {json_name(names)}",
            next="a list of names, or one name per line, is enough",
        )
    return names


def _from_lines(data: bytes, path: Path) -> frozenset[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8", why=str(error), next="save the file as UTF-8") from None
    return frozenset(line.strip() for line in text.splitlines() if line.strip())


def with_float_tensors(encodings: EncodingSet, names: Iterable[str]) -> EncodingSet:
    """The set with these tensors meant to be float16; InputError where one of them has an integer entry as well."""
    wanted = frozenset(names)
    for name in sorted(wanted):
        entry = encodings.get(name)
        if entry is not None and not isinstance(entry.value, Float):
            raise InputError(
                f"{encodings.source or 'encodings'}: {name!r} has an {entry.dtype} entry, but is listed as float",
                why="a tensor has one type",
                next="take the name off the list of float tensors, or the entry out of the file",
            )
    return replace(encodings, float_tensors=encodings.float_tensors | wanted)

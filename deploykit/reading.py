"""Typed readers for TOML and JSON: a bad file is answered with the dotted path of the bad key.

Parse, don't validate: what comes out is a frozen dataclass, never a dictionary that was looked at. Nothing here
knows what the data means.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from deploykit.errors import InputError

__all__ = ["parse_json", "parse_rows", "read_bytes", "read_json", "read_toml", "structure"]

T = TypeVar("T")
_SCALARS = (str, int, bool, float)


def read_bytes(path: Path, *, limit: int | None = None) -> bytes:
    """The bytes of one regular file, or an InputError that names it."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, not a file")
        if limit is not None and path.stat().st_size > limit:
            raise InputError(f"{path}: {path.stat().st_size} bytes, more than the {limit} that are read")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read", why=error.strerror or str(error)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary."""
    try:
        return tomllib.loads(read_bytes(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8", why=str(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML", why=str(error)) from None


def read_json(path: Path, *, limit: int | None = None) -> Any:
    """A JSON file; duplicate keys, NaN and absurd nesting are refused."""
    return parse_json(read_bytes(path, limit=limit), where=str(path))


def parse_json(data: bytes, *, where: str) -> Any:
    """JSON text in UTF-8; duplicate keys, NaN and Infinity, and nesting beyond the parser's depth are refused."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8", why=str(error), next="save the file as UTF-8") from None
    try:
        return json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except _RefusedJSONError as error:
        raise InputError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON", why=str(error), next="is the file complete?") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be a real file") from None


class _RefusedJSONError(ValueError):
    """JSON that parses but is not acceptable."""


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedJSONError(f"the key {key!r} occurs twice in one object")
            seen.add(key)
    return result


def _refuse_constant(word: str) -> Any:
    raise _RefusedJSONError(f"{word} is not a JSON number")


def structure(kind: type[T], value: Any, *, where: str) -> T:
    """Turn plain data into ``kind``, a dataclass or a type built of them; unknown keys are refused.

    ``where`` is the dotted path so far, for instance ``sdks/2.33.toml: flag[3]`` or, for a whole file,
    ``sdks/2.33.toml:``. Supported: dataclasses, enums, str, int, bool, float, Any, ``X | None``, ``Literal``,
    ``tuple[X, ...]``, ``Mapping[str, X]``.
    """
    return typing.cast(T, _structure(kind, value, where))


def parse_rows(kind: type[T], rows: Any, *, where: str) -> tuple[T, ...]:
    """A list of tables as a tuple of dataclasses."""
    return typing.cast("tuple[T, ...]", _structure(tuple[kind, ...], rows, where))  # type: ignore[valid-type]


def _structure(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast("type[Any]", kind), value, where)
    origin = typing.get_origin(kind)
    if origin is not None:
        return _generic(origin, typing.get_args(kind), value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, value, where)
    return _scalar(kind, value, where)


def _generic(origin: Any, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin in (typing.Union, types.UnionType):
        return _union(args, value, where)
    if origin is typing.Literal:
        if value not in args:
            raise InputError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where}: a list is expected, not {_name(value)}")
        return tuple(_structure(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if not isinstance(value, dict):
        raise InputError(f"{where}: a table is expected, not {_name(value)}")
    return {key: _structure(args[1], item, _join(where, key)) for key, item in value.items()}


def _union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    kinds = [arg for arg in args if arg is not type(None)]
    if len(kinds) == 1:
        return _structure(kinds[0], value, where)
    for kind in kinds:
        try:
            return _structure(kind, value, where)
        except InputError:
            continue
    raise InputError(f"{where}: {_name(value)} does not fit any of the allowed types")


def _dataclass(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{where}: a table is expected, not {_name(value)}")
    fields = _fields(kind)  # type: ignore[arg-type]  # a class is hashable
    unknown = sorted(value.keys() - fields.keys())
    if unknown:
        raise InputError(f"{_join(where, unknown[0])}: unknown key", next=f"known keys: {', '.join(sorted(fields))}")
    missing = [name for name, (_, required) in fields.items() if required and name not in value]
    if missing:
        raise InputError(f"{_join(where, missing[0])}: missing")
    made = {name: _structure(fields[name][0], item, _join(where, name)) for name, item in value.items()}
    try:
        return kind(**made)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


@cache
def _fields(kind: type[Any]) -> Mapping[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(kind)
    return {
        f.name: (hints[f.name], f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
        for f in dataclasses.fields(kind)
    }


def _enum(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        words = _words(str(member.value) for member in kind)
        raise InputError(f"{where}: {value!r} is not one of {words}") from None


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind not in _SCALARS or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{where}: {getattr(kind, '__name__', kind)} is expected, not {_name(value)}")
    return value


def _join(where: str, name: str) -> str:
    return f"{where} {name}" if where.endswith(":") else f"{where}.{name}"


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _words(words: Iterable[str]) -> str:
    return ", ".join(words)

"""Typed readers for TOML and JSON: a bad file is answered with the dotted path of the bad key.

Parse, don't validate: what comes out is a frozen dataclass, never a dictionary that was looked at. Nothing here
knows what the data means.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import time
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from deploykit.errors import InputError
from deploykit.system.files import read_regular
from deploykit.tables.plaintoml import parse_plain

__all__ = ["READ_FROM", "parse_json", "parse_rows", "read_bytes", "read_json", "read_toml", "says_all", "structure"]

READ_FROM = time.time_ns()
"""When this process could first read a table, in nanoseconds since 1970."""

T = TypeVar("T")
_Converter: TypeAlias = Callable[[Any], Any]


def read_bytes(path: Path, *, limit: int | None = None) -> bytes:
    """The bytes of one regular file, or an InputError that names it."""
    return read_regular(path, limit=limit)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8", why=str(error)) from None
    plain = parse_plain(text)
    return plain if plain is not None else _parse_toml(text, path)


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and whole numbers of more digits than Python converts
        raise InputError(f"{path}: not TOML", why=str(error)) from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be a real file") from None


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
        document = json.loads(text, parse_constant=_refuse_constant)
        if not says_all(text, document):
            # The slow way, which finds the key that occurs twice.
            json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
        return document
    except _RefusedJSONError as error:
        raise InputError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON", why=str(error), next="is the file complete?") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be a real file") from None
    except ValueError as error:
        # Whole numbers of more digits than Python converts.
        raise InputError(f"{where}: not JSON that can be read", why=str(error)) from None


class _RefusedJSONError(ValueError):
    """JSON that parses but is not acceptable."""


def says_all(text: str, document: Any) -> bool:
    """True when the text has one colon for each key, and one for each in a string: then no key was dropped for another.

    Every key that is written has a colon behind it, one that a later key replaced too; so there can be more colons than
    are expected here, never fewer, unless a string spells its own with an escape.
    """
    if "\\u003a" in text or "\\u003A" in text:
        return False
    keys, seen, level = 0, [], [document]
    while level:
        objects = [value for value in level if type(value) is dict]
        # A list that begins with a number is taken for one of numbers: what is not counted makes the answer a no.
        lists = [value for value in level if type(value) is list and value and type(value[0]) in (dict, list)]
        keys += sum(map(len, objects))
        seen += objects
        inner = chain.from_iterable(map(dict.values, objects))
        level = [value for value in chain(inner, *lists) if type(value) is dict or type(value) is list]
    rest = text.count(":") - keys
    return rest == 0 or rest == _colons(seen)


def _colons(objects: Iterable[dict[str, Any]]) -> int:
    """The colons in the keys and texts of objects."""
    texts = chain.from_iterable(chain(item, item.values()) for item in objects)
    return sum(text.count(":") for text in texts if type(text) is str)


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
    try:
        return typing.cast(T, _converter(typing.cast("Any", kind))(value))
    except _BadValueError as bad:
        path = f"{where} {bad.path[1:]}" if where.endswith(":") and bad.path[:1] == "." else where + bad.path
        raise InputError(f"{path.removesuffix(':')}: {bad.message}", next=bad.next) from None


def parse_rows(kind: type[T], rows: Any, *, where: str) -> tuple[T, ...]:
    """A list of tables as a tuple of dataclasses."""
    return typing.cast("tuple[T, ...]", structure(tuple[kind, ...], rows, where=where))  # type: ignore[valid-type]


class _BadValueError(Exception):
    """A value that does not fit. The path grows while it is passed up, so that good values cost no path."""

    def __init__(self, message: str, *, path: str = "", next: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.message = message
        self.path = path
        self.next = next

    def under(self, step: str) -> _BadValueError:
        """The same, seen from one level up."""
        self.path = step + self.path
        return self


@cache
def _converter(kind: Any) -> _Converter:
    """The function that turns plain data into one type; made once per type."""
    if kind is Any:
        return lambda value: value
    if dataclasses.is_dataclass(kind):
        return _dataclass_converter(typing.cast("type[Any]", kind))
    origin = typing.get_origin(kind)
    if origin is not None:
        return _generic_converter(origin, typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_converter(kind)
    return _scalar_converter(kind)


def _generic_converter(origin: Any, args: tuple[Any, ...]) -> _Converter:
    if origin in (typing.Union, types.UnionType):
        return _union_converter(args)
    if origin is typing.Literal:
        return _literal_converter(args)
    return _tuple_converter(args[0]) if origin is tuple else _mapping_converter(args[1])


def _literal_converter(args: tuple[Any, ...]) -> _Converter:
    def convert(value: Any) -> Any:
        if value not in args:
            raise _BadValueError(f"{value!r} is not one of {', '.join(map(repr, args))}")
        return value

    return convert


def _tuple_converter(item_kind: Any) -> _Converter:
    convert_item = _converter(item_kind)

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise _BadValueError(f"a list is expected, not {_name(value)}")
        made = []
        for index, item in enumerate(value):
            try:
                made.append(convert_item(item))
            except _BadValueError as bad:
                raise bad.under(f"[{index}]") from None
        return tuple(made)

    return convert


def _mapping_converter(item_kind: Any) -> _Converter:
    convert_item = _converter(item_kind)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _BadValueError(f"a table is expected, not {_name(value)}")
        return {key: _under(f".{key}", convert_item, item) for key, item in value.items()}

    return convert


def _under(step: str, convert: _Converter, value: Any) -> Any:
    try:
        return convert(value)
    except _BadValueError as bad:
        raise bad.under(step) from None


def _union_converter(args: tuple[Any, ...]) -> _Converter:
    converters = [_converter(arg) for arg in args if arg is not type(None)]
    optional = type(None) in args

    def convert(value: Any) -> Any:
        if value is None and optional:
            return None
        if len(converters) == 1:
            return converters[0](value)
        for attempt in converters:
            try:
                return attempt(value)
            except _BadValueError:
                continue
        raise _BadValueError(f"{_name(value)} does not fit any of the allowed types")

    return convert


def _dataclass_converter(kind: type[Any]) -> _Converter:
    hints = _hints(kind)
    fields = {f.name: _converter(hints[f.name]) for f in dataclasses.fields(kind)}
    required = [f.name for f in dataclasses.fields(kind) if _is_required(f)]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _BadValueError(f"a table is expected, not {_name(value)}")
        _check_keys(value, fields, required)
        made = {name: _under(f".{name}", fields[name], item) for name, item in value.items()}
        try:
            return kind(**made)
        except ValueError as error:
            raise _BadValueError(str(error)) from None

    return convert


def _hints(kind: type[Any]) -> dict[str, Any]:
    """The types of all fields, each in the words of the class that declares it."""
    found: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        found |= inspect.get_annotations(owner, eval_str=True)
    return found


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _check_keys(value: Mapping[str, Any], fields: Mapping[str, Any], required: Iterable[str]) -> None:
    for name in value:
        if name not in fields:
            known = ", ".join(sorted(fields))
            raise _BadValueError("unknown key", path=f".{name}", next=f"known keys: {known}")
    for name in required:
        if name not in value:
            raise _BadValueError("missing", path=f".{name}")


def _enum_converter(kind: type[Enum]) -> _Converter:
    members = {member.value: member for member in kind}

    def convert(value: Any) -> Any:
        found = members.get(value) if isinstance(value, str | int) else None
        if found is None:
            words = ", ".join(str(member.value) for member in kind)
            raise _BadValueError(f"{value!r} is not one of {words}")
        return found

    return convert


def _scalar_converter(kind: Any) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _BadValueError(f"{getattr(kind, '__name__', kind)} is expected, not {_name(value)}")

    return convert


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__

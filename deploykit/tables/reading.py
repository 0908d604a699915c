"""Reads TOML and JSON files into structs; the error for a bad file names the path of the bad key.

The same classes produce JSON Schemas, with which an editor can check a file.
The meaning of the data does not matter here.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec.json import decode, encode, schema_components

from deploykit.errors import InputError
from deploykit.findings.records import Json
from deploykit.system.files import read_regular
from deploykit.system.store import Store

__all__ = ["parse_json", "parse_rows", "read_json", "read_toml", "schema_of", "structure"]

T = TypeVar("T")

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_PLAIN = {"`object`": "a table", "`array`": "a list", "`str`": "a text", "`null`": "nothing"}
_SPACED_COLON = re.compile(rb'"\s+:')
# A key of a hundred parts: tomllib takes a time that grows with the square of their number.
_LONG_KEY = re.compile(rb"(?:\.[ \t]*+[\w\"'-]++[ \t]*+){100}")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def read_toml(path: Path, *, shipped: bool = False) -> Json:
    """Read a TOML file. Raises InputError that names the file.

    The content of a ``shipped`` file, a table of an installed package, is kept between runs by the hash of its bytes:
    tomllib takes a fifth of the time of a question that reads every table.
    """
    import tomllib

    data = read_regular(path)
    store, key = Store("tables"), sha256(data).hexdigest()
    known = store.get(key) if shipped else None
    if known is not None:
        return known
    try:
        if _LONG_KEY.search(data):
            raise RecursionError
        found = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8", why=str(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML", why=str(error)) from None
    except ValueError:  # as in JSON
        raise InputError(f"{path}: a number has thousands of digits", next="is the file whole?") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be a real file") from None
    if shipped:
        with suppress(TypeError, ValueError):  # JSON has no dates
            store.put(key, found, tidy=False)
    return found


def read_json(path: Path, *, limit: int | None = None) -> Any:
    """Read a JSON file of at most ``limit`` bytes, None for any; see ``parse_json``."""
    return parse_json(read_regular(path, limit=limit), where=str(path))


def parse_json(data: bytes, *, where: str, reader: Callable[[bytes], Any] = decode) -> Any:
    """Parse JSON in UTF-8. Raises InputError for duplicate keys, NaN, Infinity and too deep nesting.

    ``reader`` may return structs in place of objects in lists; what it rejects is parsed as plain data.
    """
    with suppress(ValueError, RecursionError, OverflowError):
        value = reader(data)
        # msgspec takes a third of json's time but silently drops repeated keys: the text then has more key endings
        # than the value has keys. A string may contain something like one.
        ends = data.count(b'":')
        if _keys(value) == ends + (len(_SPACED_COLON.findall(data)) if data.count(b":") > ends else 0):
            return value

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{where}: the key {twice!r} occurs twice in one object")
        return result

    def refuse(word: str) -> Any:
        raise InputError(f"{where}: {word} is not a JSON number")

    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8", why=str(error), next="save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON", why=str(error), next="is the file complete?") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be a real file") from None
    except ValueError:  # Python limits the digits of an integer, and its message is meant for programmers
        raise InputError(f"{where}: a number has thousands of digits", next="is the file whole?") from None


def _keys(value: Any) -> int:
    """Count the keys of all objects; a list whose first item holds no keys is skipped."""
    left, count = [value], 0
    while left:
        one = left.pop()
        if type(one) is dict:
            count += len(one)
            left += one.values()
        elif type(one) is list and one:
            if isinstance(one[0], msgspec.Struct):
                count += sum(map(len, msgspec.to_builtins(one)))
            elif type(one[0]) in (dict, list):
                left += one
    return count


def structure(kind: type[T], value: Any, *, where: str) -> T:
    """Convert plain data into ``kind``, a Struct or a type made of Structs. Raises InputError.

    ``where`` is the path of the value: ``sdks/2.33.toml: flag[3]``, or ``sdks/2.33.toml:`` for a whole file. The error
    names the key that is unknown, missing or of the wrong type.
    """
    # msgspec ignores unknown keys of a Struct, or rejects them without listing the known ones.
    left = [(kind, value, "")]
    while left:
        inner, data, path = left.pop()
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            names, nested = _fields(cast("Any", inner))
            for name in data if isinstance(data, dict) else ():
                if name not in names:
                    known = ", ".join(sorted(names))
                    raise InputError(f"{_joined(where, f'{path}.{name}')}: unknown key", next=f"known keys: {known}")
            if isinstance(data, dict):
                left += [(hint, data[name], f"{path}.{name}") for name, hint in nested.items() if name in data]
            continue
        for arg in typing.get_args(inner):
            if not _holds_struct(arg):
                continue
            if isinstance(data, list):
                left += [(arg, item, f"{path}[{index}]") for index, item in enumerate(data)]
            elif typing.get_origin(inner) is not Mapping:
                left.append((arg, data, path))
            elif isinstance(data, dict):
                left += [(arg, item, f"{path}.{key}") for key, item in data.items()]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        path = _with_keys(kind, value, path.removesuffix("`"))
        missing = _MISSING.fullmatch(message)
        if missing:
            path, message = f"{path}.{missing[1]}", "missing"
        for word, plain in _PLAIN.items():
            message = message.replace(word, plain)
        raise InputError(f"{_joined(where, path)}: {message}") from None
    except (RecursionError, UnicodeError):
        raise InputError(f"{where}: nested too deeply, or with half a letter in it, to be a real file") from None


def parse_rows(kind: type[T], rows: Any, *, where: str) -> tuple[T, ...]:
    """Convert a list of tables into a tuple of Structs. Raises InputError as ``structure`` does."""
    return cast("tuple[T, ...]", structure(tuple[kind, ...], rows, where=where))  # type: ignore[valid-type]


def _joined(where: str, path: str) -> str:
    return f"{where} {path[1:]}".removesuffix(" ").removesuffix(":") if where.endswith(":") else where + path


@cache
def _fields(kind: Any) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the names of a Struct's fields, and the types of those that contain a Struct."""
    hints = dict[str, Any]()
    for owner in reversed(kind.__mro__):  # each annotation is evaluated in the module of its class
        hints |= inspect.get_annotations(owner, eval_str=True)
    names = frozenset(kind.__struct_fields__)
    return names, {name: hint for name, hint in hints.items() if name in names and _holds_struct(hint)}


@cache
def _holds_struct(kind: Any) -> bool:
    kinds = [kind]
    for one in kinds:
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return True
        kinds += typing.get_args(one)
    return False


def _with_keys(kind: Any, value: Any, path: str) -> str:
    """Replace ``[...]``, which msgspec writes for a mapping key in the path of a bad value, with the key.

    Each key is tried alone in the mapping; the value is not needed any more, so it is changed in place.
    """
    while "[...]" in path:
        before, _, after = path.partition("[...]")
        holder = value
        for name, index in _STEP.findall(before):
            holder = holder[name] if name else holder[int(index)]
        items, bad = list(holder.items()), ""
        for key, item in items:
            holder.clear()
            holder[key] = item
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                bad = key
                break
        path = f"{before}.{bad}{after}"
    return path


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: type[Any]) -> Json:
    """Return the JSON Schema of what ``structure`` accepts as ``kind``, a Struct."""
    _, found = schema_components([kind], ref_template="#/$defs/{name}")
    defs = {name: _strict(found[name]) for name in sorted(found)}
    top = defs.pop(kind.__name__)
    # Defaults are Python values, such as tuples; a schema needs those of JSON.
    return decode(encode({"$schema": _DIALECT, **top, **({"$defs": defs} if defs else {})}), type=dict[str, Any])


def _strict(schema: Json) -> Json:
    """Restrict an object's schema to its known keys; enumerations stay unchanged."""
    if "properties" not in schema:
        return schema
    return {
        **schema,
        "description": schema.get("description", "").partition("\n")[0],
        "additionalProperties": False,
    }

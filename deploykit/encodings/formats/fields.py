"""Typed access to the JSON of one encoding: every complaint names the file, the tensor and the key.

It knows JSON types only; what a scale or an axis means is decided by its callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from deploykit.encodings.values import Array
from deploykit.errors import InputError

__all__ = ["Fields", "json_name", "nested", "numbers"]

_DEEPEST = 8
"""No tensor of a real model has more dimensions, so deeper nesting is refused before it costs anything."""


class Fields:
    """One JSON object; ``where`` says which one, for instance ``w.encodings: 'fc.weight'``."""

    __slots__ = ("_data", "where")

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise InputError(
                f"{where}: an object is expected, not {json_name(value)}",
                next="export the file again; entries cannot be repaired by guessing",
            )
        self._data: dict[str, Any] = value
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def fail(self, key: str, complaint: str, *, why: str = "", next: str = "") -> NoReturn:  # noqa: A002
        """Raise the InputError for one key."""
        raise InputError(f"{self.where}: {key!r} {complaint}", why=why, next=next)

    def known(self, keys: Iterable[str]) -> None:
        """Refuse keys that the layout does not have, because any of them may change what the others mean."""
        unknown = sorted(self._data.keys() - set(keys))
        if unknown:
            self.fail(
                unknown[0],
                "is not a key of this version's entries",
                why="an unknown key may change what the other keys mean",
                next=f"known keys here: {', '.join(sorted(keys))}",
            )

    def require(self, keys: Iterable[str]) -> None:
        """Refuse an entry that lacks one of ``keys``."""
        missing = [key for key in keys if key not in self._data]
        if missing:
            self.fail(missing[0], "is missing", next="does the file's 'version' match its content?")

    def raw(self, key: str) -> Any:
        """The value as it stands in the file."""
        self.require((key,))
        return self._data[key]

    def text(self, key: str, *, choices: Sequence[str] = ()) -> str:
        """A string, one of ``choices`` where given."""
        value = self.raw(key)
        if not isinstance(value, str):
            self.fail(key, f"must be a string, not {json_name(value)}")
        if choices and value not in choices:
            self.fail(key, f"is {value!r}, not one of {', '.join(map(repr, choices))}")
        return value

    def flag(self, key: str) -> bool:
        """A JSON boolean."""
        value = self.raw(key)
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {json_name(value)}")
        return value

    def whole(self, key: str, low: int, high: int) -> int:
        """A whole number within ``low`` .. ``high``."""
        value = self.raw(key)
        if type(value) is not int:
            self.fail(key, f"must be a whole number, not {json_name(value)}")
        if not low <= value <= high:
            self.fail(key, f"is {_short(value)}, outside {low} .. {high}")
        return value

    def numbers(self, key: str) -> Array:
        """A flat, non-empty list of finite numbers."""
        value = self.raw(key)
        if not isinstance(value, list):
            self.fail(key, f"must be a list of numbers, not {json_name(value)}")
        return numbers(value, f"{self.where}: {key!r}")

    def nested(self, key: str) -> Array:
        """A number, or an evenly nested list of numbers, as an array of the same rank."""
        return nested(self.raw(key), f"{self.where}: {key!r}")


def json_name(value: Any) -> str:
    """The JSON word for a value's type, for messages."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def numbers(values: Sequence[Any], where: str) -> Array:
    """A non-empty sequence of JSON numbers as float64; strings, booleans, null and infinities are refused."""
    if not values:
        raise InputError(f"{where} is empty")
    if not set(map(type, values)) <= {int, float}:
        index = next(i for i, value in enumerate(values) if type(value) not in (int, float))
        raise InputError(f"{where}[{index}] must be a number, not {json_name(values[index])}")
    try:
        array = np.array(values, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{where} holds a number too large for a double") from None
    if not np.isfinite(array).all():
        raise InputError(f"{where}[{int(np.argmin(np.isfinite(array)))}] is not finite")
    return array


def nested(value: Any, where: str) -> Array:
    """A number or an evenly nested list of numbers; the array has one dimension per level of nesting."""
    shape: list[int] = []
    level: list[Any] = [value]
    while any(type(item) is list for item in level):
        lengths = {len(item) if type(item) is list else -1 for item in level}
        if len(lengths) != 1 or len(shape) == _DEEPEST:
            raise InputError(f"{where} is nested unevenly or deeper than {_DEEPEST} levels")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return numbers(level, where).reshape(shape)


def _short(value: int) -> str:
    text = str(value) if value.bit_length() < 200 else "a number of hundreds of digits"
    return text if len(text) <= 40 else f"{text[:37]}…"

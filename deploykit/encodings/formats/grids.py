"""Typed access to the JSON of one encoding, and checks of the values made of its numbers.

Every complaint names the file, the tensor and the key. Whatever version or format the numbers come from, the same
things are impossible and refused here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn, TypeVar

import numpy as np

from deploykit.encodings.values import Affine, Array, Float8, Lpbq
from deploykit.errors import InputError

__all__ = [
    "FLOAT8_TYPES",
    "WIDEST",
    "Fields",
    "checked",
    "is_symmetric",
    "json_name",
    "nested",
    "normal_axis",
    "numbers",
    "offset_of",
    "other_axis",
    "scalar",
    "split_dtype",
    "states_symmetry",
    "zero_point_of",
]

Grid = TypeVar("Grid", Affine, Lpbq, Float8)

WIDEST = 32
"""The widest integer grid; biases have it."""

FLOAT8_TYPES = ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz")

_DEEPEST = 8
"""No tensor of a real model has more dimensions, so deeper nesting is refused before it costs anything."""

_FAR_FROM_INFINITY = 1e290
"""A scale below it reaches no infinity on any grid."""

_DTYPES = {f"{word}int{bits}": (bits, word == "") for word in ("", "u") for bits in range(2, WIDEST + 1)}


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

    def known(self, keys: frozenset[str]) -> None:
        """Refuse keys that the layout does not have, because any of them may change what the others mean."""
        if not self._data.keys() <= keys:
            self.fail(
                min(self._data.keys() - keys),
                "is not a key of this version's entries",
                why="an unknown key may change what the other keys mean",
                next=f"known keys here: {', '.join(sorted(keys))}",
            )

    def raw(self, key: str) -> Any:
        """The value as it stands in the file; InputError where it is missing."""
        if key not in self._data:
            self.fail(key, "is missing", next="does the file's 'version' match its content?")
        return self._data[key]

    def text(self, key: str, *, choices: Iterable[str] = ()) -> str:
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
            text = str(value) if value.bit_length() < 200 else "a number of hundreds of digits"
            self.fail(key, f"is {text if len(text) <= 40 else f'{text[:37]}…'}, outside {low} .. {high}")
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


def scalar(value: Any, where: str) -> Array:
    """One JSON number as an array without dimensions."""
    if type(value) is float and math.isfinite(value):  # most numbers of a file: ten times faster than a list of one
        return np.array(value)
    return np.array(numbers([value], where)[0])


def nested(value: Any, where: str) -> Array:
    """A number or an evenly nested list of numbers; the array has one dimension per level of nesting."""
    if type(value) is not list:
        return scalar(value, where)
    shape: list[int] = []
    level: list[Any] = [value]
    while any(type(item) is list for item in level):
        lengths = {len(item) if type(item) is list else -1 for item in level}
        if len(lengths) != 1 or len(shape) == _DEEPEST:
            raise InputError(f"{where} is nested unevenly or deeper than {_DEEPEST} levels")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return numbers(level, where).reshape(shape)


def checked(where: str, value: Grid) -> Grid:
    """The value, where its scales are positive and its zero points or block scales lie on the grid; else InputError."""
    if isinstance(value, Lpbq):
        _check_lpbq(where, value)
    elif isinstance(value, Float8):
        _check_scales(where, value.scale)
    else:
        _check_affine(where, value)
    return value


def _check_affine(where: str, value: Affine) -> None:
    scale, zero_point = value.scale, value.zero_point
    single = not scale.ndim and not zero_point.ndim
    # Most entries have one scale, and Python's own numbers are ten times faster than arrays of one.
    if single and 0 < scale.item() < _FAR_FROM_INFINITY and value.lowest <= zero_point.item() <= value.highest:
        return
    _check_scales(where, scale)
    if scale.shape != zero_point.shape:
        raise InputError(f"{where}: {scale.size} scales of shape {scale.shape}, but zero points of {zero_point.shape}")
    _check_reach(where, scale, value.bits)
    outside = (zero_point < value.lowest) | (zero_point > value.highest)
    if outside.any():
        worst = float(zero_point[outside].flat[0])
        raise InputError(
            f"{where}: zero point {worst:g} does not lie on the grid of {value.dtype}",
            why=f"{value.dtype} holds {value.lowest} .. {value.highest}; a zero point outside would wrap around",
            next="export the encodings again",
        )


def _check_lpbq(where: str, value: Lpbq) -> None:
    _check_scales(where, value.channel_scale)
    _check_reach(where, value.channel_scale, WIDEST)
    if not value.bits < value.decompressed_bits <= WIDEST:
        raise InputError(f"{where}: {value.bits} bits cannot be decompressed to {value.decompressed_bits}")
    blocks, largest = value.block_scale, 1 << (value.decompressed_bits - value.bits)
    wrong = (blocks % 1 != 0) | (blocks < 1) | (blocks > largest)
    if wrong.any():
        worst = float(blocks[wrong].flat[0])
        raise InputError(
            f"{where}: the integer block scale {worst:g} is not a whole number in 1 .. {largest}",
            why=f"that is the range for {value.bits} bits decompressed to {value.decompressed_bits}",
        )


def _check_scales(where: str, scale: Array) -> None:
    """Refuse scales that are not finite and positive."""
    wrong = ~(np.isfinite(scale) & (scale > 0))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InputError(
            f"{where}: the scale is {float(scale.flat[index]):g}" + (f" at item {index}" if scale.size > 1 else ""),
            why="a scale must be finite and greater than zero, or the grid has no values",
            next="calibrate again with data that reaches this tensor, then export",
        )


def _check_reach(where: str, scale: Array, bits: int) -> None:
    """Refuse scales whose largest value is no number any more: nothing could be said or written about them."""
    with np.errstate(over="ignore"):
        reach = scale * (1 << bits)
    if not np.isfinite(reach).all():
        raise InputError(f"{where}: the scale {float(scale.max()):g} reaches beyond what a double can hold")


def split_dtype(name: str) -> tuple[int, bool] | None:
    """``(bits, signed)`` of ``int4`` or ``uint16``; None for anything else, widths beyond 2 .. 32 included."""
    return _DTYPES.get(name)


def zero_point_of(offset: Array, bits: int, *, signed: bool) -> Array:
    """The zero point of ``dtype``'s own grid for an offset of 0.6.1 or 1.0.0, which speaks of the unsigned grid."""
    # Adding 0.0 turns -0.0 into 0.0: both mean the same, and only one of them compares equal as text.
    return np.asarray(-offset - (1 << (bits - 1) if signed else 0) + 0.0)


def offset_of(value: Affine) -> Array:
    """The offset that 0.6.1 and 1.0.0 write, of the shape of the zero point; the same step back."""
    return zero_point_of(value.zero_point, value.bits, signed=value.signed)


def states_symmetry(value: Affine) -> bool:
    """True when dtype and zero point alone look symmetric: signed and centred, a shift by half a step included."""
    return value.signed and set(value.zero_point.ravel().tolist()) <= {0.0, -0.5}


def is_symmetric(value: Affine) -> bool:
    """The symmetric flag that 0.6.1 and 1.0.0 need: what the source said, else what the grid looks like."""
    return states_symmetry(value) if value.symmetric is None else value.symmetric


def normal_axis(axis: int, rank: int, where: str) -> int:
    """A possibly negative axis as its position from the front; InputError when the tensor has no such axis."""
    if not -rank <= axis < rank:
        raise InputError(
            f"{where}: axis {axis} is out of range for {rank} dimensions",
            next="is this the model that the encodings were made from?",
        )
    return axis % rank


def other_axis(shape: tuple[int, ...], block_axis: int) -> int | None:
    """The channel axis of a blockwise array: the only other dimension, or the only other one longer than 1."""
    others = [axis for axis in range(len(shape)) if axis != block_axis]
    long = [axis for axis in others if shape[axis] > 1]
    if len(long) == 1:
        return long[0]
    return others[0] if len(others) == 1 else None

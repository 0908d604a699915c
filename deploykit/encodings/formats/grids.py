"""What the layouts of encodings files share: typed rows of JSON, and checks of the values made of its numbers.

Every complaint names the file and the tensor. The same impossible values are refused here, whatever version or format
the numbers come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from deploykit.encodings.values import Affine, Array, Float8, Lpbq
from deploykit.errors import InputError
from deploykit.findings.records import Shape

__all__ = [
    "FLOAT8_TYPES",
    "INTEGER_TYPES",
    "SECTIONS",
    "WIDEST",
    "BlockSize",
    "Width",
    "checked",
    "is_symmetric",
    "json_name",
    "json_numbers",
    "json_texts",
    "normal_axis",
    "number_array",
    "offset_of",
    "one_scale",
    "other_axis",
    "places",
    "states_symmetry",
    "typed_rows",
    "zero_point_of",
]

Grid = TypeVar("Grid", Affine, Lpbq, Float8)
Number = TypeVar("Number", float, Array)

# The widest integer grid; biases have it.
WIDEST = 32
Width: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=WIDEST)]
BlockSize: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]

# The sections of versions that tell parameters apart.
SECTIONS = ("activation_encodings", "param_encodings")

FLOAT8_TYPES = ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz")

# No tensor of a real model has more dimensions, so deeper nesting is refused before it costs anything.
_DEEPEST = 8

# With a smaller scale no grid reaches infinity.
_FAR_FROM_INFINITY = 1e290

# The decoder's words, and what a message says instead.
_PLAIN = {
    "Object missing required field": "missing is",
    "Object contains unknown field": "not a key of such an entry:",
    "`object`": "an object",
    "`array`": "a list",
    "`str`": "a string",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
}

# (bits, signed) of every integer type, "int4" and "uint16" among them.
INTEGER_TYPES = {f"{word}int{bits}": (bits, word == "") for word in ("", "u") for bits in range(2, WIDEST + 1)}


def places(items: Sequence[Any], section: str, file: str) -> list[str]:
    """What each item of a list is called in messages: by the tensor's name, or by its position without one."""
    return [
        f"{file}: {item['name']!r}"
        if isinstance(item, dict) and isinstance(item.get("name"), str)
        else f"{section}[{index}]"
        for index, item in enumerate(items)
    ]


def typed_rows(kind: Any, items: Sequence[Any], where: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """Each item as a ``kind`` with its place; InputError names the place and the first key that does not fit."""
    try:
        rows = msgspec.convert(items, list[kind])
    except (msgspec.ValidationError, RecursionError):
        rows = []
        for item, place in zip(items, where, strict=True):
            try:
                rows.append(msgspec.convert(item, kind))
            except msgspec.ValidationError as error:
                message, _, path = str(error).partition(" - at `$")
                for word, plain in _PLAIN.items():
                    message = message.replace(word, plain)
                hint = "does the file's 'version' match its content?"
                raise InputError(f"{place}{path.removesuffix('`')}: {message}", next=hint) from None
    return zip(rows, where, strict=True)


def json_name(value: Any) -> str:
    """The JSON word for a value's type, for messages."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def json_texts(numbers: Array) -> list[str]:
    """Each number of a flat array as Python's json writes it, which is ``repr``; msgspec is ten times as fast.

    The two differ only in when an exponent is written.
    """
    texts = msgspec.json.encode(numbers.tolist()).decode()[1:-1].split(",")
    size = np.abs(numbers)
    for place in np.flatnonzero(((size < 1e-4) & (size > 0)) | (size >= 1e16)).tolist():
        texts[place] = repr(float(numbers[place]))
    return texts


def json_numbers(numbers: Array) -> msgspec.Raw:
    """The numbers of an array as nested JSON lists, to be written as they are."""
    flat = numbers.ndim == 1
    return msgspec.Raw(f"[{','.join(json_texts(numbers))}]" if flat else json.dumps(numbers.tolist()))


def number_array(value: Any, where: str, key: str) -> Array:
    """A number or an evenly nested list of numbers as float64; the array has one dimension per level of nesting."""
    try:
        if type(value) is float or type(value) is int:  # most numbers of a file
            return np.array(value + 0.0)  # -0.0 means the same as 0.0, and does not read the same
        where = f"{where}: {key!r}"
        if value is msgspec.UNSET:
            raise InputError(f"{where} is missing", next="does the file's 'version' match its content?")
        shape = list[int]()
        level = [value]
        while list in (kinds := set(map(type, level))):
            if kinds != {list} or len(set(map(len, level))) != 1 or len(shape) == _DEEPEST:
                raise InputError(f"{where} is nested unevenly or deeper than {_DEEPEST} levels")
            shape.append(len(level[0]))
            level = list(chain.from_iterable(level))
        if not level:
            raise InputError(f"{where} is empty")
        if not kinds <= {int, float}:
            wrong = next(item for item in level if type(item) not in (int, float))
            raise InputError(f"{where} must hold numbers, not {json_name(wrong)}")
        return np.array(level, dtype=np.float64).reshape(shape) + 0.0
    except OverflowError:
        raise InputError(f"{where}: a number is too large for a double") from None


def one_scale(
    where: str, bits: int, scale: float, zero_point: float, *, signed: bool, symmetric: bool | None
) -> Affine:
    """The grid of a whole tensor, checked as ``checked`` does.

    Most entries are such, and numbers are quicker than arrays.
    """
    lowest = -(1 << (bits - 1)) if signed else 0
    scales, zero_points = np.array(scale), np.array(zero_point)
    value = Affine(bits=bits, signed=signed, scale=scales, zero_point=zero_points, symmetric=symmetric)
    good = 0 < scale < _FAR_FROM_INFINITY and lowest <= zero_point < lowest + (1 << bits)
    return value if good else checked(where, value)


def checked(where: str, value: Grid) -> Grid:
    """The value, where its scales are positive and its zero points or block scales lie on the grid; else InputError."""
    if isinstance(value, Affine):
        low, high, scale, zero = value.lowest, value.highest, value.scale, value.zero_point
        bound = (scale > 0) & (scale < _FAR_FROM_INFINITY) if scale.shape == zero.shape else np.False_
        if not (bound & (zero >= low) & (zero <= high)).all():
            _refuse_affine(where, value)
    elif isinstance(value, Lpbq):
        _check_scales(where, value.channel_scale)
        _check_reach(where, value.channel_scale, WIDEST)
        if not value.bits < value.decompressed_bits <= WIDEST:
            raise InputError(f"{where}: {value.bits} bits cannot be decompressed to {value.decompressed_bits}")
        blocks, largest = value.block_scale, 1 << (value.decompressed_bits - value.bits)
        wrong = ~((blocks >= 1) & (blocks <= largest)) | (np.floor(blocks) != blocks)
        if wrong.any():
            worst = float(blocks[wrong].flat[0])
            raise InputError(
                f"{where}: the integer block scale {worst:g} is not a whole number in 1 .. {largest}",
                why=f"that is the range for {value.bits} bits decompressed to {value.decompressed_bits}",
            )
    else:
        _check_scales(where, value.scale)
    return value


def _refuse_affine(where: str, value: Affine) -> None:
    """Raise InputError with what is wrong; a scale that is only large is not wrong."""
    scale, zero_point = value.scale, value.zero_point
    _check_scales(where, scale)
    if scale.shape != zero_point.shape:
        raise InputError(f"{where}: {scale.size} scales of shape {scale.shape}, but zero points of {zero_point.shape}")
    _check_reach(where, scale, value.bits)
    outside = ~((zero_point >= value.lowest) & (zero_point <= value.highest))  # true for what is no number too
    if outside.any():
        worst = float(zero_point[outside].flat[0])
        raise InputError(
            f"{where}: zero point {worst:g} does not lie on the grid of {value.dtype}",
            why=f"{value.dtype} holds {value.lowest} .. {value.highest}; a zero point outside would wrap around",
            next="export the encodings again",
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
    """Refuse scales whose largest value a double cannot hold: nothing could be said or written about them."""
    with np.errstate(over="ignore"):
        reach = scale * (1 << bits)
    if not np.isfinite(reach).all():
        raise InputError(f"{where}: the scale {float(scale.max()):g} reaches beyond what a double can hold")


def zero_point_of(offset: Number, bits: int, *, signed: bool) -> Number:
    """The zero point on the grid of ``dtype`` for an offset of 0.6.1 or 1.0.0, which counts on the unsigned grid."""
    # Adding 0.0 turns -0.0 into 0.0: both mean the same, and only one of them compares equal as text.
    return -offset - (1 << (bits - 1) if signed else 0) + 0.0


def offset_of(value: Affine) -> Array:
    """The offset that 0.6.1 and 1.0.0 write, of the shape of the zero point: the inverse of ``zero_point_of``."""
    return np.asarray(zero_point_of(value.zero_point, value.bits, signed=value.signed))


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


def other_axis(shape: Shape, block_axis: int) -> int | None:
    """The channel axis of a blockwise array: the only other dimension, or the only other one longer than 1."""
    others = [axis for axis in range(len(shape)) if axis != block_axis]
    long = [axis for axis in others if shape[axis] > 1]
    if len(long) == 1:
        return long[0]
    return others[0] if len(others) == 1 else None

"""AIMET's layout 0.6.1, and 0.6.2 of aimet_torch: objects from tensor name to a list with one item per scale.

It states neither axes nor block sizes; nothing here guesses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.columns import OffsetGrid, is_plain, offset_grids
from deploykit.encodings.formats.grids import Fields, json_name, numbers
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Value
from deploykit.errors import InputError

__all__ = ["SECTIONS", "format_sections", "format_value", "parse_one", "parse_sections"]

SECTIONS: dict[str, type] = {"activation_encodings": dict, "param_encodings": dict}

_FLOAT_KEYS = ("bitwidth", "dtype")
_INT_KEYS = ("bitwidth", "dtype", "is_symmetric", "max", "min", "offset", "scale")


def parse_sections(document: dict[str, Any], where: str) -> Iterator[Encoding]:
    """The entries of both sections in the file's order, unplaced where a list has several items."""
    for section in SECTIONS:
        entries, is_param = document[section], section == "param_encodings"
        plain = offset_grids([_plain(items) for items in entries.values()])
        for (name, items), value in zip(entries.items(), plain, strict=True):
            found = _parse_value(items, f"{where}: {name!r}") if value is None else value
            yield Encoding(name=name, value=found, is_param=is_param)


def parse_one(name: str, items: Any, _version: str) -> tuple[str, Value]:
    """One entry by itself: its name and its value."""
    return name, _parse_value(items, repr(name))


_PLAIN = frozenset(_INT_KEYS)
_FLAGS = {"True": True, "False": False}


def _plain(items: Any) -> OffsetGrid | None:
    """An ordinary per-tensor grid, whose numbers are still to be checked; None for everything else."""
    if type(items) is not list or len(items) != 1 or type(items[0]) is not dict or items[0].keys() != _PLAIN:
        return None
    item = items[0]
    bits, symmetric, scale, offset = item["bitwidth"], item["is_symmetric"], item["scale"], item["offset"]
    low, high = item["min"], item["max"]
    if item["dtype"] != "int" or type(bits) is not int or not 2 <= bits <= grids.WIDEST:
        return None
    if type(symmetric) is not str or symmetric not in _FLAGS or not (is_plain(scale) and is_plain(offset)):
        return None
    if not (is_plain(low) and is_plain(high)):
        return None
    return OffsetGrid(bits, _FLAGS[symmetric], scale, offset, low, high)


def _parse_value(items: Any, where: str) -> Value:
    if not isinstance(items, list) or not items:
        what = "an empty list" if isinstance(items, list) else json_name(items)
        raise InputError(
            f"{where}: a list with one item per scale is expected, not {what}",
            next="does the file's 'version' match its content?",
        )
    rows = [Fields(item, f"{where}[{index}]" if len(items) > 1 else where) for index, item in enumerate(items)]
    if rows[0].text("dtype", choices=("int", "float")) == "float":
        return _parse_float(rows, where)
    return _parse_affine(rows, where)


def _parse_float(rows: list[Fields], where: str) -> Float:
    if len(rows) != 1:
        raise InputError(f"{where}: a float entry has one item, not {len(rows)}")
    rows[0].known(_FLOAT_KEYS)
    if rows[0].whole("bitwidth", 1, 64) != 16:
        rows[0].fail("bitwidth", "of a float entry must be 16", why="the layout knows no other float than float16")
    return Float(dtype="float16")


def _parse_affine(rows: list[Fields], where: str) -> Affine:
    for row in rows:
        row.known(_INT_KEYS)
        row.text("dtype", choices=("int",))
    bits = _same([row.whole("bitwidth", 2, grids.WIDEST) for row in rows], "bitwidth", where)
    symmetric = _same([row.text("is_symmetric", choices=("True", "False")) for row in rows], "is_symmetric", where)
    signed = symmetric == "True"
    scale, offset = (_column(rows, key, where) for key in ("scale", "offset"))
    single = len(rows) == 1
    value = grids.affine(
        where,
        bits=bits,
        signed=signed,
        scale=scale.reshape(()) if single else scale,
        zero_point=grids.zero_point_of(offset.reshape(()) if single else offset, bits, signed=signed),
        symmetric=signed,
        placed=single,
    )
    _check_range(rows, value, where)
    return value


def _same(values: list[Any], key: str, where: str) -> Any:
    if len(set(values)) != 1:
        raise InputError(f"{where}: {key!r} differs between the items of one tensor: {values[0]!r} and others")
    return values[0]


def _column(rows: list[Fields], key: str, where: str) -> Array:
    return numbers([row.raw(key) for row in rows], f"{where}: {key!r}")


def _check_range(rows: list[Fields], value: Affine, where: str) -> None:
    """``min`` and ``max`` only repeat scale and offset: a file in which they say something else is ambiguous."""
    for key, expected in (("min", value.minimum), ("max", value.maximum)):
        stated = [row.raw(key) for row in rows if key in row]
        if not stated:
            continue
        if len(stated) != len(rows):
            raise InputError(f"{where}: {key!r} is missing from some items")
        off = np.abs(numbers(stated, f"{where}: {key!r}") - expected.reshape(-1))
        # One step, and what a producer that worked in float32 may lose.
        slack = value.scale.reshape(-1) * (1.5 + 1e-6 * (1 << value.bits))
        if (off > slack).any():
            index = int(np.argmax(off > slack))
            raise InputError(
                f"{where}: {key!r} is {stated[index]:g}, but scale and offset give {expected.flat[index]:g}",
                why="min and max repeat scale and offset; which of the two a converter obeys differs",
                next="export the encodings again instead of editing them",
            )


def format_sections(encodings: EncodingSet) -> dict[str, Any]:
    """Both sections; entries that the layout cannot hold are left out."""
    sections: dict[str, Any] = {name: {} for name in SECTIONS}
    for entry in encodings:
        items = format_value(entry.value)
        if items is not None:
            sections["param_encodings" if entry.is_param else "activation_encodings"][entry.name] = items
    return sections


def format_value(value: Value) -> list[dict[str, Any]] | None:
    """The list of one tensor in the tensor's own order, or None when the layout has no such thing."""
    if isinstance(value, Float):
        return [{"bitwidth": 16, "dtype": "float"}] if value.dtype == "float16" else None
    if not isinstance(value, Affine) or (value.block_size is not None and not value.placed):
        return None
    columns = _columns(value) if value.scale.ndim else (_single(value),)
    symmetric = str(grids.is_symmetric(value))
    return [
        {
            "bitwidth": value.bits,
            "dtype": "int",
            "is_symmetric": symmetric,
            "max": high,
            "min": low,
            "offset": offset,
            "scale": scale,
        }
        for scale, offset, low, high in columns
    ]


def _single(value: Affine) -> tuple[float, float, float, float]:
    """Scale, offset, lowest and highest value of a grid of one scale."""
    scale, zero = value.scale.item(), value.zero_point.item()
    return scale, grids.single_offset(value), (value.lowest - zero) * scale, (value.highest - zero) * scale


def _columns(value: Affine) -> Iterator[tuple[float, float, float, float]]:
    return zip(
        value.scale.reshape(-1).tolist(),
        grids.offset_of(value).reshape(-1).tolist(),
        value.minimum.reshape(-1).tolist(),
        value.maximum.reshape(-1).tolist(),
        strict=True,
    )

"""AIMET's layout 0.6.1, and 0.6.2 of aimet_torch: objects from tensor name to a list with one item per scale.

It states neither axes nor block sizes; nothing here guesses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.grids import Fields, json_name, numbers, scalar
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Value
from deploykit.errors import InputError

__all__ = ["SECTIONS", "format_sections", "parse_sections"]

SECTIONS: dict[str, type] = {"activation_encodings": dict, "param_encodings": dict}

_FLOAT_KEYS = frozenset(("bitwidth", "dtype"))
_INT_KEYS = frozenset(("bitwidth", "dtype", "is_symmetric", "max", "min", "offset", "scale"))
_FLAGS = {"True": True, "False": False}


def parse_sections(document: dict[str, Any], where: str) -> Iterator[Encoding]:
    """The entries of both sections in the file's order, unplaced where a list has several items."""
    for section in SECTIONS:
        is_param = section == "param_encodings"
        for name, items in document[section].items():
            yield Encoding(name=name, value=_parse_value(items, f"{where}: {name!r}"), is_param=is_param)


def _parse_value(items: Any, where: str) -> Value:
    if not isinstance(items, list) or not items:
        what = "an empty list" if isinstance(items, list) else json_name(items)
        raise InputError(
            f"{where}: a list with one item per scale is expected, not {what}",
            next="does the file's 'version' match its content?",
        )
    single = len(items) == 1
    rows = [Fields(item, where if single else f"{where}[{index}]") for index, item in enumerate(items)]
    if rows[0].text("dtype", choices=("int", "float")) == "float":
        if not single:
            raise InputError(f"{where}: a float entry has one item, not {len(rows)}")
        rows[0].known(_FLOAT_KEYS)
        if rows[0].whole("bitwidth", 1, 64) != 16:
            rows[0].fail("bitwidth", "of a float entry must be 16", why="the layout knows no other float than float16")
        return Float(dtype="float16")
    for row in rows:
        row.known(_INT_KEYS)
        row.text("dtype", choices=("int",))
    bits = _same([row.whole("bitwidth", 2, grids.WIDEST) for row in rows], "bitwidth", where)
    signed = _FLAGS[_same([row.text("is_symmetric", choices=_FLAGS) for row in rows], "is_symmetric", where)]
    if single:
        scale, offset = (scalar(rows[0].raw(key), f"{where}: {key!r}") for key in ("scale", "offset"))
    else:
        scale, offset = (numbers([row.raw(key) for row in rows], f"{where}: {key!r}") for key in ("scale", "offset"))
    zero_point = grids.zero_point_of(offset, bits, signed=signed)
    value = Affine(bits=bits, signed=signed, scale=scale, zero_point=zero_point, symmetric=signed, placed=single)
    _check_range(rows, grids.checked(where, value), where)
    return value


def _same(values: list[Any], key: str, where: str) -> Any:
    if len(set(values)) != 1:
        raise InputError(f"{where}: {key!r} differs between the items of one tensor: {values[0]!r} and others")
    return values[0]


def _check_range(rows: list[Fields], value: Affine, where: str) -> None:
    """``min`` and ``max`` only repeat scale and offset: a file in which they say something else is ambiguous."""
    for key, end in (("min", value.lowest), ("max", value.highest)):
        stated = [row.raw(key) for row in rows if key in row]
        if not stated:
            continue
        if len(stated) != len(rows):
            raise InputError(f"{where}: {key!r} is missing from some items")
        if value.placed and type(stated[0]) is float:
            step = value.scale.item()
            if abs(stated[0] - (end - value.zero_point.item()) * step) <= step:
                continue  # within the slack of most files, without any array
        expected = (end - value.zero_point.reshape(-1)) * value.scale.reshape(-1)
        off = np.abs(numbers(stated, f"{where}: {key!r}") - expected)
        # One step, and what a producer that worked in float32 may lose.
        slack = value.scale.reshape(-1) * (1.5 + 1e-6 * (1 << value.bits))
        if (off > slack).any():
            index = int(np.argmax(off > slack))
            raise InputError(
                f"{where}: {key!r} is {stated[index]:g}, but scale and offset give {expected[index]:g}",
                why="min and max repeat scale and offset; which of the two a converter obeys differs",
                next="export the encodings again instead of editing them",
            )


def format_sections(encodings: EncodingSet) -> dict[str, Any]:
    """Both sections; entries that the layout cannot hold are left out."""
    sections: dict[str, Any] = {name: {} for name in SECTIONS}
    for entry in encodings:
        items = _format_value(entry.value)
        if items is not None:
            sections["param_encodings" if entry.is_param else "activation_encodings"][entry.name] = items
    return sections


def _format_value(value: Value) -> list[dict[str, Any]] | None:
    """The list of one tensor in the tensor's own order, or None when the layout has no such thing."""
    if isinstance(value, Float):
        return [{"bitwidth": 16, "dtype": "float"}] if value.dtype == "float16" else None
    if not isinstance(value, Affine) or (value.block_size is not None and not value.placed):
        return None
    columns = zip(
        value.scale.reshape(-1).tolist(),
        grids.offset_of(value).reshape(-1).tolist(),
        value.minimum.reshape(-1).tolist(),
        value.maximum.reshape(-1).tolist(),
        strict=True,
    )
    head = {"bitwidth": value.bits, "dtype": "int", "is_symmetric": str(grids.is_symmetric(value))}
    return [{**head, "max": high, "min": low, "offset": offset, "scale": scale} for scale, offset, low, high in columns]

"""AIMET's layout 1.0.0: two lists of objects with flat lists of scales, without axes.

Rank-2 blockwise weights whose channel axis is the last are written transposed; undoing that needs the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from deploykit.encodings.formats import grids
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Lpbq, Value
from deploykit.errors import InputError
from deploykit.findings.records import Json

__all__ = ()

_Numbers = Annotated[list[float], Meta(min_length=1)]


class GridItem(Struct, kw_only=True, tag_field="enc_type", forbid_unknown_fields=True):
    """The numbers of one tensor; a float entry has none."""

    name: str
    bw: grids.Width
    dtype: Literal["INT", "FLOAT"]
    is_sym: bool | UnsetType = UNSET
    offset: _Numbers | UnsetType = UNSET
    scale: _Numbers | UnsetType = UNSET


class TensorItem(GridItem, kw_only=True, tag="PER_TENSOR"):
    """One scale; ``zero_point_shift`` holds the fractions of the offsets, where there are any."""

    zero_point_shift: list[float] | UnsetType = UNSET


class ChannelItem(TensorItem, kw_only=True, tag="PER_CHANNEL"):
    """One scale per channel."""


class BlockItem(TensorItem, kw_only=True, tag="PER_BLOCK"):
    """One scale per block."""

    block_size: grids.BlockSize


class LpbqItem(GridItem, kw_only=True, tag="LPBQ"):
    """A scale per channel times a whole number per block."""

    block_size: grids.BlockSize
    compressed_bw: grids.Width
    per_block_int_scale: _Numbers


def parse_sections(document: Json, where: str) -> Iterator[Encoding]:
    """The entries of both sections in the file's order; everything but per-tensor entries is unplaced.

    Each section is emptied as soon as its rows are typed: there may be millions of numbers.
    """
    kind = TensorItem | ChannelItem | BlockItem | LpbqItem
    for section in grids.SECTIONS:
        items, is_param = document[section], section == "param_encodings"
        rows = grids.typed_rows(kind, items, grids.places(items, f"{where}: {section}", where))
        items.clear()
        for row, place in rows:
            yield Encoding(row.name, _parse_value(row, place), is_param=is_param)


def _parse_value(row: Any, where: str) -> Value:
    if row.dtype == "FLOAT":
        if row != TensorItem(name=row.name, bw=16, dtype="FLOAT"):
            why = "the layout knows no other float than float16"
            raise InputError(f"{where}: a float entry must be 16 bits per tensor, without scales", why=why)
        return Float("float16")
    if row.is_sym is UNSET or row.offset is UNSET or row.scale is UNSET:
        key = next(key for key in ("is_sym", "offset", "scale") if getattr(row, key) is UNSET)
        raise InputError(f"{where}: {key!r} is missing", next="does the file's 'version' match its content?")
    count, signed = len(row.scale), row.is_sym
    if len(row.offset) != count:
        raise InputError(f"{where}: 'offset' has {len(row.offset)} items, but 'scale' has {count}")
    if type(row) is LpbqItem:
        return _parse_lpbq(row, where)
    single = type(row) is TensorItem
    if single and count != 1:
        raise InputError(f"{where}: 'scale' has {count} items, but enc_type is PER_TENSOR")
    offset = row.offset
    if not all(map(float.is_integer, offset)):
        why = "this version puts fractions into 'zero_point_shift'"
        raise InputError(f"{where}: 'offset' holds a fraction", why=why)
    if row.zero_point_shift is not UNSET:
        if len(row.zero_point_shift) != count or not all(0 <= shift < 1 for shift in row.zero_point_shift):
            raise InputError(f"{where}: 'zero_point_shift' must be {count} numbers in 0 .. 1, without 1")
        offset = [whole + shift for whole, shift in zip(offset, row.zero_point_shift, strict=True)]
    if single:
        zero = grids.zero_point_of(offset[0], row.bw, signed=signed)
        return grids.one_scale(where, row.bw, row.scale[0], zero, signed=signed, symmetric=signed)
    value = Affine(
        bits=row.bw,
        signed=signed,
        scale=np.array(row.scale),
        zero_point=grids.zero_point_of(np.array(offset), row.bw, signed=signed),
        symmetric=signed,
        block_size=row.block_size if type(row) is BlockItem else None,
        placed=False,
    )
    return grids.checked(where, value)


def _parse_lpbq(row: LpbqItem, where: str) -> Lpbq:
    channels, blocks = np.array(row.scale), np.array(row.per_block_int_scale)
    if not row.is_sym:
        raise InputError(f"{where}: 'is_sym' is false, but LPBQ is always symmetric")
    lowest = -(1 << (row.bw - 1))
    if any(offset != lowest for offset in row.offset):  # type: ignore[union-attr]
        raise InputError(f"{where}: 'offset' must be {channels.size} times {lowest}, since LPBQ is symmetric")
    if blocks.size % channels.size:
        what = f"has {blocks.size} items, not a multiple of the {channels.size} channels"
        raise InputError(f"{where}: 'per_block_int_scale' {what}")
    value = Lpbq(
        bits=row.compressed_bw,
        decompressed_bits=row.bw,
        channel_scale=channels,
        block_scale=blocks,
        block_size=row.block_size,
        axis=None,
        block_axis=None,
        placed=False,
    )
    return grids.checked(where, value)


def format_sections(encodings: EncodingSet) -> Json:
    """Both sections; entries that the layout cannot hold are left out."""
    sections: dict[str, Any] = {name: [] for name in grids.SECTIONS}
    for entry in encodings:
        fields = _format_value(entry.value)
        if fields is not None:
            section = sections["param_encodings" if entry.is_param else "activation_encodings"]
            section.append({**fields, "name": entry.name})
    return sections


def _format_value(value: Value) -> Json | None:
    """The object of one tensor without its name, or None when the layout has no such thing."""
    if isinstance(value, Float):
        return {"bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"} if value.dtype == "float16" else None
    if isinstance(value, Affine):
        offset = _flat(grids.offset_of(value), value)
        shift = offset % 1
        fields = {
            "bw": value.bits,
            "dtype": "INT",
            "enc_type": value.granularity.upper().replace("-", "_"),
            "is_sym": grids.is_symmetric(value),
            "offset": grids.json_numbers(offset - shift),
            "scale": grids.json_numbers(_flat(value.scale, value)),
        }
        if shift.any():
            fields["zero_point_shift"] = grids.json_numbers(shift)
        if value.block_size is not None:
            fields["block_size"] = value.block_size
        return fields
    if not isinstance(value, Lpbq):
        return None
    channels = value.channel_scale.reshape(-1)
    return {
        "block_size": value.block_size,
        "bw": value.decompressed_bits,
        "compressed_bw": value.bits,
        "dtype": "INT",
        "enc_type": "LPBQ",
        "is_sym": True,
        "offset": [-(1 << (value.decompressed_bits - 1))] * channels.size,
        "per_block_int_scale": _flat(value.block_scale, value).astype(np.int64).tolist(),
        "scale": grids.json_numbers(channels),
    }


def _flat(array: Array, value: Affine | Lpbq) -> Array:
    """The array as the file lists it: flat, and transposed for a placed rank-2 blockwise value with channels last."""
    transposed = value.placed and value.block_size is not None and array.ndim == 2 and value.axis == 1
    return (array.T if transposed else array).reshape(-1)

"""AIMET's layouts 2.0.0 and 2.1.0: one list of objects in the words of ONNX QuantizeLinear, with axes.

16-bit floats have no entry here, and parameters are not told apart; nothing here makes up for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.grids import number_array
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float8, Lpbq, Value, on_axis
from deploykit.errors import InputError
from deploykit.findings.records import Json

__all__ = ()

# No tensor has an axis beyond 64.
_Axis = Annotated[int, Meta(ge=-64, le=64)]


class LinearItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """One tensor; the numbers are nested as deep as its granularity asks for."""

    name: str
    output_dtype: str
    y_scale: Any = UNSET
    y_zero_point: Any = UNSET
    input_dtype: Any = UNSET
    axis: _Axis | UnsetType = UNSET
    block_size: grids.BlockSize | UnsetType = UNSET
    per_block_int_scale: Any = UNSET
    per_channel_float_scale: Any = UNSET


class ScaleOfScales(Struct, kw_only=True, forbid_unknown_fields=True):
    """What 2.1.0 writes as the scale of LPBQ: whole block scales with a scale per channel."""

    x: Any
    x_scale: Any
    axis: _Axis
    x_zero_point: Any = 0
    input_dtype: Any = UNSET
    block_size: Any = UNSET


def parse_sections(document: Json, where: str) -> Iterator[Encoding]:
    """The entries in the file's order; ``is_param`` is None, since the layout does not say."""
    items = document["encodings"]
    for row, place in grids.typed_rows(LinearItem, items, grids.places(items, f"{where}: encodings", where)):
        yield Encoding(row.name, _parse_value(row, place, document["version"]))


def _parse_value(row: LinearItem, where: str, version: str) -> Value:
    dtype, blocks, scales = row.output_dtype, row.per_block_int_scale, row.per_channel_float_scale
    grid = grids.INTEGER_TYPES.get(dtype)
    nested_scale = isinstance(row.y_scale, dict)
    if nested_scale and version == "2.0.0":
        raise InputError(
            f"{where}: 'y_scale' is an object, as from version 2.1.0 on", next="correct the file's 'version'"
        )
    if blocks is not UNSET or scales is not UNSET or nested_scale:
        if grid is None or not grid[1] or 2 * grid[0] > grids.WIDEST:
            raise InputError(f"{where}: 'output_dtype' is {dtype!r}, but LPBQ weights are int2 .. int16")
        _refuse(where, row, "y_zero_point", *(("per_block_int_scale",) if nested_scale else ("y_scale", "input_dtype")))
        if nested_scale:
            return _parse_scale_of_scales(row, grid[0], where)
        channels = number_array(scales, where, "per_channel_float_scale")
        return _lpbq(row, grid[0], channels, number_array(blocks, where, "per_block_int_scale"), None, where)
    _refuse(where, row, "input_dtype")
    if grid is None and dtype not in grids.FLOAT8_TYPES:
        types = f"int2 .. int{grids.WIDEST}, uint2 .. uint{grids.WIDEST}, {', '.join(grids.FLOAT8_TYPES)}"
        raise InputError(f"{where}: 'output_dtype' is {dtype!r}", why=f"known types: {types}")
    number, zero = row.y_scale, 0 if row.y_zero_point is UNSET else row.y_zero_point
    plain = type(number) is float and type(zero) is int and abs(zero) < 1 << grids.WIDEST
    if grid is not None and plain and row.axis is row.block_size is UNSET:
        return grids.one_scale(where, grid[0], number, zero + 0.0, signed=grid[1], symmetric=None)
    scale = number_array(row.y_scale, where, "y_scale")
    zero_point = number_array(row.y_zero_point, where, "y_zero_point") if row.y_zero_point is not UNSET else None
    axis, block_axis, size = _axes(row, scale, where)
    if grid is None:
        if zero_point is not None and zero_point.any():
            raise InputError(f"{where}: 'y_zero_point' of a float8 must be left out or 0")
        scaled = Float8(dtype=dtype, scale=scale, axis=axis, block_axis=block_axis, block_size=size)
        return grids.checked(where, scaled)
    value = Affine(
        bits=grid[0],
        signed=grid[1],
        scale=scale,
        zero_point=np.zeros(scale.shape) if zero_point is None else zero_point,
        axis=axis,
        block_axis=block_axis,
        block_size=size,
    )
    return grids.checked(where, value)


def _refuse(where: str, row: LinearItem, *keys: str) -> None:
    """Refuse keys that belong to entries of another kind: nobody knows what they are meant to change."""
    for key in keys:
        if getattr(row, key) is not UNSET:
            raise InputError(f"{where}: {key!r} is not a key of such an entry")


def _axes(row: LinearItem, scale: Array, where: str) -> tuple[int | None, int | None, int | None]:
    """``(channel axis, block axis, block size)``; a negative channel axis stays so until the rank is known."""
    if row.block_size is not UNSET:
        if scale.ndim < 2:
            raise InputError(f"{where}: 'y_scale' must be nested as deep as the tensor, because of its 'block_size'")
        block_axis = _block_axis(row, scale.ndim, where)
        return grids.other_axis(scale.shape, block_axis), block_axis, row.block_size
    if row.axis is UNSET:
        if scale.ndim:
            raise InputError(f"{where}: 'y_scale' is a list, but no 'axis' says along which dimension")
        return None, None, None
    if scale.ndim != 1:
        raise InputError(f"{where}: 'y_scale' must be a flat list, because 'axis' is given without 'block_size'")
    return row.axis, None, None


def _block_axis(row: LinearItem, rank: int, where: str) -> int:
    if row.axis is UNSET:
        raise InputError(f"{where}: 'axis' is missing")
    return grids.normal_axis(row.axis, rank, where)


def _parse_scale_of_scales(row: LinearItem, bits: int, where: str) -> Lpbq:
    (scale, _), *_ = grids.typed_rows(ScaleOfScales, [row.y_scale], [f"{where}: 'y_scale'"])
    blocks, channels = number_array(scale.x, where, "x"), number_array(scale.x_scale, where, "x_scale").reshape(-1)
    if number_array(scale.x_zero_point, where, "x_zero_point").any():
        raise InputError(f"{where}: 'x_zero_point' must be left out or 0, since LPBQ is symmetric")
    if blocks.ndim < 2:
        raise InputError(f"{where}: 'x' must be nested as deep as the tensor has dimensions")
    axis = grids.normal_axis(scale.axis, blocks.ndim, where)
    along = _block_axis(row, blocks.ndim, where)
    if axis == along or channels.size != blocks.shape[axis]:
        what = f"'x' has {blocks.shape[axis]} channels along axis {axis} and blocks along axis {along}"
        raise InputError(f"{where}: 'x_scale' has {channels.size} items, but {what}")
    return _lpbq(row, bits, on_axis(channels, axis, blocks.ndim), blocks, axis, where)


def _lpbq(row: LinearItem, bits: int, channels: Array, blocks: Array, axis: int | None, where: str) -> Lpbq:
    block_axis = _block_axis(row, blocks.ndim, where) if blocks.ndim else 0
    expected = tuple(1 if dim == block_axis else size for dim, size in enumerate(blocks.shape))
    if axis is None and (blocks.ndim < 2 or channels.shape != expected):
        what = f"the shape {list(channels.shape)}, but {list(blocks.shape)} block scales along axis {block_axis}"
        fits = f"the shape {list(expected)} would fit" if blocks.ndim > 1 else "both are nested lists of equal depth"
        raise InputError(f"{where}: 'per_channel_float_scale' has {what}", next=fits)
    if row.block_size is UNSET:
        raise InputError(f"{where}: 'block_size' is missing")
    value = Lpbq(
        bits=bits,
        decompressed_bits=2 * bits,
        channel_scale=channels,
        block_scale=blocks,
        block_size=row.block_size,
        axis=grids.other_axis(channels.shape, block_axis) if axis is None else axis,
        block_axis=block_axis,
    )
    return grids.checked(where, value)


def format_sections(encodings: EncodingSet) -> Json:
    """The one section; entries that the layout cannot hold are left out."""
    made = ((entry.name, _format_value(entry.value)) for entry in encodings)
    return {"encodings": [{**fields, "name": name} for name, fields in made if fields is not None]}


def _format_value(value: Value) -> Json | None:
    """The object of one tensor without its name, or None when the layout has no such thing."""
    if isinstance(value, Lpbq) and value.placed and value.decompressed_bits == 2 * value.bits:
        return {
            "axis": value.block_axis,
            "block_size": value.block_size,
            "output_dtype": value.dtype,
            "per_block_int_scale": value.block_scale.astype(np.int64).tolist(),
            "per_channel_float_scale": grids.json_numbers(value.channel_scale),
        }
    if not isinstance(value, Float8) and not (isinstance(value, Affine) and value.placed):
        return None
    fields = {"output_dtype": value.dtype, "y_scale": grids.json_numbers(value.scale)}
    if isinstance(value, Affine) and value.zero_point.any():
        zero = value.zero_point
        fields["y_zero_point"] = grids.json_numbers(zero) if (zero % 1).any() else zero.astype(np.int64).tolist()
    if value.block_size is not None:
        return {**fields, "axis": value.block_axis, "block_size": value.block_size}
    return fields if value.axis is None else {**fields, "axis": value.axis}

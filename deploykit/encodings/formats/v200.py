"""AIMET's layouts 2.0.0 and 2.1.0: one list of objects in the words of ONNX QuantizeLinear, with axes.

16-bit floats have no entry here, and parameters are not told apart; nothing here makes up for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.grids import Fields, nested
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float8, Lpbq, Value

__all__ = ["SECTIONS", "format_sections", "parse_sections"]

SECTIONS: dict[str, type] = {"encodings": list}

_COMMON = frozenset(("name", "output_dtype", "axis", "block_size"))
_AFFINE_KEYS = _COMMON | {"y_scale", "y_zero_point"}
_LPBQ_KEYS = _COMMON | {"per_block_int_scale", "per_channel_float_scale"}
_NESTED_KEYS = _COMMON | {"y_scale", "input_dtype"}
_SCALE_KEYS = frozenset(("x", "x_scale", "axis", "x_zero_point", "input_dtype", "block_size"))
_LARGEST_BLOCK = 1 << 31
_FAR = 64
"""Axes beyond it are none of any tensor."""


def parse_sections(document: dict[str, Any], where: str) -> Iterator[Encoding]:
    """The entries in the file's order; ``is_param`` is None, since the layout does not say."""
    for index, item in enumerate(document["encodings"]):
        entry = Fields(item, f"{where}: encodings[{index}]")
        name = entry.text("name")
        entry.where = f"{where}: {name!r}"
        yield Encoding(name=name, value=_parse_value(entry, document["version"]))


def _parse_value(entry: Fields, version: str) -> Value:
    dtype = entry.text("output_dtype")
    grid = grids.split_dtype(dtype)
    of_blocks = "per_block_int_scale" in entry or "per_channel_float_scale" in entry
    nested_scale = not of_blocks and "y_scale" in entry and isinstance(entry.raw("y_scale"), dict)
    if nested_scale and version == "2.0.0":
        entry.fail("y_scale", "is an object, as from version 2.1.0 on", next="correct the file's 'version'")
    if of_blocks or nested_scale:
        entry.known(_LPBQ_KEYS if of_blocks else _NESTED_KEYS)
        if grid is None or not grid[1] or 2 * grid[0] > grids.WIDEST:
            entry.fail("output_dtype", f"is {dtype!r}, but LPBQ weights are int2 .. int16")
        return _parse_lpbq(entry, grid[0]) if of_blocks else _parse_nested_scale(entry, grid[0])
    entry.known(_AFFINE_KEYS)
    if grid is None and dtype not in grids.FLOAT8_TYPES:
        types = f"int2 .. int{grids.WIDEST}, uint2 .. uint{grids.WIDEST}, {', '.join(grids.FLOAT8_TYPES)}"
        entry.fail("output_dtype", f"is {dtype!r}", why=f"known types: {types}")
    scale = entry.nested("y_scale")
    zero_point = entry.nested("y_zero_point") if "y_zero_point" in entry else np.zeros(scale.shape)
    if grid is None and zero_point.any():
        entry.fail("y_zero_point", "of a float8 must be left out or 0")
    axis, block_axis, size = _parse_axes(entry, scale)
    if grid is None:
        scaled = Float8(dtype=dtype, scale=scale, axis=axis, block_axis=block_axis, block_size=size)
        return grids.checked(entry.where, scaled)
    value = Affine(
        bits=grid[0],
        signed=grid[1],
        scale=scale,
        zero_point=np.asarray(zero_point + 0.0),
        axis=axis,
        block_axis=block_axis,
        block_size=size,
    )
    return grids.checked(entry.where, value)


def _parse_axes(entry: Fields, scale: Array) -> tuple[int | None, int | None, int | None]:
    """``(channel axis, block axis, block size)``; a negative channel axis stays so until the rank is known."""
    if "block_size" in entry:
        if scale.ndim < 2:
            entry.fail("y_scale", "must be nested as deep as the tensor has dimensions, because 'block_size' is given")
        block_axis = _axis(entry, scale.ndim)
        return grids.other_axis(scale.shape, block_axis), block_axis, entry.whole("block_size", 1, _LARGEST_BLOCK)
    if "axis" not in entry:
        if scale.ndim:
            entry.fail("y_scale", "is a list, but no 'axis' says along which dimension")
        return None, None, None
    if scale.ndim != 1:
        entry.fail("y_scale", "must be a flat list, because 'axis' is given without 'block_size'")
    return entry.whole("axis", -_FAR, _FAR), None, None


def _axis(entry: Fields, rank: int) -> int:
    return grids.normal_axis(entry.whole("axis", -_FAR, _FAR), rank, entry.where)


def _parse_lpbq(entry: Fields, bits: int) -> Lpbq:
    channels, blocks = entry.nested("per_channel_float_scale"), entry.nested("per_block_int_scale")
    block_axis = _axis(entry, blocks.ndim) if blocks.ndim else 0
    expected = tuple(1 if axis == block_axis else dim for axis, dim in enumerate(blocks.shape))
    if blocks.ndim < 2 or channels.shape != expected:
        entry.fail(
            "per_channel_float_scale",
            f"has the shape {list(channels.shape)}, but {list(blocks.shape)} block scales along axis {block_axis}",
            next=f"the shape {list(expected)} would fit" if blocks.ndim > 1 else "both are nested lists of equal depth",
        )
    return _lpbq(entry, bits, channels, blocks, grids.other_axis(channels.shape, block_axis), block_axis)


def _parse_nested_scale(entry: Fields, bits: int) -> Lpbq:
    """The form of 2.1.0: the block scales are themselves integers with a scale per channel."""
    scale = Fields(entry.raw("y_scale"), f"{entry.where}: 'y_scale'")
    scale.known(_SCALE_KEYS)
    blocks, channels = scale.nested("x"), nested(scale.raw("x_scale"), f"{scale.where}: 'x_scale'").reshape(-1)
    if "x_zero_point" in scale and scale.nested("x_zero_point").any():
        scale.fail("x_zero_point", "must be left out or 0, since LPBQ is symmetric")
    if blocks.ndim < 2:
        scale.fail("x", "must be nested as deep as the tensor has dimensions")
    axis, block_axis = _axis(scale, blocks.ndim), _axis(entry, blocks.ndim)
    if axis == block_axis or channels.size != blocks.shape[axis]:
        scale.fail("x_scale", f"has {channels.size} items, but 'x' has {blocks.shape[axis]} channels along axis {axis}")
    shape = [blocks.shape[axis] if dim == axis else 1 for dim in range(blocks.ndim)]
    return _lpbq(entry, bits, channels.reshape(shape), blocks, axis, block_axis)


def _lpbq(entry: Fields, bits: int, channels: Array, blocks: Array, axis: int | None, block_axis: int) -> Lpbq:
    value = Lpbq(
        bits=bits,
        decompressed_bits=2 * bits,
        channel_scale=channels,
        block_scale=blocks,
        block_size=entry.whole("block_size", 1, _LARGEST_BLOCK),
        axis=axis,
        block_axis=block_axis,
    )
    return grids.checked(entry.where, value)


def format_sections(encodings: EncodingSet) -> dict[str, Any]:
    """The one section; entries that the layout cannot hold are left out."""
    made = ((entry.name, _format_value(entry.value)) for entry in encodings)
    return {"encodings": [{**fields, "name": name} for name, fields in made if fields is not None]}


def _format_value(value: Value) -> dict[str, Any] | None:
    """The object of one tensor without its name, or None when the layout has no such thing."""
    if isinstance(value, Lpbq) and value.placed and value.decompressed_bits == 2 * value.bits:
        return {
            "axis": value.block_axis,
            "block_size": value.block_size,
            "output_dtype": value.dtype,
            "per_block_int_scale": value.block_scale.astype(np.int64).tolist(),
            "per_channel_float_scale": value.channel_scale.tolist(),
        }
    if not isinstance(value, Float8) and not (isinstance(value, Affine) and value.placed):
        return None
    fields: dict[str, Any] = {"output_dtype": value.dtype, "y_scale": value.scale.tolist()}
    if isinstance(value, Affine) and value.zero_point.any():
        whole = not (value.zero_point % 1).any()
        fields["y_zero_point"] = (value.zero_point.astype(np.int64) if whole else value.zero_point).tolist()
    if value.block_size is not None:
        return {**fields, "axis": value.block_axis, "block_size": value.block_size}
    return fields if value.axis is None else {**fields, "axis": value.axis}

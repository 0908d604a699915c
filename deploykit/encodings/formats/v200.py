"""AIMET's layouts 2.0.0 and 2.1.0: one list of objects in the words of ONNX QuantizeLinear, with axes.

16-bit floats have no entry here, and parameters are not told apart; nothing here makes up for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.columns import KnowsRows, ZeroPointGrid, is_plain, zero_point_grids
from deploykit.encodings.formats.grids import Fields, nested
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float8, Lpbq, Value

__all__ = ["SECTIONS", "format_sections", "format_value", "parse_one", "parse_sections"]

SECTIONS: dict[str, type] = {"encodings": list}

_COMMON = ("name", "output_dtype", "axis", "block_size")
_AFFINE_KEYS = (*_COMMON, "y_scale", "y_zero_point")
_LPBQ_KEYS = (*_COMMON, "per_block_int_scale", "per_channel_float_scale")
_NESTED_KEYS = (*_COMMON, "y_scale", "input_dtype")
_SCALE_KEYS = ("x", "x_scale", "axis", "x_zero_point", "input_dtype", "block_size")
_LARGEST_BLOCK = 1 << 31
_FAR = 64


def parse_sections(document: dict[str, Any], where: str) -> Iterator[Encoding]:
    """The entries in the file's order; ``is_param`` is None, since the layout does not say."""
    items = document["encodings"]
    for index, (item, plain) in enumerate(zip(items, zero_point_grids([_plain(item) for item in items]), strict=True)):
        if plain is not None:
            yield Encoding(name=item["name"], value=plain)
            continue
        name = Fields(item, f"{where}: encodings[{index}]").text("name")
        yield Encoding(name=name, value=_parse_value(Fields(item, f"{where}: {name!r}"), document["version"]))


def parse_one(_name: str, item: Any, version: str) -> tuple[str, Value]:
    """One entry by itself: its name and its value."""
    name = Fields(item, "an entry").text("name")
    return name, _parse_value(Fields(item, repr(name)), version)


_TYPES = {f"{word}int{bits}": (bits, word == "") for word in ("", "u") for bits in range(2, grids.WIDEST + 1)}
_PLAIN = (
    frozenset(("name", "output_dtype", "y_scale")),
    frozenset(("name", "output_dtype", "y_scale", "y_zero_point")),
)


def _plain(item: Any) -> ZeroPointGrid | None:
    """An ordinary per-tensor grid, whose numbers are still to be checked; None for everything else."""
    if type(item) is not dict or item.keys() not in _PLAIN:
        return None
    name, dtype, scale, zero_point = item["name"], item["output_dtype"], item["y_scale"], item.get("y_zero_point", 0)
    if type(name) is not str or type(dtype) is not str or not is_plain(scale) or not is_plain(zero_point):
        return None
    grid = _TYPES.get(dtype)
    return None if grid is None else ZeroPointGrid(*grid, scale, zero_point)


def _parse_value(entry: Fields, version: str) -> Value:
    dtype = entry.text("output_dtype")
    grid = grids.split_dtype(dtype)
    if "per_block_int_scale" in entry or "per_channel_float_scale" in entry:
        entry.known(_LPBQ_KEYS)
        return _parse_lpbq(entry, _lpbq_bits(entry, grid))
    if "y_scale" in entry and isinstance(entry.raw("y_scale"), dict):
        if version == "2.0.0":
            entry.fail("y_scale", "is an object, as from version 2.1.0 on", next="correct the file's 'version'")
        entry.known(_NESTED_KEYS)
        return _parse_nested_scale(entry, _lpbq_bits(entry, grid))
    entry.known(_AFFINE_KEYS)
    if dtype in grids.FLOAT8_TYPES:
        return _parse_float8(entry, dtype)
    if grid is None:
        types = f"int2 .. int{grids.WIDEST}, uint2 .. uint{grids.WIDEST}, {', '.join(grids.FLOAT8_TYPES)}"
        entry.fail("output_dtype", f"is {dtype!r}", why=f"known types: {types}")
    return _parse_affine(entry, *grid)


def _lpbq_bits(entry: Fields, grid: tuple[int, bool] | None) -> int:
    if grid is None or not grid[1] or 2 * grid[0] > grids.WIDEST:
        entry.fail("output_dtype", f"is {entry.raw('output_dtype')!r}, but LPBQ weights are int2 .. int16")
    return grid[0]


def _parse_affine(entry: Fields, bits: int, signed: bool) -> Affine:
    scale = entry.nested("y_scale")
    zero_point = entry.nested("y_zero_point") if "y_zero_point" in entry else np.zeros(scale.shape)
    axis, block_axis, block_size = _axes(entry, scale)
    return grids.affine(
        entry.where,
        bits=bits,
        signed=signed,
        scale=scale,
        zero_point=zero_point + 0.0,
        axis=axis,
        block_axis=block_axis,
        block_size=block_size,
    )


def _parse_float8(entry: Fields, dtype: str) -> Float8:
    scale = entry.nested("y_scale")
    if "y_zero_point" in entry and entry.nested("y_zero_point").any():
        entry.fail("y_zero_point", "of a float8 must be left out or 0")
    axis, block_axis, block_size = _axes(entry, scale)
    return grids.float8(entry.where, dtype=dtype, scale=scale, axis=axis, block_axis=block_axis, block_size=block_size)


def _axes(entry: Fields, scale: Array) -> tuple[int | None, int | None, int | None]:
    """``(channel axis, block axis, block size)``; a negative channel axis stays so until the rank is known."""
    if "block_size" in entry:
        if scale.ndim < 2:
            entry.fail("y_scale", "must be nested as deep as the tensor has dimensions, because 'block_size' is given")
        block_axis = grids.normal_axis(entry.whole("axis", -_FAR, _FAR), scale.ndim, entry.where)
        return grids.other_axis(scale.shape, block_axis), block_axis, entry.whole("block_size", 1, _LARGEST_BLOCK)
    if "axis" not in entry:
        if scale.ndim:
            entry.fail("y_scale", "is a list, but no 'axis' says along which dimension")
        return None, None, None
    if scale.ndim != 1:
        entry.fail("y_scale", "must be a flat list, because 'axis' is given without 'block_size'")
    return entry.whole("axis", -_FAR, _FAR), None, None


def _parse_lpbq(entry: Fields, bits: int) -> Lpbq:
    channels, blocks = entry.nested("per_channel_float_scale"), entry.nested("per_block_int_scale")
    block_axis = grids.normal_axis(entry.whole("axis", -_FAR, _FAR), blocks.ndim, entry.where) if blocks.ndim else 0
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
    axis = grids.normal_axis(scale.whole("axis", -_FAR, _FAR), blocks.ndim, scale.where)
    block_axis = grids.normal_axis(entry.whole("axis", -_FAR, _FAR), blocks.ndim, entry.where)
    if axis == block_axis or channels.size != blocks.shape[axis]:
        scale.fail("x_scale", f"has {channels.size} items, but 'x' has {blocks.shape[axis]} channels along axis {axis}")
    shape = [blocks.shape[axis] if dim == axis else 1 for dim in range(blocks.ndim)]
    return _lpbq(entry, bits, channels.reshape(shape), blocks, axis, block_axis)


def _lpbq(entry: Fields, bits: int, channels: Array, blocks: Array, axis: int | None, block_axis: int) -> Lpbq:
    return grids.lpbq(
        entry.where,
        bits=bits,
        decompressed_bits=2 * bits,
        channel_scale=channels,
        block_scale=blocks,
        block_size=entry.whole("block_size", 1, _LARGEST_BLOCK),
        axis=axis,
        block_axis=block_axis,
        placed=True,
    )


def format_sections(encodings: EncodingSet) -> dict[str, Any]:
    """The one section; entries that the layout cannot hold are left out."""
    if isinstance(encodings.entries, KnowsRows):
        return {"encodings": [made for made in map(_format_row, encodings.entries.rows()) if made is not None]}
    return {"encodings": [made for made in map(_format_entry, encodings) if made is not None]}


def _format_row(row: tuple[str, ZeroPointGrid | Encoding]) -> dict[str, Any] | None:
    name, grid = row
    if isinstance(grid, Encoding):
        return _format_entry(grid)
    dtype = f"{'int' if grid.signed else 'uint'}{grid.bits}"
    fields = {"name": name, "output_dtype": dtype, "y_scale": grid.scale}
    return {**fields, "y_zero_point": _shortest(grid.zero_point)} if grid.zero_point else fields


def _format_entry(entry: Encoding) -> dict[str, Any] | None:
    fields = format_value(entry.value)
    return None if fields is None else {**fields, "name": entry.name}


def format_value(value: Value) -> dict[str, Any] | None:
    """The object of one tensor without its name, or None when the layout has no such thing."""
    if isinstance(value, Affine):
        return _format_affine(value) if value.placed else None
    if isinstance(value, Float8):
        return {"output_dtype": value.dtype, "y_scale": value.scale.tolist(), **_format_axes(value)}
    if isinstance(value, Lpbq) and value.placed and value.decompressed_bits == 2 * value.bits:
        return {
            "axis": value.block_axis,
            "block_size": value.block_size,
            "output_dtype": value.dtype,
            "per_block_int_scale": value.block_scale.astype(np.int64).tolist(),
            "per_channel_float_scale": value.channel_scale.tolist(),
        }
    return None


def _format_affine(value: Affine) -> dict[str, Any]:
    if not value.scale.ndim:
        return _format_single(value)
    fields = {"output_dtype": value.dtype, "y_scale": value.scale.tolist(), **_format_axes(value)}
    if value.zero_point.any():
        whole = not (value.zero_point % 1).any()
        fields["y_zero_point"] = (value.zero_point.astype(np.int64) if whole else value.zero_point).tolist()
    return fields


def _format_single(value: Affine) -> dict[str, Any]:
    """The same for a grid of one scale: Python's own numbers are ten times faster than arrays of one."""
    zero = value.zero_point.item()
    fields = {"output_dtype": value.dtype, "y_scale": value.scale.item()}
    return {**fields, "y_zero_point": _shortest(zero)} if zero else fields


def _shortest(number: float) -> float:
    """A whole number as one: that is how it is written."""
    return int(number) if number.is_integer() else number


def _format_axes(value: Affine | Float8) -> dict[str, Any]:
    if value.block_size is not None:
        return {"axis": value.block_axis, "block_size": value.block_size}
    return {} if value.axis is None else {"axis": value.axis}

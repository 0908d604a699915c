"""AIMET's layout 1.0.0: two lists of objects with flat lists of scales, without axes.

Rank-2 blockwise weights whose channel axis is the last are written transposed; undoing that needs the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.grids import Fields
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Lpbq, Value

__all__ = ["SECTIONS", "format_sections", "parse_sections"]

SECTIONS: dict[str, type] = {"activation_encodings": list, "param_encodings": list}

_FLOAT_KEYS = frozenset(("bw", "dtype", "enc_type", "name"))
_INT_KEYS = _FLOAT_KEYS | {"is_sym", "offset", "scale"}
_KEYS = {
    "PER_TENSOR": _INT_KEYS | {"zero_point_shift"},
    "PER_CHANNEL": _INT_KEYS | {"zero_point_shift"},
    "PER_BLOCK": _INT_KEYS | {"zero_point_shift", "block_size"},
    "LPBQ": _INT_KEYS | {"block_size", "compressed_bw", "per_block_int_scale"},
}
_LARGEST_BLOCK = 1 << 31


def parse_sections(document: dict[str, Any], where: str) -> Iterator[Encoding]:
    """The entries of both sections in the file's order; everything but per-tensor entries is unplaced."""
    for section in SECTIONS:
        is_param = section == "param_encodings"
        for index, item in enumerate(document[section]):
            entry = Fields(item, f"{where}: {section}[{index}]")
            name = entry.text("name")
            entry.where = f"{where}: {name!r}"
            yield Encoding(name=name, value=_parse_value(entry), is_param=is_param)


def _parse_value(entry: Fields) -> Value:
    kind = entry.text("enc_type", choices=_KEYS)
    if entry.text("dtype", choices=("INT", "FLOAT")) == "FLOAT":
        entry.known(_FLOAT_KEYS)
        if kind != "PER_TENSOR" or entry.whole("bw", 1, 64) != 16:
            why = "the layout knows no other float than float16"
            entry.fail("bw", "of a float entry must be 16, per tensor", why=why)
        return Float(dtype="float16")
    entry.known(_KEYS[kind])
    if kind == "LPBQ":
        return _parse_lpbq(entry)
    bits = entry.whole("bw", 2, grids.WIDEST)
    signed = entry.flag("is_sym")
    scale, offset = entry.numbers("scale"), _parse_offset(entry)
    single = kind == "PER_TENSOR"
    if single and scale.size != 1:
        entry.fail("scale", f"has {scale.size} items, but enc_type is PER_TENSOR")
    if offset.size != scale.size:
        entry.fail("offset", f"has {offset.size} items, but 'scale' has {scale.size}")
    if single:
        scale, offset = np.array(scale[0]), np.array(offset[0])
    value = Affine(
        bits=bits,
        signed=signed,
        scale=scale,
        zero_point=grids.zero_point_of(offset, bits, signed=signed),
        symmetric=signed,
        block_size=entry.whole("block_size", 1, _LARGEST_BLOCK) if kind == "PER_BLOCK" else None,
        placed=single,
    )
    return grids.checked(entry.where, value)


def _parse_offset(entry: Fields) -> Array:
    """The true offsets: the whole part plus the shift, which is only written when some offset is fractional."""
    offset = entry.numbers("offset")
    if (offset % 1 != 0).any():
        entry.fail("offset", "holds a fraction", why="this version puts fractions into 'zero_point_shift'")
    if "zero_point_shift" not in entry:
        return offset
    shift = entry.numbers("zero_point_shift")
    if shift.size != offset.size or not ((shift >= 0) & (shift < 1)).all():
        entry.fail("zero_point_shift", f"must be {offset.size} numbers in 0 .. 1, without 1")
    return np.asarray(offset + shift)


def _parse_lpbq(entry: Fields) -> Lpbq:
    decompressed, bits = entry.whole("bw", 2, grids.WIDEST), entry.whole("compressed_bw", 2, grids.WIDEST)
    channels, blocks = entry.numbers("scale"), entry.numbers("per_block_int_scale")
    if not entry.flag("is_sym"):
        entry.fail("is_sym", "is false, but LPBQ is always symmetric")
    offset = entry.numbers("offset")
    if offset.size != channels.size or not (offset == -(1 << (decompressed - 1))).all():
        entry.fail("offset", f"must be {channels.size} times {-(1 << (decompressed - 1))}, since LPBQ is symmetric")
    if blocks.size % channels.size:
        entry.fail("per_block_int_scale", f"has {blocks.size} items, not a multiple of the {channels.size} channels")
    value = Lpbq(
        bits=bits,
        decompressed_bits=decompressed,
        channel_scale=channels,
        block_scale=blocks,
        block_size=entry.whole("block_size", 1, _LARGEST_BLOCK),
        axis=None,
        block_axis=None,
        placed=False,
    )
    return grids.checked(entry.where, value)


def format_sections(encodings: EncodingSet) -> dict[str, Any]:
    """Both sections; entries that the layout cannot hold are left out."""
    sections: dict[str, Any] = {name: [] for name in SECTIONS}
    for entry in encodings:
        fields = _format_value(entry.value)
        if fields is not None:
            section = sections["param_encodings" if entry.is_param else "activation_encodings"]
            section.append({**fields, "name": entry.name})
    return sections


def _format_value(value: Value) -> dict[str, Any] | None:
    """The object of one tensor without its name, or None when the layout has no such thing."""
    if isinstance(value, Float):
        return {"bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"} if value.dtype == "float16" else None
    if isinstance(value, Affine):
        offset = _flat(grids.offset_of(value), value).tolist()
        shift = [number % 1 for number in offset]
        fields: dict[str, Any] = {
            "bw": value.bits,
            "dtype": "INT",
            "enc_type": value.granularity.upper().replace("-", "_"),
            "is_sym": grids.is_symmetric(value),
            "offset": [number - part for number, part in zip(offset, shift, strict=True)],
            "scale": _flat(value.scale, value).tolist(),
        }
        if any(shift):
            fields["zero_point_shift"] = shift
        if value.block_size is not None:
            fields["block_size"] = value.block_size
        return fields
    if not isinstance(value, Lpbq):
        return None
    channels = value.channel_scale.reshape(-1).tolist()
    return {
        "block_size": value.block_size,
        "bw": value.decompressed_bits,
        "compressed_bw": value.bits,
        "dtype": "INT",
        "enc_type": "LPBQ",
        "is_sym": True,
        "offset": [-(1 << (value.decompressed_bits - 1))] * len(channels),
        "per_block_int_scale": _flat(value.block_scale, value).astype(np.int64).tolist(),
        "scale": channels,
    }


def _flat(array: Array, value: Affine | Lpbq) -> Array:
    """As the file lists it: transposed for a placed rank-2 blockwise value whose channel axis is the last."""
    transposed = value.placed and value.block_size is not None and array.ndim == 2 and value.axis == 1
    return (array.T if transposed else array).reshape(-1)

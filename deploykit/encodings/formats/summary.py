"""Describes encodings as plain JSON values, in the published shape of ``deploykit encodings show``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Float8, Lpbq, Value

__all__ = ["describe_encoding", "describe_encodings"]

_KINDS: dict[type[Value], str] = {Affine: "affine", Lpbq: "lpbq", Float: "float", Float8: "float8"}


def describe_encodings(encodings: EncodingSet, *, arrays: bool = False) -> dict[str, Any]:
    """Version, producer, counts by kind, type and granularity, and one row per tensor in the set's order."""
    rows = [describe_encoding(entry, arrays=arrays) for entry in encodings]
    return {
        "version": encodings.version,
        "producer": None if encodings.producer is None else dict(encodings.producer),
        "counts": {
            "tensors": len(rows),
            "parameters": sum(row["is_param"] is True for row in rows),
            "kinds": _count(rows, "kind"),
            "dtypes": _count(rows, "dtype"),
            "granularities": _count(rows, "granularity"),
        },
        "float_tensors": sorted(encodings.float_tensors),
        "extra": sorted(encodings.extra),
        "tensors": rows,
    }


def _count(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    return dict(sorted(Counter(row[key] for row in rows).items()))


def describe_encoding(entry: Encoding, *, arrays: bool = False) -> dict[str, Any]:
    """One tensor; ``arrays`` adds every scale and zero point, nested as they are stored, instead of their bounds only.

    ``scale``, ``zero_point``, ``min`` and ``max`` are the smallest and largest over all channels and blocks.
    """
    value = entry.value
    row: dict[str, Any] = {
        "name": entry.name,
        "kind": _KINDS[type(value)],
        "dtype": value.dtype,
        "bitwidth": _bits(value),
        "granularity": value.granularity,
        "is_param": entry.is_param,
    }
    if isinstance(value, Affine):
        row |= _affine(value, arrays=arrays)
    elif isinstance(value, Lpbq):
        row |= _lpbq(value, arrays=arrays)
    elif isinstance(value, Float8):
        row |= {"axis": value.axis, "scales": value.scale.size, "scale": _bounds(value.scale)}
        if arrays:
            row["values"] = {"scale": value.scale.tolist()}
    return row


def _bits(value: Value) -> int:
    if isinstance(value, Affine | Lpbq):
        return value.bits
    return 8 if isinstance(value, Float8) else 16


def _affine(value: Affine, *, arrays: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "symmetric": value.symmetric,
        "axis": value.axis,
        "block_axis": value.block_axis,
        "block_size": value.block_size,
        "placed": value.placed,
        "scales": value.scale.size,
        "scale": _bounds(value.scale),
        "zero_point": _bounds(value.zero_point),
        "min": float(value.minimum.min()),
        "max": float(value.maximum.max()),
    }
    if arrays:
        row["values"] = {"scale": value.scale.tolist(), "zero_point": value.zero_point.tolist()}
    return row


def _lpbq(value: Lpbq, *, arrays: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "symmetric": True,
        "decompressed_bitwidth": value.decompressed_bits,
        "axis": value.axis,
        "block_axis": value.block_axis,
        "block_size": value.block_size,
        "placed": value.placed,
        "scales": value.block_scale.size,
        "scale": _bounds(value.channel_scale),
        "block_scale": _bounds(value.block_scale),
    }
    if arrays:
        row["values"] = {"channel_scale": value.channel_scale.tolist(), "block_scale": value.block_scale.tolist()}
    return row


def _bounds(array: Array) -> list[float]:
    return [float(array.min()), float(array.max())]

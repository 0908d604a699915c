"""Compares and describes encodings tensor by tensor, and restates grids as signed or unsigned ones.

It does not judge which of two sets is right.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, TypeAlias

import numpy as np

from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Float8, Lpbq, Value
from deploykit.findings.records import Json, Names, Published, replace

__all__ = ["EntryDifference", "Signedness", "compare_values", "describe_encodings", "diff", "to_unsigned"]

Signedness: TypeAlias = Literal["as-is", "unsigned", "signed"]
"""What to do with activations: leave each as it is, or force all of them."""


def to_unsigned(value: Affine, *, signed: bool = False) -> Affine:
    """The same grid counted from 0 or, with ``signed``, from the lowest negative number."""
    if value.signed is signed:
        return value
    half = 1 << (value.bits - 1)
    return replace(value, signed=signed, zero_point=np.asarray(value.zero_point + (-half if signed else half)))


class EntryChange(Published, kw_only=False):
    """One property in which two values differ, as JSON values."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.first} -> {self.second}"


class EntryDifference(Published, kw_only=False):
    """One tensor that differs: ``only-first``, ``only-second`` or ``changed``."""

    name: str
    kind: str
    changes: tuple[EntryChange, ...] = ()


def diff(
    first: EncodingSet, second: EncodingSet, *, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[EntryDifference, ...]:
    """Every tensor in which two sets differ, in the first set's order, then those that only the second has.

    ``tolerance`` is relative, for scales. ``grid_only`` compares which real values a tensor can take and how they are
    laid out: signedness and the symmetric flag are ignored, as an int8 grid around 0 is a uint8 grid around 128.
    """
    found = []
    for entry in first:
        other = second.get(entry.name)
        if other is None:
            found.append(EntryDifference(entry.name, "only-first"))
            continue
        changes = compare_values(entry.value, other.value, tolerance=tolerance, grid_only=grid_only)
        if changes:
            found.append(EntryDifference(entry.name, "changed", changes=changes))
    found += [EntryDifference(entry.name, "only-second") for entry in second if entry.name not in first]
    return tuple(found)


_ARRAYS: dict[type[Value], Names] = {
    Affine: ("scale", "zero_point"),
    Lpbq: ("channel_scale", "block_scale"),
    Float8: ("scale",),
    Float: (),
}
"""The arrays that each kind of value states."""


def compare_values(
    first: Value, second: Value, *, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[EntryChange, ...]:
    """The properties in which two values differ; a property that one of them does not state is no difference."""
    if type(first) is not type(second):
        kinds = [f"{value.dtype} {value.granularity}" for value in (first, second)]
        return (EntryChange("type", kinds[0], kinds[1]),)
    if grid_only and isinstance(first, Affine) and isinstance(second, Affine):
        first, second = to_unsigned(first), to_unsigned(second)
    found = []
    # Axes and the symmetric flag count only where both sides state them.
    optional = ("axis", "block_axis") if grid_only else ("axis", "block_axis", "symmetric")
    for name in ("dtype", "granularity", "decompressed_bits", "block_size", *optional):
        one, other = getattr(first, name, None), getattr(second, name, None)
        if one != other and not (name in optional and None in (one, other)):
            found.append(EntryChange(name, one, other))
    for name in _ARRAYS[type(first)]:
        slack = 0.0 if name in ("zero_point", "block_scale") else tolerance
        one, other = _comparable(name, first, second), _comparable(name, second, first)
        if one.shape != other.shape:
            found.append(EntryChange(f"{name} shape", list(one.shape), list(other.shape)))
            continue
        apart = np.abs(one - other)
        wrong = apart > slack * np.maximum(np.abs(one), np.abs(other))
        if wrong.any():
            at = int(np.argmax(apart))
            field = name if one.size == 1 else f"{name} ({int(wrong.sum())} of {one.size} differ; the most at {at})"
            found.append(EntryChange(field, float(one.flat[at]), float(other.flat[at])))
    return tuple(found)


def _comparable(name: str, owner: Value, other: Value) -> Array:
    """An array of ``owner``, flattened where its list can be compared with an unplaced one, which is always flat."""
    array: Array = getattr(owner, name)
    states = [getattr(value, "placed", True) for value in (owner, other)]
    flat = not all(states) and (not any(states) or (isinstance(owner, Affine) and owner.block_size is None))
    return array.reshape(-1) if flat else array


def describe_encodings(encodings: EncodingSet, *, arrays: bool = False) -> Json:
    """Version, producer, counts by kind, type and granularity, and one row per tensor in the set's order."""
    rows = [describe_encoding(entry, arrays=arrays) for entry in encodings]
    counted = {"kinds": "kind", "dtypes": "dtype", "granularities": "granularity"}
    return {
        "version": encodings.version,
        "producer": None if encodings.producer is None else dict(encodings.producer),
        "counts": {
            "tensors": len(rows),
            "parameters": sum(row["is_param"] is True for row in rows),
            **{name: dict(sorted(Counter(row[key] for row in rows).items())) for name, key in counted.items()},
        },
        "float_tensors": sorted(encodings.float_tensors),
        "extra": sorted(encodings.extra),
        "tensors": rows,
    }


def describe_encoding(entry: Encoding, *, arrays: bool) -> Json:
    """One tensor; ``arrays`` adds every scale and zero point, nested as they are stored, instead of their bounds only.

    ``scale``, ``zero_point``, ``min`` and ``max`` are the smallest and largest over all channels and blocks.
    """
    value = entry.value
    row = {
        "name": entry.name,
        "kind": type(value).__name__.lower(),
        "dtype": value.dtype,
        "bitwidth": getattr(value, "bits", 8 if isinstance(value, Float8) else 16),
        "granularity": value.granularity,
        "is_param": entry.is_param,
    }
    if isinstance(value, Float):
        return row
    if not isinstance(value, Float8):
        row["symmetric"] = value.symmetric if isinstance(value, Affine) else True
    if isinstance(value, Lpbq):
        row["decompressed_bitwidth"] = value.decompressed_bits
    row["axis"] = value.axis
    if not isinstance(value, Float8):
        row |= {"block_axis": value.block_axis, "block_size": value.block_size, "placed": value.placed}
    numbers: dict[str, Array] = {name: getattr(value, name) for name in _ARRAYS[type(value)]}
    row["scales"] = value.block_scale.size if isinstance(value, Lpbq) else value.scale.size
    for name, array in numbers.items():
        row["scale" if name == "channel_scale" else name] = [float(array.min()), float(array.max())]
    if isinstance(value, Affine):
        row["min"], row["max"] = value.ends
    if arrays:
        row["values"] = {name: array.tolist() for name, array in numbers.items()}
    return row

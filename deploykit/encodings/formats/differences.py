"""Compares and describes encodings tensor by tensor, and restates grids as signed or unsigned ones.

Which of two sets is right is not its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Float8, Lpbq, Value

__all__ = [
    "Change",
    "Difference",
    "Signedness",
    "compare_values",
    "describe_encoding",
    "describe_encodings",
    "diff",
    "restated",
    "to_signed",
    "to_unsigned",
]

Signedness: TypeAlias = Literal["as-is", "unsigned", "signed"]
"""What to do with activations: leave each as it is, or force all of them."""


def restated(entry: Encoding, signedness: Signedness) -> Encoding:
    """An activation's entry with the wanted signedness; parameters are never touched, as in AIMET."""
    if signedness == "as-is" or entry.is_param or not isinstance(entry.value, Affine):
        return entry
    change = to_unsigned if signedness == "unsigned" else to_signed
    return replace(entry, value=change(entry.value))


def to_unsigned(value: Affine) -> Affine:
    """The same grid counted from 0."""
    if not value.signed:
        return value
    return replace(value, signed=False, zero_point=np.asarray(value.zero_point + (1 << (value.bits - 1))))


def to_signed(value: Affine) -> Affine:
    """The same grid counted from the lowest negative number."""
    if value.signed:
        return value
    return replace(value, signed=True, zero_point=np.asarray(value.zero_point - (1 << (value.bits - 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One property that differs, as JSON values."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.first} -> {self.second}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tensor that differs: ``only-first``, ``only-second`` or ``changed``."""

    name: str
    kind: str
    changes: tuple[Change, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        changes = [{"field": c.field, "first": c.first, "second": c.second} for c in self.changes]
        return {"name": self.name, "kind": self.kind, "changes": changes}


def diff(
    first: EncodingSet, second: EncodingSet, *, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[Difference, ...]:
    """Every tensor in which two sets differ, in the first set's order, then those that only the second has.

    ``tolerance`` is relative, for scales. ``grid_only`` compares which real values a tensor can take and how they are
    laid out: signedness and the symmetric flag are ignored, as an int8 grid around 0 is a uint8 grid around 128.
    """
    found = []
    for entry in first:
        other = second.get(entry.name)
        if other is None:
            found.append(Difference(name=entry.name, kind="only-first"))
            continue
        changes = compare_values(entry.value, other.value, tolerance=tolerance, grid_only=grid_only)
        if changes:
            found.append(Difference(name=entry.name, kind="changed", changes=changes))
    found += [Difference(name=entry.name, kind="only-second") for entry in second if entry.name not in first]
    return tuple(found)


def compare_values(
    first: Value, second: Value, *, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[Change, ...]:
    """The properties in which two values differ; what one of them does not state is no difference."""
    if type(first) is not type(second):
        return (Change(field="type", first=_kind(first), second=_kind(second)),)
    if grid_only and isinstance(first, Affine) and isinstance(second, Affine):
        first, second = to_unsigned(first), to_unsigned(second)
    return (*_properties(first, second, grid_only=grid_only), *_numbers(first, second, tolerance))


def _kind(value: Value) -> str:
    return f"{value.dtype} {value.granularity}"


def _properties(first: Value, second: Value, *, grid_only: bool) -> Iterator[Change]:
    """Plain properties; axes and the symmetric flag only where both sides state them."""
    for name in ("dtype", "granularity", "decompressed_bits", "block_size"):
        yield from _plain(name, getattr(first, name, None), getattr(second, name, None))
    optional = ("axis", "block_axis") if grid_only else ("axis", "block_axis", "symmetric")
    for name in optional:
        one, other = getattr(first, name, None), getattr(second, name, None)
        if one is not None and other is not None:
            yield from _plain(name, one, other)


def _plain(name: str, first: Any, second: Any) -> Iterator[Change]:
    if first != second:
        yield Change(field=name, first=first, second=second)


def _numbers(first: Value, second: Value, tolerance: float) -> Iterator[Change]:
    for name in ("scale", "zero_point", "channel_scale", "block_scale"):
        if isinstance(first, Lpbq) and name == "scale":
            continue  # the product of the other two, and unplaced ones cannot be multiplied
        one, other = getattr(first, name, None), getattr(second, name, None)
        if one is not None and other is not None:
            slack = 0.0 if name in ("zero_point", "block_scale") else tolerance
            yield from _arrays(name, _comparable(one, first, second), _comparable(other, second, first), slack)


def _comparable(array: Array, owner: Value, other: Value) -> Array:
    """Unplaced per-channel lists are flat; flatten the placed side too where its order cannot differ."""
    states = [getattr(value, "placed", True) for value in (owner, other)]
    flat = not all(states) and (not any(states) or (isinstance(owner, Affine | Float8) and owner.block_size is None))
    return array.reshape(-1) if flat else array


def _arrays(name: str, first: Array, second: Array, tolerance: float) -> Iterator[Change]:
    if first.shape != second.shape:
        yield Change(field=f"{name} shape", first=list(first.shape), second=list(second.shape))
        return
    wrong = np.abs(first - second) > tolerance * np.maximum(np.abs(first), np.abs(second))
    if wrong.any():
        index = int(np.argmax(np.abs(first - second)))
        field = name if first.size == 1 else f"{name} ({int(wrong.sum())} of {first.size} differ; the most at {index})"
        yield Change(field=field, first=float(first.flat[index]), second=float(second.flat[index]))


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

"""Compares two sets of encodings, tensor by tensor; which of the two is right is not its business."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploykit.encodings.formats.signedness import to_unsigned
from deploykit.encodings.values import Affine, Array, EncodingSet, Float8, Lpbq, Value

__all__ = ["Change", "Difference", "compare_values", "diff"]


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

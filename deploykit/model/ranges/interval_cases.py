"""What a rule of interval arithmetic is told about one node: its operands' bounds, shapes and stored values.

It holds the arithmetic of pairs of ends and knows no operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.model.files.tensors import element_count
from deploykit.model.graph_copy import GraphCopy
from deploykit.model.nodes import attribute
from deploykit.model.shape_inference import Shape

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["ANYTHING", "Case", "Interval", "Rule", "both", "hull", "product", "scaled_hull", "total", "weighted"]

Interval: TypeAlias = tuple[float, float]
ANYTHING: Interval = (-math.inf, math.inf)

_WORTH_READING = 1 << 22
"""Stored tensors with more elements are not read: 16 MB in float32."""


@dataclass(frozen=True, slots=True)
class Case:
    """One node with what is known of its operands. ``types`` has (dtype, shape) of the graph's computed tensors."""

    graph: GraphCopy
    node: NodeProto
    bounds: Mapping[str, Interval]
    types: Mapping[str, tuple[str, Shape]]

    def name(self, index: int) -> str:
        """The name of an operand, "" where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def of(self, index: int) -> Interval:
        """The bounds of an operand."""
        return self.bounds.get(self.name(index), ANYTHING)

    @property
    def operands(self) -> list[Interval]:
        """The bounds of all operands that are there."""
        return [self.bounds.get(name, ANYTHING) for name in self.node.input if name]

    def shape(self, index: int) -> tuple[int | None, ...] | None:
        """The shape of an operand, None in place of dimensions that are not numbers."""
        return self.shape_of(self.name(index))

    def shape_of(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of any tensor."""
        stored = self.graph.stored.get(name)
        found: Shape = tuple(stored.dims) if stored is not None else self.types.get(name, ("", None))[1]
        return None if found is None else tuple(dim if isinstance(dim, int) else None for dim in found)

    def is_float(self, name: str) -> bool:
        """True where a tensor is known to hold floats."""
        stored = self.graph.stored.get(name)
        if stored is not None:
            return stored.data_type in (stored.FLOAT, stored.FLOAT16, stored.BFLOAT16, stored.DOUBLE)
        return self.types.get(name, ("", None))[0] in ("float", "float16", "bfloat16", "double")

    def array(self, index: int) -> npt.NDArray[Any] | None:
        """The finite stored values of an operand in double precision; None where there are none or too many to read."""
        name = self.name(index)
        tensor = self.graph.stored.get(self.graph.origin(name)) if name else None
        if tensor is None or element_count(tensor, name) > _WORTH_READING:
            return None
        value = self.graph.array(name)
        if value is None or not value.size or value.dtype.kind not in "fiub":
            return None
        wide = value.astype(np.float64)
        return wide if bool(np.isfinite(wide).all()) else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute of the node, or the default."""
        return attribute(self.node, name, default)

    def count(self, axes: Iterable[int] | None) -> int | None:
        """How many elements of the first operand are taken together along some axes (all of them for None)."""
        shape = self.shape(0)
        if shape is None:
            return None
        chosen = range(len(shape)) if axes is None else axes
        if any(not -len(shape) <= axis < len(shape) for axis in chosen):
            return None
        dims = [shape[axis] for axis in chosen]
        return None if any(dim is None for dim in dims) else math.prod(dim for dim in dims if dim is not None)

    def reduced_axes(self) -> list[int] | None:
        """The axes of a reduction, [] for all of them; None where they are computed."""
        axes = self.get("axes")
        if axes is None and self.name(1):
            stored = self.array(1)
            return None if stored is None else [int(axis) for axis in stored.ravel()]
        return [] if axes is None else [int(axis) for axis in axes]


Rule: TypeAlias = Callable[[Case], Interval]
"""The bounds of a node's first output."""


def both(a: Interval, b: Interval) -> Interval:
    """What lies in both; the first where that is nothing."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval around all of them; anything when there are none."""
    found = list(intervals)
    return (min(low for low, _ in found), max(high for _, high in found)) if found else ANYTHING


def product(a: Interval, b: Interval) -> Interval:
    """All products; zero times whatever an open end stands for is zero."""
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def total(a: Interval, b: Interval) -> Interval:
    """All sums."""
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def scaled_hull(factors: npt.NDArray[Any], offsets: npt.NDArray[Any], values: Interval) -> Interval:
    """The hull of ``factor * value + offset`` over paired factors and offsets."""
    positive, negative = np.maximum(factors, 0), np.minimum(factors, 0)
    return weighted(positive, negative, offsets, values)


def weighted(
    positive: npt.NDArray[Any], negative: npt.NDArray[Any], offsets: npt.NDArray[Any] | float, values: Interval
) -> Interval:
    """The hull of sums whose weights add up to ``positive`` and ``negative``, element by element."""
    low, high = values
    with np.errstate(invalid="ignore", over="ignore"):
        below = _part(positive, low) + _part(negative, high) + offsets
        above = _part(positive, high) + _part(negative, low) + offsets
    least, most = float(np.min(below)), float(np.max(above))
    return (-math.inf if math.isnan(least) else least), (math.inf if math.isnan(most) else most)


def _part(weights: npt.NDArray[Any], end: float) -> npt.NDArray[Any]:
    return np.where(weights == 0, 0.0, weights * end)

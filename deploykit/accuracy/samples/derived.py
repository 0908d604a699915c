"""Arrays between two ends: uniform points, both ends, zero, corners and constants; it does not ask whose ends they are.

What is made depends on the seed, the input's name and the number of the set alone, and never leaves the ends.
"""

from __future__ import annotations

import math
import zlib
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SETS", "VARIED", "ValuePoint", "arbitrary_values", "generator", "make_floats", "make_integers", "make_mask"]


class ValuePoint(StrEnum):
    """Where the values of one set lie between the ends."""

    UNIFORM = "uniform"
    LOW = "low"
    HIGH = "high"
    ZERO = "zero"
    CORNERS = "corners"
    CONSTANT = "constant"


SETS = (
    *(ValuePoint.UNIFORM, ValuePoint.LOW, ValuePoint.HIGH, ValuePoint.UNIFORM),
    *(ValuePoint.ZERO, ValuePoint.CORNERS, ValuePoint.UNIFORM, ValuePoint.CONSTANT),
)
"""What is made of each derived input, set by set; whoever wants fewer gets the first ones."""

VARIED = frozenset({ValuePoint.UNIFORM, ValuePoint.CORNERS})
"""The points whose values differ within one array; both ends are among them."""

_EXACT = 1 << 31
"""Up to this many values are counted off; of more, so few are fed that chance spreads them as well."""


def generator(seed: int, name: str, number: int) -> np.random.Generator:
    """The random numbers of one input in one set, whatever other inputs there are."""
    return np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(name.encode()), number])


def make_floats(
    point: ValuePoint,
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    rng: np.random.Generator,
) -> npt.NDArray[Any]:
    """Floats from ``low`` to ``high``, which broadcast to ``shape``; rounding to ``dtype`` leads out on no side."""
    match point:
        case ValuePoint.LOW:
            values = low
        case ValuePoint.HIGH:
            values = high
        case ValuePoint.ZERO:
            values = np.clip(0.0, low, high)
        case ValuePoint.CORNERS:
            values = np.where(_sides(shape, rng), low, high)
        case ValuePoint.CONSTANT:
            values = low + (high - low) * rng.random()
        case ValuePoint.UNIFORM:
            values = low + (high - low) * rng.random(shape)
    values = np.broadcast_to(values, shape)
    with np.errstate(over="ignore"):  # ends beyond what the type holds round to infinity, and come back one step
        made = np.clip(values, low, high).astype(dtype)
        up, down = (np.nextafter(made, np.array(end, dtype)) for end in (np.inf, -np.inf))
    made = np.where(made.astype(np.float64) < low, up, made)
    made = np.where(made.astype(np.float64) > high, down, made)
    return np.ascontiguousarray(made, dtype=dtype)


def _sides(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """One end or the other, each for half of the elements."""
    return np.asarray(rng.permutation(np.arange(math.prod(shape)) % 2 == 0).reshape(shape))


def make_integers(
    point: ValuePoint, low: int, high: int, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator
) -> npt.NDArray[Any]:
    """Integers from ``low`` to ``high``; uniform ones are every value in turn, evenly dense where there is no room."""
    match point:
        case ValuePoint.LOW | ValuePoint.HIGH | ValuePoint.ZERO:
            value = {ValuePoint.LOW: low, ValuePoint.HIGH: high, ValuePoint.ZERO: min(max(0, low), high)}[point]
            return np.full(shape, value).astype(dtype)
        case ValuePoint.CORNERS:
            return np.where(_sides(shape, rng), np.array(low).astype(dtype), np.array(high).astype(dtype))
        case ValuePoint.CONSTANT:
            return np.full(shape, _whole(rng, low, high, 1)[0]).astype(dtype)
        case ValuePoint.UNIFORM:
            return _cycled(rng, low, high, math.prod(shape)).reshape(shape).astype(dtype)


def _cycled(rng: np.random.Generator, low: int, high: int, size: int) -> npt.NDArray[Any]:
    width = high - low + 1
    if width <= size:
        start = np.asarray(low)  # of the type that holds it
        return np.asarray(start + np.resize(rng.permutation(width), size).astype(start.dtype))
    if width > _EXACT or high > np.iinfo(np.int64).max:
        return _whole(rng, low, high, size)
    starts = np.arange(size + 1, dtype=np.int64) * width // max(size, 1)
    picked = starts[:-1] + np.floor(rng.random(size) * np.diff(starts)).astype(np.int64)  # one out of each equal part
    return np.asarray(low + rng.permutation(picked))


def _whole(rng: np.random.Generator, low: int, high: int, size: int) -> npt.NDArray[Any]:
    wide = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    return np.asarray(rng.integers(low, high, size, dtype=wide, endpoint=True))


def make_mask(
    point: ValuePoint, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator
) -> npt.NDArray[Any]:
    """Zeros and ones. Along a last axis of several positions the first is 1: what hides all of them is no input.

    Behind a causal mask the first position sees nothing but itself. Where values vary at least one is 0 as well, since
    some models mean by 1 what is hidden.
    """
    values = make_integers(point, 0, 1, shape, np.dtype(np.int64), rng)
    if values.ndim and values.shape[-1] > 1:
        values[..., 0] = 1
        if point in VARIED:
            values[..., -1] &= values.min(axis=-1) == 0
    return values.astype(dtype)


def arbitrary_values(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_float: bool, low: int = 0
) -> npt.NDArray[Any]:
    """Standard normal floats; integers that are ``low`` or one more: something to run, and no ground for a verdict."""
    values = rng.standard_normal(shape) if is_float else rng.integers(low, low + 2, shape)
    return np.asarray(values).astype(dtype)

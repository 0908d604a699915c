"""What a quantizer makes of float32 values, bit for bit as AIMET computes it; arrays in, arrays out, no graphs.

    q = clamp(floor((x / s - o) + 0.5), 0, 2^b - 1)        real value = (q + o) * s

in float32, in this order: halves go up, and the offset is subtracted before rounding. ``o`` speaks of the unsigned grid
(``lowest - zero_point``). NaN becomes the lowest step. float16 and bfloat16 are IEEE casts to nearest even.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.encodings.values import Affine, Array, Float, Float8, Lpbq, Value

__all__ = ["Floats", "check_shape", "fake_quantize", "grid_scale", "is_simulated", "offset", "spread_scale"]

Floats: TypeAlias = npt.NDArray[np.float32]

_FLOAT8 = {"float8e4m3fn": (3, -6, 448.0), "float8e5m2": (2, -14, 57344.0)}
"""Per type: bits of the mantissa, exponent of the smallest normal number, largest finite value."""


_AT_ONCE = 1 << 16
"""Numbers that are quantized at once."""


def is_simulated(value: Value) -> bool:
    """False for grids wider than 24 bits: AIMET exports int32 biases and does not simulate them."""
    return not isinstance(value, Affine) or value.bits <= 24


def fake_quantize(values: npt.NDArray[Any], value: Value) -> Floats:
    """The float32 values that the encoding can hold, of the same shape. Raises ValueError when shapes disagree."""
    x = np.asarray(values, dtype=np.float32)
    with np.errstate(all="ignore"):
        if isinstance(value, Float):
            return _cast(x, value.dtype)
        if isinstance(value, Float8):
            return _float8(x, value)
        return _integer(x, value)


def check_shape(value: Value, shape: tuple[int, ...]) -> None:
    """Raises ValueError or IndexError where ``fake_quantize`` of an array of that shape does."""
    if not isinstance(value, Float) and is_simulated(value):
        spread_scale(grid_scale(value), value, shape)


def _integer(x: Floats, value: Affine | Lpbq) -> Floats:
    if not is_simulated(value):
        return x
    s = spread_scale(grid_scale(value), value, x.shape)
    o = spread_scale(offset(value), value, x.shape)
    made = np.empty(x.shape, np.float32)
    if x.ndim < 2 or x.size <= _AT_ONCE:
        return _on_grid(x, s, o, value.bits, made)
    # Weights of a hundred megabytes in parts that stay in the processor's cache, along the first axis.
    rows = max(1, _AT_ONCE * len(x) // x.size)
    for first in range(0, len(x), rows):
        here = slice(first, first + rows)
        _on_grid(x[here], _part(s, here, x.ndim), _part(o, here, x.ndim), value.bits, made[here])
    return made


def _part(numbers: Floats, here: slice, rank: int) -> Floats:
    """What of a scale belongs to some places of the first axis of an array of that rank."""
    return numbers[here] if numbers.ndim == rank and len(numbers) > 1 else numbers


def _on_grid(x: Floats, s: Floats, o: Floats, bits: int, made: Floats) -> Floats:
    """Into ``made``, operation by operation as the formula has them."""
    np.divide(x, s, out=made)
    np.subtract(made, o, out=made)
    np.add(made, np.float32(0.5), out=made)
    np.floor(made, out=made)
    if np.isnan(np.min(made, initial=0)):
        made[np.isnan(made)] = 0
    np.clip(made, np.float32(0), np.float32((1 << bits) - 1), out=made)
    np.add(made, o, out=made)
    np.multiply(made, s, out=made)
    return made


def grid_scale(value: Affine | Lpbq | Float8) -> Array:
    """The effective scale in float64, of the encoding's own shape."""
    return np.asarray(value.scale, dtype=np.float64)


def offset(value: Affine | Lpbq) -> Array:
    """The offset of the unsigned grid, of the shape of the scale: zero or negative."""
    if isinstance(value, Lpbq):
        return np.full(value.scale.shape, -float(1 << (value.bits - 1)))
    return np.asarray(value.lowest - value.zero_point, dtype=np.float64)


def spread_scale(numbers: Array, value: Value, shape: tuple[int, ...]) -> Floats:
    """A scale or offset as float32 that broadcasts against ``shape``; ValueError when it does not belong to it."""
    narrow = np.asarray(numbers, dtype=np.float32)
    block_size = getattr(value, "block_size", None)
    if narrow.size > 1 and not getattr(value, "placed", True):
        raise ValueError(f"a scale of {narrow.size} numbers has not been placed on an axis of its tensor")
    if block_size is not None:
        narrow = _unblock(narrow, value, block_size, shape)
    elif narrow.size == 1:
        return narrow.reshape(())
    elif getattr(value, "axis", None) is not None:
        narrow = _along(narrow, value.axis, shape)  # type: ignore[union-attr, arg-type]
    np.broadcast_shapes(narrow.shape, shape)
    return narrow


def _along(numbers: Floats, axis: int, shape: tuple[int, ...]) -> Floats:
    place = [1] * len(shape)
    place[axis] = numbers.size
    return numbers.reshape(place)


def _unblock(numbers: Floats, value: Any, block_size: int, shape: tuple[int, ...]) -> Floats:
    if value.block_axis is None or numbers.ndim != len(shape):
        raise ValueError(f"a scale of shape {numbers.shape} has not been placed on a tensor of shape {shape}")
    axis = value.block_axis % len(shape)
    repeated = np.repeat(numbers, block_size, axis=axis)
    return np.take(repeated, np.arange(shape[axis]), axis=axis)


def _cast(x: Floats, dtype: str) -> Floats:
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    if dtype != "bfloat16":
        return x
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32)).astype(np.float32)


def _float8(x: Floats, value: Float8) -> Floats:
    """A saturating cast of ``x / s``; the mantissa is rounded to nearest even."""
    mantissa, smallest, largest = _FLOAT8[value.dtype]
    s = spread_scale(grid_scale(value), value, x.shape)
    scaled = np.clip((x / s).astype(np.float64), -largest, largest)
    exponent = np.maximum(np.frexp(scaled)[1] - 1, smallest)
    step = np.ldexp(1.0, exponent - mantissa)
    return np.asarray((np.rint(scaled / step) * step).astype(np.float32) * s, dtype=np.float32)

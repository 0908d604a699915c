"""Turns a stored float tensor and its encoding into the integers, scales and zero points that ONNX stores.

Pure numpy. The rounding is AIMET's: ``floor(x / scale - offset + 1/2)`` in float32, halves upward, clamped to the
grid. It builds no graph and looks at none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.encodings.values import Affine, Array, Lpbq

__all__ = ["QuantizedConstant", "dequantized", "quantize_bias", "quantize_constant", "spread_blocks"]

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedConstant:
    """Integers of a weight with the grid that gives them meaning.

    ``scale`` and ``zero_point`` are 0-d per tensor, 1-d along ``axis`` per channel, and of the tensor's rank per block,
    where ``axis`` is the block axis. ``channel_scale`` (1-d along ``channel_axis``) is set for LPBQ only: then
    ``scale`` holds the whole-numbered block scales.
    """

    dtype: str
    values: Numbers
    scale: Numbers
    zero_point: Numbers
    axis: int | None = None
    block_size: int | None = None
    channel_scale: Numbers | None = None
    channel_axis: int | None = None


def quantize_constant(values: Numbers, encoding: Affine | Lpbq) -> QuantizedConstant:
    """Quantize a weight; the encoding must be placed on a graph, and its scale must fit the tensor's shape.

    Raises ValueError with the reason when it does not fit, or when ONNX has no type for the grid.
    """
    if isinstance(encoding, Lpbq):
        return _lpbq(values, encoding)
    if encoding.bits not in (4, 8, 16, 32):
        raise ValueError(f"ONNX Runtime stores no {encoding.bits}-bit integers")
    if np.any(encoding.zero_point != np.rint(encoding.zero_point)):
        raise ValueError("a shifted (fractional) zero point cannot be stored")
    scale, zero = spread_blocks(values.shape, encoding.scale, encoding), encoding.zero_point
    offset = encoding.zero_point - encoding.lowest  # distance of the real zero from the lowest integer
    grid = _full(values.shape, scale, encoding.axis, encoding.block_axis, encoding.block_size)
    shift = _full(
        values.shape,
        spread_blocks(values.shape, offset, encoding),
        encoding.axis,
        encoding.block_axis,
        encoding.block_size,
    )
    steps = _steps(values, grid, shift, encoding.bits)
    return QuantizedConstant(
        dtype=encoding.dtype,
        values=steps + encoding.lowest,
        scale=scale.astype(np.float32),
        zero_point=spread_blocks(values.shape, zero, encoding).astype(np.int64),
        axis=encoding.axis if encoding.block_size is None else encoding.block_axis,
        block_size=encoding.block_size,
    )


def quantize_bias(values: Numbers, scale: Array) -> QuantizedConstant:
    """A bias as int32 with zero point 0; ``scale`` is 0-d or has one number per value of the 1-d bias."""
    limit = float(2**31 - 1)
    steps = np.clip(np.rint(values.astype(np.float64) / scale), -limit - 1, limit).astype(np.int64)
    return QuantizedConstant(
        dtype="int32",
        values=steps,
        scale=np.asarray(scale, np.float32),
        zero_point=np.zeros(np.shape(scale), np.int64),
        axis=0 if np.ndim(scale) else None,
    )


def dequantized(constant: QuantizedConstant) -> Numbers:
    """The float32 values that the integers stand for."""
    scale = constant.scale
    if constant.channel_scale is not None and constant.channel_axis is not None:
        scale = scale * _along(constant.channel_scale, constant.channel_axis, scale.ndim)
    shape = constant.values.shape
    block_axis = constant.axis if constant.block_size else None
    axis = None if constant.block_size else constant.axis
    grid = _full(shape, scale, axis, block_axis, constant.block_size)
    zero = _full(shape, constant.zero_point, axis, block_axis, constant.block_size)
    return np.asarray((constant.values - zero) * grid.astype(np.float32), np.float32)


def spread_blocks(shape: tuple[int, ...], numbers: Array, encoding: Affine | Lpbq) -> Array:
    """Per block, ONNX wants the full length in every axis but the block one; encodings may have 1 there."""
    if encoding.block_size is None or encoding.block_axis is None:
        return numbers
    axis, size = encoding.block_axis, encoding.block_size
    if axis >= len(shape) or shape[axis] % size:
        raise ValueError(f"blocks of {size} do not divide axis {axis} of shape {list(shape)}")
    wanted = tuple(dim // size if i == axis else dim for i, dim in enumerate(shape))
    try:
        return np.ascontiguousarray(np.broadcast_to(numbers, wanted))
    except ValueError:
        raise ValueError(f"scales of shape {list(numbers.shape)} do not fit a tensor of {list(shape)}") from None


def _lpbq(values: Numbers, encoding: Lpbq) -> QuantizedConstant:
    if encoding.bits != 4 or encoding.axis is None or encoding.block_axis is None:
        raise ValueError("LPBQ is understood for 4-bit weights with known axes only")
    channel = encoding.channel_scale.reshape(-1)
    if channel.size != values.shape[encoding.axis]:
        raise ValueError(f"{channel.size} channel scales for {values.shape[encoding.axis]} channels")
    blocks = spread_blocks(values.shape, encoding.block_scale, encoding)
    full = blocks * _along(channel, encoding.axis, values.ndim)
    grid = _full(values.shape, full, None, encoding.block_axis, encoding.block_size)
    low = -(1 << (encoding.bits - 1))
    return QuantizedConstant(
        dtype=encoding.dtype,
        values=_steps(values, grid, np.float32(-low), encoding.bits) + low,
        scale=blocks.astype(np.float32),
        zero_point=np.zeros(blocks.shape, np.int64),
        axis=encoding.block_axis,
        block_size=encoding.block_size,
        channel_scale=channel.astype(np.float32),
        channel_axis=encoding.axis,
    )


def _steps(values: Numbers, grid: Numbers, shift: Any, bits: int) -> Numbers:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = values.astype(np.float32) / grid.astype(np.float32) + np.asarray(shift, np.float32)
        rounded = np.floor(scaled + np.float32(0.5))
    top = float((1 << bits) - 1)
    return np.asarray(np.clip(np.nan_to_num(rounded, nan=0.0, posinf=top, neginf=0.0), 0, top), np.int64)


def _full(
    shape: tuple[int, ...], numbers: Numbers, axis: int | None, block_axis: int | None, block_size: int | None
) -> Numbers:
    """Numbers of any granularity, broadcastable against the tensor."""
    if block_size is not None and block_axis is not None:
        return np.repeat(numbers, block_size, axis=block_axis)
    if numbers.ndim == 0 or axis is None:
        return numbers
    if numbers.size != shape[axis]:
        raise ValueError(f"{numbers.size} scales for {shape[axis]} channels along axis {axis}")
    return _along(numbers, axis, len(shape))


def _along(numbers: Numbers, axis: int, rank: int) -> Numbers:
    return numbers.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))

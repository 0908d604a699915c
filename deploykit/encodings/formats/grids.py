"""Builds checked values out of numbers that a file gave: scales, zero points, widths, block sizes.

Whatever version or format the numbers come from, the same things are impossible and refused here.
"""

from __future__ import annotations

import numpy as np

from deploykit.encodings.values import Affine, Array, Float8, Lpbq
from deploykit.errors import InputError

__all__ = [
    "FLOAT8_TYPES",
    "WIDEST",
    "affine",
    "check_scales",
    "float8",
    "is_symmetric",
    "lpbq",
    "normal_axis",
    "offset_of",
    "other_axis",
    "single_offset",
    "split_dtype",
    "states_symmetry",
    "zero_point_of",
]

WIDEST = 32
"""The widest integer grid; biases have it."""

FLOAT8_TYPES = ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz")


def affine(
    where: str,
    *,
    bits: int,
    signed: bool,
    scale: Array,
    zero_point: Array,
    symmetric: bool | None = None,
    axis: int | None = None,
    block_axis: int | None = None,
    block_size: int | None = None,
    placed: bool = True,
) -> Affine:
    """An integer grid whose scales are positive and whose zero points lie on the grid; InputError otherwise."""
    check_scales(scale, where)
    value = Affine(
        bits=bits,
        signed=signed,
        scale=scale,
        zero_point=zero_point,
        symmetric=symmetric,
        axis=axis,
        block_axis=block_axis,
        block_size=block_size,
        placed=placed,
    )
    if scale.shape != zero_point.shape:
        raise InputError(f"{where}: {scale.size} scales of shape {scale.shape}, but zero points of {zero_point.shape}")
    _check_reach(scale, bits, where)
    outside = (zero_point < value.lowest) | (zero_point > value.highest)
    if outside.any():
        worst = float(zero_point[outside].flat[0])
        raise InputError(
            f"{where}: zero point {worst:g} does not lie on the grid of {value.dtype}",
            why=f"{value.dtype} holds {value.lowest} .. {value.highest}; a zero point outside would wrap around",
            next="export the encodings again",
        )
    return value


def lpbq(
    where: str,
    *,
    bits: int,
    decompressed_bits: int,
    channel_scale: Array,
    block_scale: Array,
    block_size: int,
    axis: int | None,
    block_axis: int | None,
    placed: bool,
) -> Lpbq:
    """An LPBQ value whose channel scales are positive and whose block scales are whole and in range."""
    check_scales(channel_scale, where)
    _check_reach(channel_scale, WIDEST, where)
    if not bits < decompressed_bits <= WIDEST:
        raise InputError(f"{where}: {bits} bits cannot be decompressed to {decompressed_bits}")
    largest = 1 << (decompressed_bits - bits)
    wrong = (block_scale % 1 != 0) | (block_scale < 1) | (block_scale > largest)
    if wrong.any():
        worst = float(block_scale[wrong].flat[0])
        raise InputError(
            f"{where}: the integer block scale {worst:g} is not a whole number in 1 .. {largest}",
            why=f"that is the range for {bits} bits decompressed to {decompressed_bits}",
        )
    return Lpbq(
        bits=bits,
        decompressed_bits=decompressed_bits,
        channel_scale=channel_scale,
        block_scale=block_scale,
        axis=axis,
        block_axis=block_axis,
        block_size=block_size,
        placed=placed,
    )


def float8(
    where: str,
    *,
    dtype: str,
    scale: Array,
    axis: int | None,
    block_axis: int | None = None,
    block_size: int | None = None,
) -> Float8:
    """A scaled float8 with positive scales."""
    check_scales(scale, where)
    return Float8(dtype=dtype, scale=scale, axis=axis, block_axis=block_axis, block_size=block_size)


def check_scales(scale: Array, where: str) -> None:
    """Refuse scales that are not finite and positive."""
    wrong = ~(np.isfinite(scale) & (scale > 0))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InputError(
            f"{where}: the scale is {float(scale.flat[index]):g}" + (f" at item {index}" if scale.size > 1 else ""),
            why="a scale must be finite and greater than zero, or the grid has no values",
            next="calibrate again with data that reaches this tensor, then export",
        )


def _check_reach(scale: Array, bits: int, where: str) -> None:
    """Refuse scales whose largest value is no number any more: nothing could be said or written about them."""
    with np.errstate(over="ignore"):
        reach = scale * (1 << bits)
    if not np.isfinite(reach).all():
        raise InputError(f"{where}: the scale {float(scale.max()):g} reaches beyond what a double can hold")


def split_dtype(name: str) -> tuple[int, bool] | None:
    """``(bits, signed)`` of ``int4`` or ``uint16``; None for anything else, widths beyond 2 .. 32 included."""
    signed = not name.startswith("u")
    digits = name.removeprefix("u").removeprefix("int")
    if name != f"{'' if signed else 'u'}int{digits}" or not digits.isascii() or not digits.isdigit():
        return None
    if len(digits) > 2 or digits.startswith("0") or not 2 <= int(digits) <= WIDEST:
        return None
    return int(digits), signed


def zero_point_of(offset: Array, bits: int, *, signed: bool) -> Array:
    """The zero point of ``dtype``'s own grid for an offset of 0.6.1 or 1.0.0, which speaks of the unsigned grid."""
    # Adding 0.0 turns -0.0 into 0.0: both mean the same, and only one of them compares equal as text.
    return np.asarray(-offset - (1 << (bits - 1) if signed else 0)) + 0.0


def offset_of(value: Affine) -> Array:
    """The offset that 0.6.1 and 1.0.0 write, of the shape of the zero point."""
    return np.asarray(-value.zero_point - (1 << (value.bits - 1) if value.signed else 0)) + 0.0


def single_offset(value: Affine) -> float:
    """``offset_of`` for a grid of one scale: Python's own numbers are ten times faster than arrays of one."""
    return -value.zero_point.item() - (1 << (value.bits - 1) if value.signed else 0) + 0.0


def states_symmetry(value: Affine) -> bool:
    """True when dtype and zero point alone look symmetric: signed and centred, a shift by half a step included."""
    return value.signed and bool(np.isin(value.zero_point, (0.0, -0.5)).all())


def is_symmetric(value: Affine) -> bool:
    """The symmetric flag that 0.6.1 and 1.0.0 need: what the source said, else what the grid looks like."""
    return states_symmetry(value) if value.symmetric is None else value.symmetric


def normal_axis(axis: int, rank: int, where: str) -> int:
    """A possibly negative axis as its position from the front; InputError when the tensor has no such axis."""
    if not -rank <= axis < rank:
        raise InputError(
            f"{where}: axis {axis} is out of range for {rank} dimensions",
            next="is this the model that the encodings were made from?",
        )
    return axis % rank


def other_axis(shape: tuple[int, ...], block_axis: int) -> int | None:
    """The channel axis of a blockwise array: the only other dimension, or the only other one longer than 1."""
    others = [axis for axis in range(len(shape)) if axis != block_axis]
    long = [axis for axis in others if shape[axis] > 1]
    if len(long) == 1:
        return long[0]
    return others[0] if len(others) == 1 else None

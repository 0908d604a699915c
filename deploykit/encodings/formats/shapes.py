"""Checks placed encodings against the shape of their tensor and settles negative axes; it knows no graph."""

from __future__ import annotations

from dataclasses import replace

from deploykit.encodings.formats import grids
from deploykit.encodings.values import Affine, Encoding, Float, Float8, Lpbq
from deploykit.errors import InputError

__all__ = ["fit", "shape_text"]


def fit(entry: Encoding, shape: tuple[int, ...] | None, source: str) -> Encoding:
    """The entry with axes counted from the front, its lengths checked; unchanged where the shape is unknown.

    Raises InputError where an axis is out of range or a list is longer or shorter than its axis. Values that are not
    placed yet are left alone.
    """
    value = entry.value
    if shape is None or isinstance(value, Float) or not getattr(value, "placed", True):
        return entry
    where = f"{source}: {entry.name!r}"
    if value.block_size is not None:
        return replace(entry, value=_fit_blocks(value, shape, where))
    if value.axis is None or isinstance(value, Lpbq):
        return entry
    axis = grids.normal_axis(value.axis, len(shape), where)
    if value.scale.size != shape[axis]:
        raise InputError(
            f"{where}: {value.scale.size} scales for axis {axis}, which is {shape[axis]} long in {shape_text(shape)}",
            next="is this the model that the encodings were made from?",
        )
    return replace(entry, value=replace(value, axis=axis))


def _fit_blocks(value: Affine | Float8 | Lpbq, shape: tuple[int, ...], where: str) -> Affine | Float8 | Lpbq:
    blocks = value.block_scale if isinstance(value, Lpbq) else value.scale
    block_axis, size = value.block_axis, value.block_size
    assert block_axis is not None and size is not None  # a placed blockwise value has both
    if blocks.ndim != len(shape):
        raise InputError(f"{where}: scales of {blocks.ndim} dimensions for a tensor of shape {shape_text(shape)}")
    if blocks.shape[block_axis] * size != shape[block_axis]:
        raise InputError(
            f"{where}: {blocks.shape[block_axis]} blocks of {size} for axis {block_axis}, "
            f"which is {shape[block_axis]} long in {shape_text(shape)}",
            next="is this the model that the encodings were made from?",
        )
    for axis, length in enumerate(blocks.shape):
        if axis != block_axis and length not in (1, shape[axis]):
            raise InputError(
                f"{where}: {length} scales for axis {axis}, which is {shape[axis]} long in {shape_text(shape)}"
            )
    return value


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as people write it: 16 x 3 x 3 x 3."""
    return " x ".join(map(str, shape)) or "a scalar"

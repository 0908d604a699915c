"""Gives axes, block axes and the tensor's own order to values of files that do not state them.

What is needed from the graph arrives as a ``Layout``; this module knows no graph and reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NoReturn

from deploykit.encodings.formats.shapes import fit, shape_text
from deploykit.encodings.values import Affine, Array, Encoding, Float, Lpbq
from deploykit.errors import InputError

__all__ = ["Layout", "place_entry"]

_NEXT = "is this the model that the encodings were made from?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a graph says about one tensor.

    ``shape`` is None when it is not fully known. The axes are those that the op reading the tensor as its weight uses
    for output channels and for blocks along the input channels; None where no op settles them. ``reader`` names that
    op for messages.
    """

    shape: tuple[int, ...] | None
    channel_axis: int | None = None
    block_axis: int | None = None
    is_param: bool = False
    reader: str = ""

    def blocks_shape(self, block_size: int) -> tuple[int, ...] | None:
        """The shape of blockwise scales: channels by blocks, 1 elsewhere; None when unknown or when they do not fit."""
        if self.shape is None or self.channel_axis is None or self.block_axis is None:
            return None
        if self.shape[self.block_axis] % block_size:
            return None
        lengths = {self.channel_axis: self.shape[self.channel_axis]}
        lengths[self.block_axis] = self.shape[self.block_axis] // block_size
        return tuple(lengths.get(axis, 1) for axis in range(len(self.shape)))


def place_entry(entry: Encoding, layout: Layout, *, source: str, version: str, infer_blocks: bool = False) -> Encoding:
    """The entry with its axes counted from the front, its scales in the tensor's order and its lengths checked.

    What the layout cannot settle stays unplaced. A list of 0.6.1 that can only be blockwise stays unplaced too, since
    the file states no block size, unless ``infer_blocks`` asks to take the only size that fits. Raises InputError
    where lengths contradict the shape.
    """
    if entry.is_param is None:
        entry = replace(entry, is_param=layout.is_param)
    value = entry.value
    if layout.shape is None or isinstance(value, Float):
        return entry
    where = f"{source}: {entry.name!r}"
    if isinstance(value, Affine) and not value.placed and value.block_size is None:
        inferred = _inferred_block(value, layout) if version.startswith("0.6") else None
        if inferred is None:
            return replace(entry, value=_place_channels(value, layout, where))
        return replace(entry, value=_from_own_order(value, layout, inferred)) if infer_blocks else entry
    if isinstance(value, Affine | Lpbq) and not value.placed:
        return replace(entry, value=_place_blocks(value, layout, where))
    return _settle_channel_axis(fit(entry, layout.shape, source), layout)


def _settle_channel_axis(entry: Encoding, layout: Layout) -> Encoding:
    """2.0.0 states the block axis only; where several dimensions are long, the graph tells which holds the channels."""
    value = entry.value
    if isinstance(value, Float) or value.block_size is None or value.axis is not None:
        return entry
    return replace(entry, value=replace(value, axis=layout.channel_axis))


def _place_channels(value: Affine, layout: Layout, where: str) -> Affine:
    axis = _channel_axis(value.scale.size, layout, where)
    return value if axis is None else replace(value, axis=axis, placed=True)


def _channel_axis(count: int, layout: Layout, where: str) -> int | None:
    """The axis with one item per channel: the reading op's, else the only one as long as the list."""
    shape = layout.shape or ()
    if layout.channel_axis is not None:
        if shape[layout.channel_axis] != count:
            _refuse(count, layout, layout.channel_axis, where)
        return layout.channel_axis
    fitting = [axis for axis, length in enumerate(shape) if length == count]
    if not fitting:
        raise InputError(f"{where}: {count} scales, but no axis of {shape_text(shape)} is as long", next=_NEXT)
    return fitting[0] if len(fitting) == 1 else None


def _refuse(count: int, layout: Layout, axis: int, where: str) -> NoReturn:
    shape = layout.shape or ()
    raise InputError(
        f"{where}: {count} scales, but {layout.reader} has {shape[axis]} channels along axis {axis} "
        f"of {shape_text(shape)}",
        next=_NEXT,
    )


def _inferred_block(value: Affine, layout: Layout) -> int | None:
    """The only block size under which a list of 0.6.1 fits as blocks, when it is longer than the channel axis."""
    if layout.shape is None or layout.channel_axis is None or layout.block_axis is None:
        return None
    channels, length = layout.shape[layout.channel_axis], layout.shape[layout.block_axis]
    blocks, rest = divmod(value.scale.size, channels) if channels else (0, 1)
    if rest or blocks < 2 or length % blocks:
        return None
    return length // blocks


def _from_own_order(value: Affine, layout: Layout, block_size: int) -> Affine:
    shape = layout.blocks_shape(block_size)
    assert shape is not None  # the size was made to fit
    return replace(
        value,
        scale=value.scale.reshape(shape),
        zero_point=value.zero_point.reshape(shape),
        axis=layout.channel_axis,
        block_axis=layout.block_axis,
        block_size=block_size,
        placed=True,
    )


def _place_blocks(value: Affine | Lpbq, layout: Layout, where: str) -> Affine | Lpbq:
    """Blockwise values of 1.0.0, whose flat list is transposed for rank-2 weights with the channels last."""
    if layout.channel_axis is None or layout.block_axis is None or value.block_size is None:
        return value
    shape = layout.blocks_shape(value.block_size)
    flat = value.block_scale if isinstance(value, Lpbq) else value.scale
    if shape is None or prod(shape) != flat.size:
        raise InputError(
            f"{where}: {flat.size} scales in blocks of {value.block_size}, but {layout.reader} has "
            f"{shape_text(layout.shape or ())}, with blocks along axis {layout.block_axis}",
            next=_NEXT,
        )
    if isinstance(value, Lpbq):
        return _place_lpbq(value, layout, shape, where)
    scale, zero_point = (_ordered(array, shape, layout) for array in (value.scale, value.zero_point))
    return replace(
        value,
        scale=scale,
        zero_point=zero_point,
        axis=layout.channel_axis,
        block_axis=layout.block_axis,
        placed=True,
    )


def _place_lpbq(value: Lpbq, layout: Layout, shape: tuple[int, ...], where: str) -> Lpbq:
    axis = layout.channel_axis
    assert axis is not None
    if value.channel_scale.size != shape[axis]:
        _refuse(value.channel_scale.size, layout, axis, where)
    return replace(
        value,
        channel_scale=value.channel_scale.reshape([n if dim == axis else 1 for dim, n in enumerate(shape)]),
        block_scale=_ordered(value.block_scale, shape, layout),
        axis=axis,
        block_axis=layout.block_axis,
        placed=True,
    )


def _ordered(flat: Array, shape: Sequence[int], layout: Layout) -> Array:
    if len(shape) == 2 and layout.channel_axis == 1:
        return flat.reshape(tuple(reversed(shape))).T
    return flat.reshape(shape)

"""Places encodings on a graph: axes, the tensor's own order, which entries are parameters; lengths are checked.

It changes no scale. What the graph cannot settle stays as it was, and ``formats.conversion`` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

from deploykit.encodings.formats import grids
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Float8, Lpbq
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts, TensorFact
from deploykit.model.graph import GraphCopy
from deploykit.model.operators import WEIGHT
from deploykit.model.parameters import ParameterUse, parameter_uses
from deploykit.model.ranges import Interval

__all__ = [
    "Layout",
    "encoded_bounds",
    "fit",
    "is_wide",
    "keep_entries",
    "layouts",
    "needed_opset",
    "place",
    "place_entry",
    "shape_text",
    "share_entry",
]


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
            axis = _channel_axis(value.scale.size, layout, where)
            return replace(entry, value=value if axis is None else replace(value, axis=axis, placed=True))
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
    scale, zero_point = (_ordered(array, shape, layout) for array in (value.scale, value.zero_point))
    return replace(
        value,
        scale=scale,
        zero_point=zero_point,
        axis=layout.channel_axis,
        block_axis=layout.block_axis,
        placed=True,
    )


def _ordered(flat: Array, shape: Sequence[int], layout: Layout) -> Array:
    if len(shape) == 2 and layout.channel_axis == 1:
        return flat.reshape(tuple(reversed(shape))).T
    return flat.reshape(shape)


def place(encodings: EncodingSet, facts: GraphFacts, *, infer_blocks: bool = False) -> EncodingSet:
    """The encodings with axes, the tensor's own order and ``is_param`` as the graph has them.

    Entries of tensors that the graph does not have are kept as they are (a rule names them). ``infer_blocks`` gives
    blockwise lists of 0.6.1 the only block size that fits. Raises InputError, naming file and tensor, where the length
    of a list contradicts the shape of its tensor.
    """
    known = layouts(facts)
    entries = {
        name: place_entry(
            entry, known[name], source=encodings.source, version=encodings.version, infer_blocks=infer_blocks
        )
        if name in known
        else entry
        for name, entry in encodings.entries.items()
    }
    return replace(encodings, entries=entries)


def layouts(facts: GraphFacts) -> dict[str, Layout]:
    """The layout of every tensor of a graph."""
    uses = parameter_uses(facts)
    return {name: _layout(fact, uses.get(name, ())) for name, fact in facts.tensors.items()}


def _layout(fact: TensorFact, uses: tuple[ParameterUse, ...]) -> Layout:
    shape = tuple(dim for dim in fact.shape or () if isinstance(dim, int)) if fact.is_static else None
    weights = [use for use in uses if use.role == WEIGHT and use.channel_axis is not None]
    axes = {(use.channel_axis, use.block_axis) for use in weights}
    # A weight that two ops read along different axes is settled by neither.
    channel, block = axes.pop() if len(axes) == 1 else (None, None)
    reader = f"{weights[0].node.op_type} {weights[0].node.label!r}" if weights else ""
    return Layout(shape=shape, channel_axis=channel, block_axis=block, is_param=bool(uses), reader=reader)


def encoded_bounds(encodings: EncodingSet | None) -> dict[str, Interval]:
    """What the integer entries can hold, per tensor."""
    return {
        entry.name: (float(entry.value.minimum.min()), float(entry.value.maximum.max()))
        for entry in encodings or ()
        if isinstance(entry.value, Affine)
    }


def keep_entries(encodings: EncodingSet | None, graph: GraphCopy) -> EncodingSet | None:
    """The encodings without those of tensors that the graph no longer has."""
    if encodings is None:
        return None
    names = graph.tensor_names
    entries = {name: entry for name, entry in encodings.entries.items() if name in names}
    return replace(encodings, entries=entries, float_tensors=encodings.float_tensors & names)


def is_wide(value: Any) -> bool:
    """True for the types that the standard operators store from opset 21 on."""
    return isinstance(value, Affine) and value.bits in (4, 16)


def needed_opset(encodings: EncodingSet) -> int:
    """The least operator set that can store these encodings: 13, 19 for float8, 21 for 4 bits and blocks."""
    wanted = 13
    for entry in encodings:
        value = entry.value
        if isinstance(value, Lpbq) or (isinstance(value, Affine) and (value.block_size is not None or value.bits == 4)):
            wanted = max(wanted, 21)
        elif isinstance(value, Float8):
            wanted = max(wanted, 19)
    return wanted


def share_entry(encodings: EncodingSet | None, source: str, names: Iterable[str]) -> EncodingSet | None:
    """With what is said of ``source`` said of other tensors that hold nothing but its values.

    Float tensors stay float; an entry per channel or block is not passed on, since its axis may mean nothing there.
    """
    if encodings is None:
        return None
    if source in encodings.float_tensors:
        return replace(encodings, float_tensors=encodings.float_tensors | set(names))
    entry = encodings.get(source)
    whole = entry is not None and isinstance(entry.value, Affine) and entry.value.granularity == "per-tensor"
    if entry is None or not (whole or isinstance(entry.value, Float)):
        return encodings
    return replace(encodings, entries={**encodings.entries, **{name: replace(entry, name=name) for name in names}})

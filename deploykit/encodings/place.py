"""Places encodings on a graph: axes, the tensor's own order, which entries are parameters; lengths are checked.

It changes no scale. An entry that the graph cannot settle stays as it was, and ``formats.conversion`` reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from deploykit.encodings.formats import grids
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Float8, Lpbq, on_axis
from deploykit.errors import InputError
from deploykit.findings.records import Interval, Record, Shape, replace
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import GraphCopy
from deploykit.model.parameters import parameter_uses
from deploykit.system.store import made_once

__all__ = ["GrowingSet", "Layout", "encoded_bounds", "keep_entries", "layouts", "needed_opset", "place"]


def checked_on_shape(value: Affine | Float8 | Lpbq, shape: Shape, where: str) -> Affine | Float8 | Lpbq:
    """The placed value with its axis counted from the front and its lengths checked.

    Raises InputError where an axis is out of range or a list is longer or shorter than its axis.
    """
    if value.block_size is not None:
        blocks = value.block_scale if isinstance(value, Lpbq) else value.scale
        block_axis, size = value.block_axis, value.block_size
        assert block_axis is not None and size is not None  # a placed blockwise value has both
        if blocks.ndim != len(shape):
            raise _misfit(f"{where}: scales of {blocks.ndim} dimensions for a tensor of shape", shape)
        for axis, length in enumerate(blocks.shape):
            if axis == block_axis and length * size != shape[axis]:
                what = f"{where}: {length} blocks of {size} for axis {axis}, which is {shape[axis]} long in"
                raise _misfit(what, shape)
            if axis != block_axis and length not in (1, shape[axis]):
                raise _misfit(f"{where}: {length} scales for axis {axis}, which is {shape[axis]} long in", shape)
        return value
    if value.axis is None:
        return value
    axis = grids.normal_axis(value.axis, len(shape), where)
    if value.scale.size != shape[axis]:
        raise _misfit(f"{where}: {value.scale.size} scales for axis {axis}, which is {shape[axis]} long in", shape)
    return replace(value, axis=axis)


def _misfit(what: str, shape: Shape) -> InputError:
    """The InputError for a list that does not fit; it writes a shape as people do: 16 x 3 x 3 x 3."""
    text = " x ".join(map(str, shape)) or "a scalar"
    return InputError(f"{what} {text}", next="is this the model that the encodings were made from?")


class Layout(Record):
    """What a graph says about one tensor.

    ``shape`` is None when it is not fully known. The axes are those that the op reading the tensor as its weight uses
    for output channels and for blocks along the input channels; None where no op settles them. ``reader`` names that
    op for messages.
    """

    shape: Shape | None
    channel_axis: int | None
    block_axis: int | None
    is_param: bool
    reader: str


def place(encodings: EncodingSet, facts: GraphFacts, *, infer_blocks: bool = False) -> EncodingSet:
    """The encodings with axes, the tensor's own order and ``is_param`` as the graph has them.

    Entries of tensors that the graph does not have are kept as they are (a rule names them). ``infer_blocks`` gives
    blockwise lists of 0.6.1 the only block size that fits. Raises InputError, naming file and tensor, where the length
    of a list contradicts the shape of its tensor.
    """
    known, source, version = layouts(facts), encodings.source, encodings.version
    return encodings.with_entries(
        _place_entry(entry, known[entry.name], source=source, version=version, infer_blocks=infer_blocks)
        for entry in encodings
        if entry.name in known
    )


@made_once
def layouts(facts: GraphFacts) -> Mapping[str, Layout]:
    """The layout of every tensor of a graph."""
    uses, found = parameter_uses(facts), dict[str, Layout]()
    for name, fact in facts.tensors.items():
        weights = [use for use in uses.get(name, ()) if use.channel_axis is not None]
        axes = {(use.channel_axis, use.block_axis) for use in weights}
        # A weight that two operators read along different axes has no axes.
        channel, block = axes.pop() if len(axes) == 1 else (None, None)
        reader = f"{weights[0].node.op_type} {weights[0].node.label!r}" if weights else ""
        shape = fact.static_shape
        found[name] = Layout(shape=shape, channel_axis=channel, block_axis=block, is_param=name in uses, reader=reader)
    return found


def _place_entry(entry: Encoding, layout: Layout, *, source: str, version: str, infer_blocks: bool) -> Encoding:
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
    if isinstance(value, Lpbq) and not value.placed:
        return replace(entry, value=_place_lpbq(value, layout, where))
    if isinstance(value, Affine) and not value.placed:
        inferred = _inferred_block(value, layout) if version.startswith("0.6") and value.block_size is None else None
        if inferred is not None and not infer_blocks:
            return entry
        if inferred is None and value.block_size is None:
            axis = _channel_axis(value.scale.size, layout, where)
            return entry if axis is None else replace(entry, value=replace(value, axis=axis, placed=True))
        return replace(entry, value=_place_blocks(value, layout, inferred, where))
    placed = checked_on_shape(value, layout.shape, where)
    if placed.block_size is not None and placed.axis is None:
        # 2.0.0 states the block axis only; where several dimensions are long, the graph tells which holds the channels.
        placed = replace(placed, axis=layout.channel_axis)
    return replace(entry, value=placed)


def _channel_axis(count: int, layout: Layout, where: str) -> int | None:
    """The axis with one scale per channel: the reading operator's, else the only one as long as the list, else None."""
    shape = layout.shape or ()
    if layout.channel_axis is not None:
        _check_channels(count, layout, where)
        return layout.channel_axis
    fitting = [axis for axis, length in enumerate(shape) if length == count]
    if not fitting:
        text = " x ".join(map(str, shape)) or "a scalar"
        raise InputError(
            f"{where}: {count} scales, but no axis of {text} is as long",
            next="is this the model that the encodings were made from?",
        )
    return fitting[0] if len(fitting) == 1 or count == 1 else None  # a single scale means the same along any axis


def _check_channels(count: int, layout: Layout, where: str) -> None:
    shape, axis = layout.shape or (), layout.channel_axis or 0
    if shape[axis] != count:
        raise _misfit(
            f"{where}: {count} scales, but {layout.reader} has {shape[axis]} channels along axis {axis} of", shape
        )


def _inferred_block(value: Affine, layout: Layout) -> int | None:
    """The only block size with which a 0.6.1 list that is longer than the channel axis fits as blocks.

    None where none fits.
    """
    if layout.shape is None or layout.channel_axis is None or layout.block_axis is None:
        return None
    channels, length = layout.shape[layout.channel_axis], layout.shape[layout.block_axis]
    blocks, rest = divmod(value.scale.size, channels) if channels else (0, 1)
    return None if rest or blocks < 2 or length % blocks else length // blocks


def _place_blocks(value: Affine, layout: Layout, inferred: int | None, where: str) -> Affine:
    """The value placed in blocks.

    ``inferred`` is the block size of a list of 0.6.1, which is in the tensor's own order; None where the file has it.
    """
    size = value.block_size if inferred is None else inferred
    shape = _blocks_shape(size, value.scale.size, layout, where)
    if shape is None:
        return value
    scale, zero_point = (
        _ordered(array, shape, layout) if inferred is None else array.reshape(shape)
        for array in (value.scale, value.zero_point)
    )
    value = replace(value, scale=scale, zero_point=zero_point, block_size=size, placed=True)
    return replace(value, axis=layout.channel_axis, block_axis=layout.block_axis)


def _place_lpbq(value: Lpbq, layout: Layout, where: str) -> Lpbq:
    shape = _blocks_shape(value.block_size, value.block_scale.size, layout, where)
    if shape is None:
        return value
    _check_channels(value.channel_scale.size, layout, where)
    return replace(
        value,
        channel_scale=on_axis(value.channel_scale, layout.channel_axis, len(shape)),
        block_scale=_ordered(value.block_scale, shape, layout),
        axis=layout.channel_axis,
        block_axis=layout.block_axis,
        placed=True,
    )


def _blocks_shape(size: int | None, count: int, layout: Layout, where: str) -> Shape | None:
    """The shape of a list of ``count`` blockwise scales; None where no op settles the axes."""
    shape, channels, along = layout.shape or (), layout.channel_axis, layout.block_axis
    if channels is None or along is None or size is None:
        return None
    # Channels by blocks, and 1 elsewhere.
    lengths = {channels: shape[channels], along: shape[along] // size}
    if shape[along] % size or prod(lengths.values()) != count:
        raise InputError(
            f"{where}: {count} scales in blocks of {size}, but {layout.reader} has {' x '.join(map(str, shape))}, with "
            f"blocks along axis {along}",
            next="is this the model that the encodings were made from?",
        )
    return tuple(lengths.get(axis, 1) for axis in range(len(shape)))


def _ordered(flat: Array, shape: Shape, layout: Layout) -> Array:
    """The flat list of 1.0.0 in the tensor's shape.

    The file has it transposed for rank-2 weights with the channels last.
    """
    if len(shape) == 2 and layout.channel_axis == 1:
        return flat.reshape(shape[::-1]).T
    return flat.reshape(shape)


def encoded_bounds(encodings: EncodingSet | None) -> dict[str, Interval]:
    """The range that each integer entry can hold, by tensor."""
    return {entry.name: entry.value.ends for entry in encodings or () if isinstance(entry.value, Affine)}


def keep_entries(encodings: EncodingSet | None, graph: GraphCopy) -> EncodingSet | None:
    """The encodings without entries of tensors that the graph no longer has; None for None."""
    return None if encodings is None else encodings.only(graph.tensor_names)


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


class GrowingSet:
    """A copy of encodings that entries are added to one by one, in ``entries`` and ``floats``; ``given`` may be None.

    Each addition takes as long as the entry alone, however many there are.
    """

    def __init__(self, given: EncodingSet | None) -> None:
        self.given = given
        self.entries = dict(() if given is None else given.entries)
        self.floats = set(() if given is None else given.float_tensors)

    def entry(self, name: str) -> Encoding | None:
        """The entry of a tensor; None where it has none."""
        return self.entries.get(name)

    def share(self, source: str, *made: str) -> None:
        """Give the entry of ``source`` also to tensors that hold nothing but its values.

        Float tensors stay float; an entry per channel or block is not passed on: its axis may mean nothing there.
        """
        entry = self.entry(source)
        if source in self.floats:
            self.floats.update(made)
        elif entry is not None and isinstance(entry.value, Affine | Float) and entry.value.granularity == "per-tensor":
            self.entries.update((name, replace(entry, name=name)) for name in made)

    @property
    def encodings(self) -> EncodingSet | None:
        """The set with all that was added; None for None."""
        if self.given is None:
            return None
        return replace(self.given, entries=self.entries, float_tensors=frozenset(self.floats))

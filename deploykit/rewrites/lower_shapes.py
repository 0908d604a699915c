"""Rewrites that give a tensor another rank, order or size, because devices do not take it as it is.

They move or repeat values and compute none; each says how exact it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, permutations
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorShapeProto, ValueInfoProto, helper

from deploykit.encodings.cut import part_of
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float8, Lpbq, Value
from deploykit.findings.records import Numbers, Shape, replace
from deploykit.model.collect import facts_of
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, attributes, label
from deploykit.model.operators import Trait, ops
from deploykit.model.patterns import repeated_before_norm
from deploykit.model.pinning import pin_shapes
from deploykit.model.running import CpuSession, quiet_options
from deploykit.rewrites.contract import (
    Match,
    MatchResult,
    ModelLook,
    NearMiss,
    NodeSteps,
    NoMatchError,
    Rewritten,
    Site,
    Transform,
    rewrite,
    rewrite_graph,
    rewritten,
)

__all__ = ()

# The most dimensions that the kernels of NPUs take.
_MOST_AXES = 5
# Axes of a transposition for which every pair of steps is tried: 5040 pairs at most.
_MOST_SEARCHED = 7
# Kernels for one value at a time, and for statistics per channel, often take no more dimensions.
_KERNEL_RANK = 4
# No index of a Gather is longer: it would be a large part of the model.
_LONGEST = 1 << 20
# Operators that move or sum what they read first, and nothing else.
_SUMMING = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Gather", "GatherND", "Slice", "ReduceSum", "ReduceMean")
# The most values of a matrix that stands for sums (a map of 64 x 64, 32 x 32 windows), and the most places of a map,
# which are run one by one.
_LARGEST_MATRIX, _MOST_PLACES = 1 << 22, 1 << 14
# The most values of a repeated constant: a position table for a few samples has far fewer.
_MOST_REPEATED = 1 << 26

Move = tuple[tuple[int, ...], tuple[int, ...]]
"""One step of a transposition: the shape before it, and the order of its axes."""


@rewrite(
    "Transpose",
    none="nothing of six or more dimensions is transposed",
    note=f"{{}} transpositions of six or more dimensions need at most {_MOST_AXES}",
)
def merge_axes(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes Reshape, Transpose, Reshape of six or more dimensions with at most five.

    Window partitions and pixel shuffles: axes that move together become one; where needed in two steps.
    """
    given, turned = node.input[0], node.output[0]
    if len(look.shape(given) or ()) <= _MOST_AXES:
        return None
    before, after = look.maker(given, "Reshape", "Gather"), look.only_reader(turned, "Reshape")
    index = look.array(before.input[1]) if before and before.op_type == "Gather" else np.zeros(0)
    if before is None or index is None or look.only_reader(given) is None:
        raise NoMatchError(f"{given} is not made by a Reshape or a stored index for this Transpose alone")
    if after is None:
        raise NoMatchError(f"{turned} is not read by one Reshape alone")
    made = after.output[0]
    # Torch writes a PixelUnshuffle with two axes of one element more, and a Squeeze behind it.
    flat = look.only_reader(made, "Squeeze") if look.rank(made) > _MOST_AXES else None
    shape, last = look.static_shape(given), look.static_shape((flat or after).output[0])
    if shape is None or last is None or 0 in (*shape, *last):
        raise NoMatchError(f"the shape of {given} or of {made} varies")
    if len(last) > _MOST_AXES and look.only_reader(made, "Transpose") is None:
        raise NoMatchError(f"{made} has {len(last)} dimensions as well")
    steps = moves(shape, attribute(node, "perm", ()) or range(len(shape))[::-1])
    if steps is None:
        raise NoMatchError(f"the order cannot be reached in two steps of at most {_MOST_AXES} dimensions")

    def write(to: NodeSteps) -> None:
        to.gone = []
        (first, *further), move, target = steps, to.node, to.graph.readers(turned)[0]
        if index.size:  # windows of a signal, by an index of windows
            move.input[0] = to.reshape(given, first[0], f"{given}_windows")
            to.share(given, move.input[0])
        ends = [(to.graph.makers[given], index.reshape(-1) if index.size else first[0]), (target, last)]
        if flat is not None:
            squeeze = to.graph.makers[flat.output[0]]
            squeeze.CopyFrom(helper.make_node("Reshape", [made, ""], flat.output, name=flat.name))
            ends.append((squeeze, last))
        for reshape, sizes in ends:
            reshape.input[1] = to.store(f"{reshape.output[0]}_shape", sizes)
        if further:
            between = to.add("Transpose", [move.input[0]], f"{given}_moved", perm=first[1])
            move.input[0] = to.reshape(between, further[0][0], f"{given}_again")
            to.share(given, between, move.input[0])
        del move.attribute[:]
        move.attribute.append(helper.make_attribute("perm", list(steps[-1][1])))
        to.reshaped |= {given, turned, made}

    why = f"{len(shape)} dimensions move as {' then '.join(str(len(moved)) for moved, _ in steps)}"
    return Match(why, write, nodes=(label(before), label(node), label(after)), tensors=(given, turned))


@rewrite(
    *sorted(ops(Trait.COMBINES, Trait.CLAMPS, Trait.RECTIFIES, Trait.SATURATES)),
    none="no operator by elements is between Reshapes to more than five dimensions",
    note="{} operators come before a Reshape",
)
def reshape_behind(look: ModelLook, node: NodeProto) -> Match | None:
    """Computes by elements before a Reshape to more than five dimensions, where another one follows at once."""
    if len(look.shape(node.output[0]) or ()) <= _MOST_AXES:
        return None
    before, after = look.maker(node.input[0], "Reshape"), look.only_reader(node.output[0], "Reshape")
    numbers = node.input[1:]
    if before is None or after is None or any(look.scalar(name) is None for name in numbers if name):
        raise NoMatchError("it is not between two Reshapes, or reads more than numbers")
    last = look.sizes(after.output[0])

    def write(to: NodeSteps) -> None:
        computed = to.add(
            node.op_type, [before.input[0], *numbers], f"{to.made}_computed", name=node.name, **attributes(node)
        )
        to.share(to.made, computed)
        (target,) = to.graph.readers(to.made)
        target.input[0], target.input[1] = computed, to.store(f"{to.made}_shape", last)

    return Match(f"{node.output[0]} has more than {_MOST_AXES} dimensions", write)


def moves(shape: Sequence[int], order: Sequence[int]) -> tuple[Move, ...] | None:
    """One or two steps of at most five axes that transpose ``shape`` into ``order``; None where there are none."""
    if sorted(order) != list(range(len(shape))):
        return None  # the declared shape does not fit the node
    shape, order = _merged(shape, order)
    if len(shape) <= _MOST_AXES:
        return ((shape, order),)
    if len(shape) > _MOST_SEARCHED:
        return None
    best: tuple[Move, ...] | None = None
    for first in permutations(range(len(shape))):
        second = tuple(first.index(axis) for axis in order)
        pair = (_merged(shape, first), _merged([shape[axis] for axis in first], second))
        axes = [len(moved) for moved, _ in pair]
        if max(axes) <= _MOST_AXES and (best is None or sum(axes) < sum(len(moved) for moved, _ in best)):
            best = pair
    return best


def _merged(shape: Sequence[int], order: Sequence[int]) -> Move:
    """The same transposition without axes of one element; axes that stay beside each other are merged into one."""
    kept = [axis for axis in order if shape[axis] != 1]
    ranks = {axis: rank for rank, axis in enumerate(sorted(kept))}
    groups = list[list[int]]()
    for axis in kept:
        if groups and ranks[axis] == ranks[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    by_place = sorted(range(len(groups)), key=lambda number: groups[number][0])
    sizes = tuple(math.prod(shape[axis] for axis in groups[number]) for number in by_place)
    return sizes or (1,), tuple(by_place.index(number) for number in range(len(groups))) or (0,)


@rewrite(
    *("Asin", "Atan", "BatchNormalization", "Ceil", "Cos", "Elu", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("InstanceNormalization", "Log", "MatMul", "Neg", "Round", "Sign", "Sin", "Softplus", "Sqrt", "Tanh"),
    none=f"nothing that kernels take at rank {_KERNEL_RANK} has more dimensions",
    note=f"{{}} operators have at most {_KERNEL_RANK} dimensions",
    ulps=4.0,
)
def rank_four(look: ModelLook, node: NodeProto) -> Match | None:
    """Gives a BatchNormalization, MatMul, Tanh, Log … of rank 5 or more an input of rank 4 or less.

    The axes in front of matrices, and else those behind the third, become one.

    Matrices are independent; of the others each value is computed from itself or with the statistics of its channel.
    """
    rank, matrices = len(look.shape(node.input[0]) or ()), node.op_type == "MatMul"
    if rank <= _KERNEL_RANK:
        return None
    if any(node.output[1:]):
        raise NoMatchError("it gives its statistics too")
    given = [look.sizes(name) for name in node.input[: 1 + matrices]]
    if matrices and len(given[1]) == 2:  # one matrix for all
        del given[1]
    if given[-1][:-2] != given[0][:-2]:
        raise NoMatchError(f"{node.input[1]} is repeated along an axis")

    def write(to: NodeSteps) -> None:
        inputs = [*to.node.input]
        for at, sizes in enumerate(given):
            merged = (-1, *sizes[-2:]) if matrices else (*sizes[: _KERNEL_RANK - 1], -1)
            inputs[at] = to.reshape(inputs[at], merged, f"{to.made}_merged")
            to.share(to.node.input[at], inputs[at])
        _on_other_sizes(to, inputs, look.sizes(node.output[0]))

    return Match(f"{node.input[0]} has {rank} dimensions", write)


def _on_other_sizes(to: NodeSteps, inputs: Sequence[str], sizes: Sequence[int], **changed: Any) -> None:
    """Add the replaced operator on reshaped inputs, and a Reshape of its result to the sizes that it had."""
    changed = attributes(to.node) | changed
    computed = to.add(to.node.op_type, inputs, f"{to.made}_computed", name=to.node.name, **changed)
    to.reshape(computed, sizes, name=f"{computed}_back")
    to.share(to.made, computed)


@rewrite(
    *("LayerNormalization", "RMSNormalization"),
    none="no norm is over several axes or of rank 5, and no RMS norm of several samples",
    note="{} norms are over the rows of a matrix",
    ulps=16.0,
)
def norm_rows(look: ModelLook, node: NodeProto) -> Match | None:
    """Write a norm over several axes or of rank 5, or an RMS norm of several samples, over rows of a matrix.

    A Reshape to rows in front, and one back behind; no value changes.
    """
    given, axis = look.shape(node.input[0]) or (), int(attribute(node, "axis", -1))
    several = node.op_type == "RMSNormalization" and len(given) > 2 and given[0] != 1
    if axis in (-1, len(given) - 1) and not several and len(given) <= _KERNEL_RANK:
        return None
    shape = look.sizes(node.input[0])
    if len(node.output) > 1:
        raise NoMatchError("it gives its statistics too")
    axis %= len(shape)
    rows, columns = math.prod(shape[:axis]), math.prod(shape[axis:])
    for name in filter(None, node.input[1:]):
        dims = look.static_shape(name)
        if dims is None or math.prod(dims) != columns:
            raise NoMatchError(f"{name} has not one value for each column, as far as is known")

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        inputs = [to.reshape(source, (rows, columns), f"{made}_rows")]
        to.share(source, inputs[0])
        for name in to.node.input[1:]:
            value = to.graph.array(name) if name else None
            row = name
            if value is not None and value.ndim != 1:
                row = to.store(f"{name}_row", value.reshape(-1))
            elif name and value is None:
                row = to.reshape(name, [columns], f"{name}_row")
            if row != name:
                to.share(name, row)
            inputs.append(row)
        _on_other_sizes(to, inputs, shape, axis=-1)

    return Match(f"{node.input[0]} has {rows} rows of {columns}", write)


@rewrite(
    *("ReduceMean", "ReduceSum"),
    none="no mean or sum is over an axis of length 1 beside longer ones",
    note="{} means and sums leave out axes of length 1",
    ulps=4.0,
)
def longer_axes(look: ModelLook, node: NodeProto) -> Match | None:
    """Leave axes of length 1 out of means and sums.

    A reduction that drops its axes keeps them first, and a Reshape drops them; no value changes.
    """
    shape = look.static_shape(node.input[0]) or ()
    axes = look.axes(node, len(shape)) if 1 in shape else ()
    longer = [axis for axis in axes if shape[axis] > 1]
    if not 0 < len(longer) < len(axes):
        return None
    left = [size for axis, size in enumerate(shape) if axis not in axes]

    def write(to: NodeSteps) -> None:
        made, keeps = to.made, attribute(node, "keepdims", 1)
        kept = made if keeps else to.graph.fresh(f"{made}_kept")
        to.listed(node.op_type, to.source, "axes", longer, kept, keepdims=1)
        to.nodes[-1].name = node.name
        if not keeps:
            to.reshape(kept, left, name=f"{kept}_dropped")
            to.share(made, kept)

    return Match(f"it is over axes {axes} of {list(shape)}", write, tensors=(node.input[0],))


@rewrite("ReverseSequence", none="no sequence is reversed", note="{} sequences are read from their ends by a Gather")
def reverse_by_index(look: ModelLook, node: NodeProto) -> Match:
    """Writes a ReverseSequence of sequences of one stored length as a Gather, as Keras has it."""
    axis, lengths = attribute(node, "time_axis", 0), np.unique(look.values(node.input[1]))
    (size,) = look.sizes(node.input[0], axis)
    if lengths.size != 1 or lengths.dtype != np.int64 or not 0 <= lengths[0] <= size <= _LONGEST:
        raise NoMatchError(f"its sequences differ in length, or are longer than {_LONGEST:,}")
    index = [*range(lengths[0])[::-1], *range(lengths[0], size)]

    def write(to: NodeSteps) -> None:
        to.end("Gather", [to.source, to.store(f"{to.made}_index", index)], axis=axis)

    return Match(f"it reverses along axis {axis}", write)


@rewrite_graph(
    none="nothing is gathered into more than five dimensions and summed",
    note="{} blocks of sums are products",
    ulps=64.0,
)
def sums_to_matmul(look: ModelLook) -> Iterator[Match | NearMiss]:
    """Write what is gathered into more than five dimensions and summed as a product with a stored matrix.

    So torch exports an adaptive pool to a size that does not divide its map: the matrix says what each window holds.
    """
    for start, node in enumerate(look.nodes):
        if node.op_type not in ("Gather", "GatherND") or len(look.shape(node.output[0]) or ()) <= _MOST_AXES:
            continue
        source, inside = node.input[0], [start]
        while turned := look.maker(source, "Transpose"):
            source = turned.input[0]
            inside.insert(0, look.index_of(turned))
        given, last = look.static_shape(source), _summed(look, start)
        made = look.nodes[last[-1]].output[0] if last else ""
        left = look.static_shape(made)
        places = 0 if given is None else math.prod(given[2:])
        if given is None or left is None or places > _MOST_PLACES or places * math.prod(left[2:]) > _LARGEST_MATRIX:
            yield NearMiss((label(node),), "it is not summed to one map, or one whose matrix is too large")
            continue
        matrix = _matrix(part_of(look, [*inside, *last], [made], name="sums"), source, given)
        if given[:2] != left[:2] or matrix is None:
            yield NearMiss((label(node),), "its channels are not summed alike")
            continue

        def write(
            to: NodeSteps,
            source: str = source,
            sizes: Sequence[int] = left,
            matrix: Numbers = matrix,
            gone: Sequence[int] = (start, *last),
        ) -> None:
            to.gone = [to.graph.nodes[index] for index in gone]
            rows = to.reshape(source, [-1, len(matrix)], f"{to.made}_rows")
            windows = to.store(f"{to.made}_windows", matrix)
            if look.grid(source) is not None:
                grid = affine_for_range(0.0, float(matrix.max()), GridKind(bits=8, signed=True, symmetric=True))
                to.put(Encoding(name=windows, value=grid, is_param=True))
            product = to.add("MatMul", [rows, windows], f"{to.made}_sums")
            to.share(source, rows)
            to.share(to.made, product)
            to.reshape(product, sizes)

        yield Match(f"it gathers {source}", write, output=made, nodes=(label(node),), tensors=(source, made))


def _summed(look: ModelLook, start: int) -> list[int]:
    """The nodes behind one, up to the first tensor of at most four dimensions that all its results lead into.

    [] where there is no such tensor.
    """
    static, inside, found = look.static(), {*look.nodes[start].output}, list[int]()
    for index, node in enumerate(look.nodes[start + 1 :], start + 1):
        read = {name for name in node.input if name and name not in static}
        if not read or not inside.issuperset(read) or not _is_linear(look, node):
            continue
        inside.update(node.output)
        found.append(index)
        ends = inside & {*look.outputs}
        ends.update(name for name in inside if not all(look.index_of(reader) in found for reader in look.readers(name)))
        if ends == {node.output[0]} and len(look.shape(node.output[0]) or ()) <= _KERNEL_RANK:
            return found
    return []


def _is_linear(look: ModelLook, node: NodeProto) -> bool:
    """True where each number that a node makes is one that it reads, a sum or mean of such numbers, or zero."""
    stored = [name in look.static() for name in node.input]
    if node.op_type == "Where":
        others = [look.array(name) for name, is_stored in zip(node.input[1:], stored[1:], strict=True) if is_stored]
        return stored[0] and all(value is not None and not value.any() for value in others)
    return not any(stored) if node.op_type in ("Add", "Sub") else node.op_type in _SUMMING and all(stored[1:])


def _matrix(part: ModelProto, source: str, sizes: Sequence[int]) -> Numbers | None:
    """The weight of each place of a map in each place of the result.

    None where channels differ in these weights, or the part cannot be run.
    """
    channels, places = math.prod(sizes[:2]), math.prod(sizes[2:])
    if not channels * places:
        return None
    probe = np.random.default_rng(0).normal(size=(channels, places)).astype(np.float32)
    each = (np.eye(channels, places, first, np.float32) for first in range(0, places, channels))
    try:
        session = CpuSession(part.SerializeToString(), quiet_options(optimize=True))
        found, *rows = (session.run(None, {source: one.reshape(sizes)})[0] for one in chain([probe], each))
    except Exception:  # whatever the runtime raises for a graph that a stranger wrote
        return None
    matrix: Numbers = np.concatenate([one.reshape(channels, -1) for one in rows])[:places]
    return matrix if np.allclose(probe @ matrix, found.reshape(channels, -1), atol=1e-4) else None


@rewrite_graph(
    none="no Add or Mul in front of a normalization repeats an operand",
    note="{} operands in front of norms are repeated",
)
def expand_before_norm(look: ModelLook) -> Iterator[Match | NearMiss]:
    """Repeat the smaller operand of an Add or Mul in front of a normalization, so that both have one shape.

    A stored operand is stored repeated, a computed one goes through a Tile: an Expand is computed wrong as well.
    """
    for node, operand, given, shape in repeated_before_norm(facts_of(look)):
        nodes = (node.label,)
        if operand in look.stored and math.prod(shape) > _MOST_REPEATED:
            yield NearMiss(nodes, f"{operand} would be {math.prod(shape):,} values")
            continue
        if operand in look.stored and look.array(operand) is None:
            yield NearMiss(nodes, f"the values of {operand} were not read")
            continue

        def write(to: NodeSteps, operand: str = operand, given: Shape = given, shape: Shape = shape) -> None:
            to.gone = []
            value = to.graph.array(operand) if operand in to.graph.stored else None
            if value is not None:
                made = to.store(f"{operand}_repeated", np.ascontiguousarray(np.broadcast_to(value, shape)))
            else:
                full = (1,) * (len(shape) - len(given)) + given
                raised = operand if full == given else to.reshape(operand, full, f"{operand}_repeated_raised")
                times = [wanted // had for wanted, had in zip(shape, full, strict=True)]
                made = to.add("Tile", [raised, to.store(f"{operand}_repeated_times", times)], f"{operand}_repeated")
            for position, name in enumerate(to.node.input):
                to.node.input[position] = made if name == operand else name
            to.share(operand, made)
            if to.entry(operand) is not None:
                to.needed.add(made)  # an entry per channel is not shared: its axis may mean nothing there

        why = f"{operand} is repeated to {list(shape)}"
        yield Match(why, write, output=node.outputs[0], nodes=nodes, tensors=(operand,))


@rewrite("MatMul", none="no MatMul of a rank-3 activation by a stored weight", ulps=64.0)
def linear_to_conv(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes linear layers on rank 3 as 1x1 Convs on rank 4.

    Encodings go along: the weight's along its new axes, the others to the moved copies of their tensors.
    """
    source, weight = node.input
    if weight not in look.stored:
        return None
    rank, tensor = len(look.shape(source) or ()), look.stored[weight]
    if rank != 3 or len(tensor.dims) != 2 or tensor.data_type != tensor.FLOAT:
        reason = f"{source} has rank {rank or 'unknown'}, its weight rank {len(tensor.dims)}"
        raise NoMatchError(f"{reason}: needed are 3 and 2, in float32")
    add, bias = look.only_reader(node.output[0], "Add"), ""
    if add is not None and len(set(add.input)) == 2:
        (other,) = {*add.input} - {node.output[0]}
        known = look.stored.get(other)
        bias = other if known is not None and list(known.dims) == [tensor.dims[1]] else ""
    last = add if add is not None and bias else node
    output, stem = last.output[0], label(node)

    def write(to: NodeSteps) -> None:
        stored: Any = to.graph.array(weight)
        to.gone = [to.node] if not bias else [to.node, to.graph.makers[node.output[0]]]
        turned = to.add("Transpose", [source], f"{output}_turned", name=f"{stem}/turn", perm=[0, 2, 1])
        image = _rank_step(to, "Unsqueeze", turned, f"{output}_image", f"{stem}/image")
        kernel = to.store(f"{weight}_conv", np.ascontiguousarray(stored.T)[:, :, None, None])
        operands = [image, kernel, *([bias] if bias else [])]
        result = to.add("Conv", operands, f"{output}_conv", name=f"{stem}/conv", kernel_shape=[1, 1])
        flat = _rank_step(to, "Squeeze", result, f"{output}_flat", f"{stem}/flat")
        to.end("Transpose", [flat], name=f"{stem}/return", perm=[0, 2, 1])
        for made, held in ((turned, source), (image, source), (result, output), (flat, output)):
            to.share(held, made)
            to.put(to.entry(held), name=made)
        entry = to.entry(weight)
        if entry is not None:
            to.put(entry, name=kernel, value=_turned(entry.value))
        to.notes.append(f"{output}: a 1x1 Conv on rank 4")

    nodes = (stem,) if last is node else (stem, label(last))
    return Match("a linear layer on rank 3", write, output=output, nodes=nodes, tensors=(source, output))


def _rank_step(to: NodeSteps, op_type: str, source: str, made: str, name: str) -> str:
    """Add a node that adds or drops axis 2; returns the result's name."""
    result = to.listed(op_type, source, "axes", [2], to.graph.fresh(made))
    to.nodes[-1].name = name
    return result


def _turned(value: Value) -> Value:
    """A weight's encoding after [in, out] became [out, in, 1, 1]."""

    def axis(given: int | None) -> int | None:
        return None if given is None else 1 - given % 2

    def array(given: Array) -> Array:
        blocks = isinstance(value, Affine | Lpbq) and value.block_size is not None
        return given.T[:, :, None, None] if blocks and given.ndim == 2 else given

    if isinstance(value, Affine) and value.placed:
        scale, zero_point = array(value.scale), array(value.zero_point)
        block_axis = axis(value.block_axis)
        return replace(value, scale=scale, zero_point=zero_point, axis=axis(value.axis), block_axis=block_axis)
    if isinstance(value, Lpbq):
        channels, blocks = array(value.channel_scale), array(value.block_scale)
        block_axis = axis(value.block_axis)
        return replace(value, channel_scale=channels, block_scale=blocks, axis=axis(value.axis), block_axis=block_axis)
    return replace(value, axis=axis(value.axis)) if isinstance(value, Float8) else value


def _open_batches(graph: ModelLook) -> MatchResult:
    names = list[str]()
    for item in graph.model.graph.input:
        dims = _dims(item)
        axes = [axis for axis, dim in enumerate(dims) if not dim.dim_value > 0]
        if item.name not in graph.inputs or not axes:
            continue
        # The one dimension of a vector may as well be a length.
        if axes != [0] or len(dims) < 2 or dims[0].HasField("dim_value"):
            reason = f"{item.name} is dynamic in what need not be a batch"
            return MatchResult(refusals=(NearMiss((), reason),), reason=reason)
        names.append(item.name)
    if not names:
        return MatchResult(reason="no input has a dimension that is not a number")
    return MatchResult((Site((), tensors=tuple(names), why="only their first dimension is open"),))


def _dims(item: ValueInfoProto) -> Sequence[TensorShapeProto.Dimension]:
    return list(item.type.tensor_type.shape.dim) if item.type.HasField("tensor_type") else ()


def _close_batches(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Set one sample in every input, and in outputs that share the symbol; shapes in between are inferred anew."""
    names = {name for site in matched.sites for name in site.tensors}
    inputs = (item for item in model.graph.input if item.name in names)
    sizes = {item.name: [1, *(dim.dim_value for dim in _dims(item)[1:])] for item in inputs}
    graph = GraphCopy(pin_shapes(model, sizes), copy=False)
    return rewritten(graph, encodings, f"the batch of {', '.join(sorted(names))} is one sample")


batch_of_one = Transform(
    "batch-of-one",
    summary="Sets a batch that is a symbol to one.",
    find=_open_batches,
    apply=_close_batches,
)

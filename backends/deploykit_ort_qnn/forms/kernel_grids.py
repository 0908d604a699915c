"""Gives operators grids that their kernels compute rightly, and one width to tensors of nodes that need one.

Only grids change, by less than the kernel would lose. The forms were measured with onnxruntime-qnn 2.7.0 (QAIRT 2.51),
so each is to be measured again with the first release after it. An elementwise node with 8-bit and 16-bit tensors is
silently compiled in float, and the second operand of a 16-bit MatMul of two activations is narrowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from onnx import ModelProto, NodeProto

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings.records import Names, Record, field, replace
from deploykit.model.operators import Trait, has, is_standard, ops
from deploykit.model.ranges import clip_bounds
from deploykit.rewrites.constants import LEAST_LOG_RANGE
from deploykit.rewrites.contract import ModelLook, Transform, regrid, shares_grid
from deploykit_qualcomm.qnn_types import whole_step

__all__ = [
    "REGRIDS",
    "conversions_before_moves",
    "find_conversions",
    "gates_apart",
    "is_centred",
    "of_16_bits",
    "symmetric_int16",
    "symmetric_uint16",
]

# Kernels that take one width; BatchNormalization is refused with two.
_ONE_WIDTH = ops(Trait.AVERAGES, Trait.COMBINES, Trait.JOINS) | {
    *("Abs", "AveragePool", "BatchNormalization", "Cos", "Elu", "Erf", "Exp", "Expand", "Flatten", "Gather", "Gelu"),
    *("HardSigmoid", "HardSwish", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax"),
    *("Neg", "ReduceMax", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Sin", "Slice", "Softmax", "Split"),
    *("Sqrt", "Squeeze", "Tanh", "Tile", "Transpose", "Unsqueeze"),
}
_KEEPS_WEIGHTS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization"})
# The zero point of an unsigned 16-bit grid with 0 in its middle.
_MIDDLE = 1 << 15


class Conversions(Record):
    """The changes that ``insert_qdq`` makes: other grids for inputs of nodes, and grids written before a tensor's own.

    ``widened`` and ``int16`` are the first outputs of changed nodes; ``narrowed`` are those of 16-bit MatMuls of two
    activations that stay as they are.
    """

    requantize: dict[tuple[str, int], Affine] = field(default_factory=dict)
    first: dict[str, Affine] = field(default_factory=dict)
    widened: Names = ()
    int16: Names = ()
    narrowed: Names = ()


def find_conversions(model: ModelProto, encodings: EncodingSet, *, int16_matmul: bool) -> Conversions:
    """Conversions for every node with mixed widths, and with ``int16_matmul`` for 16-bit MatMuls of two activations."""
    look, found = ModelLook(model, encodings), Conversions()
    wide, int16, narrowed = list[str](), list[str](), list[str]()
    for node in model.graph.node:
        grids, made = list(node_grids(look, node)), node.output[0] if node.output else ""
        widths = {value.bits for _, _, value in grids}
        is_product = is_wide_product(look, node)
        if is_product and int16_matmul:
            int16.append(made)
            changed = [(at, name, symmetric_int16(value)) for at, name, value in grids]
        else:
            narrowed += [made] if is_product else []
            if widths != {8, 16} or not (node.op_type in _ONE_WIDTH or has(node, Trait.LINEAR)):
                continue
            wide.append(made)
            changed = [(at, name, widened(value)) for at, name, value in grids if value.bits == 8]
        found.requantize.update({(made, at): value for at, _, value in changed if at >= 0})
        found.first.update({name: value for at, name, value in changed if at < 0})
    return replace(found, widened=tuple(wide), int16=tuple(int16), narrowed=tuple(narrowed))


def node_grids(look: ModelLook, node: NodeProto) -> Iterator[tuple[int, str, Affine]]:
    """Yields (position, tensor, grid) of inputs, and of outputs (position
    -1), with a per-tensor integer grid; no weights.
    """
    results = node.output
    added = look.only_reader(results[0], "Add") if node.op_type == "MatMul" else None
    if added and look.grid(results[0]) is None:  # the bias added behind a MatMul is part of the layer
        results = added.output
    for position, name in [*enumerate(node.input), *((-1, name) for name in results)]:
        weight = position > 0 and (node.op_type in _KEEPS_WEIGHTS or (has(node, Trait.LINEAR) and name in look.stored))
        value = look.grid(name) if name and not weight else None
        if value is not None:
            yield position, name, value


def is_wide_product(look: ModelLook, node: NodeProto) -> bool:
    """True for a MatMul of two activations with a 16-bit operand or result, whose second operand would be narrowed."""
    if node.op_type != "MatMul" or any(name in look.stored for name in node.input):
        return False
    sides = [value.bits for _, _, value in node_grids(look, node)]
    return len(sides) == 3 and 16 in sides


def symmetric_int16(value: Affine) -> Affine:
    """The symmetric signed 16-bit grid that covers a per-tensor grid; the same grid if its 0 is in the middle."""
    if value.bits == 16 and is_centred(value):
        return replace(value, signed=True, zero_point=np.asarray(0.0), symmetric=True)
    return affine_for_range(*value.ends, GridKind(16, signed=True, symmetric=True))


def symmetric_uint16(value: Affine) -> Affine:
    """The symmetric 16-bit grid in unsigned form, as activations are written."""
    return replace(symmetric_int16(value), signed=False, zero_point=np.asarray(float(_MIDDLE)))


def is_centred(value: Affine) -> bool:
    """True for a 16-bit grid with 0 in its middle."""
    return bool(float(value.zero_point.reshape(())) - value.lowest == _MIDDLE)


def widened(value: Affine) -> Affine:
    """The unsigned 16-bit grid that contains every point of an 8-bit one: 257 finer steps for each step."""
    zero = np.asarray((value.zero_point - value.lowest) * 257.0).reshape(())
    return Affine(bits=16, signed=False, scale=np.asarray(value.scale / 257.0).reshape(()), zero_point=zero)


_ROUNDED = Affine(bits=16, signed=False, scale=np.asarray(2.0**-15), zero_point=np.asarray(2.0**15), symmetric=True)
# Other operators that move values (Concat, DepthToSpace, Pad, ScatterND) convert them, and are right on any grids.
_ONE_GRID = frozenset({"ScatterElements", "SpaceToDepth"})
_UNTIL = "2.52"


@regrid(alone=True, until=_UNTIL)
def widen_log(look: ModelLook) -> dict[str, Affine]:
    """a 16-bit Log whose output range is below 4 answers its minimum everywhere (QAIRT 2.51)

    The same type over a range that the kernel knows, grown downward.
    """
    grids = {node.output[0]: look.grid(node.output[0]) for node in look.nodes if node.op_type == "Log"}
    wider = {}
    for name, value in grids.items():
        high = float(value.maximum.max()) if value is not None else 0.0
        if value is None or value.bits != 16 or high - float(value.minimum.min()) >= LEAST_LOG_RANGE:
            continue
        # A little more than needed, so that rounding the zero point cannot bring the range below the limit again.
        low = high - LEAST_LOG_RANGE * 1.001
        scale = (high - low) / (2**value.bits - 1)
        zero = float(np.clip(round(value.lowest - low / scale), value.lowest, value.highest))
        wider[name] = replace(value, scale=np.asarray(scale), zero_point=np.asarray(zero), symmetric=None)
    return wider


@regrid(until=_UNTIL)
def clip_ends(look: ModelLook) -> dict[str, Affine]:
    """a Clip behind a convolution loses its bounds: only the ends of the grid cut off (QAIRT 2.51)

    Grids that end where the Clip ends: 1 to 18 dB with bounds inside of the grid.

    Values beyond the bounds do not occur, so that nothing is lost by a finer grid.
    """
    grids = dict[str, Affine]()
    for node in look.nodes:
        value = look.grid(node.output[0]) if node.op_type == "Clip" else None
        if value is None:
            continue
        bounds, step = clip_bounds(look, node), float(value.scale.min())
        lowest, highest = value.ends
        low, high = max(lowest, min(bounds[0], 0.0)), min(highest, bounds[1])
        if high > 0 and (low > lowest + step or high < highest - step):
            grids[node.output[0]] = affine_for_range(low, high, GridKind(value.bits, signed=value.signed))
    return grids


@regrid(until=_UNTIL)
def even_results(look: ModelLook) -> dict[str, Affine]:
    """a 16-bit product of two activations is rounded to symmetric steps; its own grid has the same ones

    Steps of symmetric int16 for 16-bit MatMuls of two activations.

    A result is rounded to those steps first, so that other ones only round it once more. And a fully connected layer
    with channel scales and a bias, behind a conversion from int16 to other steps, is computed wrong (14 dB, the bias
    is taken in the steps before the conversion).
    """
    made = (node.output[0] for node in look.nodes if is_wide_product(look, node))
    return {name: symmetric_uint16(value) for name, value in of_16_bits(look, made)}


def of_16_bits(look: ModelLook, names: Iterable[str]) -> Iterator[tuple[str, Affine]]:
    """Those of the tensors that have a 16-bit grid, each with its grid."""
    return ((name, value) for name in names if (value := look.grid(name)) is not None and value.bits == 16)


@regrid(until=_UNTIL)
def softmax_rounding(look: ModelLook) -> dict[str, Affine]:
    """a 16-bit Softmax cuts off to a grid from 0 to 1; to one with 0 in the middle it rounds

    To a grid of 0 to 1 it is half a step too little on average, which whatever adds up such results collects.

    With steps of 2^-15 around the middle of the type an error is as large, and 0 on average.
    """
    made = (node.output[0] for node in look.nodes if node.op_type == "Softmax" and node.output[0] not in look.outputs)
    ends = ((name, value.ends) for name, value in of_16_bits(look, made))
    return {name: _ROUNDED for name, (low, high) in ends if low == 0 and abs(high - 1) <= 2.0**-15}


@regrid(until=_UNTIL)
def softmax_step(look: ModelLook) -> dict[str, Affine]:
    """the kernel rounds the step of a Softmax's input down to a multiple of 2^-22 of a factor of two

    Steps that the kernel takes as they are, for the tensor from where it is computed on.

    A conversion in front of a Softmax is folded away, and with it the step (seen behind Add, Mul and Transpose).
    """
    grids = dict[str, Affine]()
    for node in look.nodes:
        if node.op_type != "Softmax" or look.grid(node.output[0]) is None:
            continue
        value = look.grid(node.input[0])
        step = whole_step(value) if value is not None else None
        if value is not None and step is not None:
            # A larger step over the same range and a little more.
            below = float(value.zero_point.reshape(())) - value.lowest
            zero = value.lowest + round(below * float(value.scale.reshape(())) / step)
            wider = replace(value, scale=np.asarray(step), zero_point=np.asarray(float(zero)))
            grids[_origin(look, node.input[0])] = wider
    return grids


def _origin(look: ModelLook, name: str) -> str:
    """The tensor from which values were moved to this one without a change of grid."""
    grid = look.grid(name)
    while True:
        maker = look.maker(name)
        if maker is None or not has(maker, Trait.CARRIES_GRID) or not shares_grid(look.entry(maker.input[0]), grid):
            return name
        name = maker.input[0]


@regrid(alone=True, until=_UNTIL)
def one_grid(look: ModelLook) -> dict[str, Affine]:
    """what only moves values takes over their integers: they are on its result's grid from the start

    The result's grid for what such an operator alone reads.

    Another grid behind it makes every value wrong by the ratio of the steps. Values on the result's grid from the
    start are the same ones, rounded once instead of twice.
    """
    assert look.encodings is not None
    graph, entries, changed = look, dict(look.encodings.entries), dict[str, Affine]()
    todo = [node for node in reversed(graph.nodes) if _takes_over(node, look.encodings)]
    while todo:
        node = todo.pop(0)
        for _, name, wanted in _on_other_grids(ModelLook(look.model, replace(look.encodings, entries=entries)), node):
            if name in graph.outputs or len(graph.readers(name)) != 1:
                continue
            entries[name], changed[name] = replace(entries[name], value=wanted), wanted
            maker = graph.maker(name)
            if maker is not None and has(maker, Trait.CARRIES_GRID):
                todo.append(maker)
    return changed


def conversions_before_moves(model: ModelProto, encodings: EncodingSet) -> dict[tuple[str, int], Affine]:
    """The result's grid for inputs that other nodes read too, by (node's
    output, position): only this node's copy changes.
    """
    look = ModelLook(model, encodings)
    return {
        (node.output[0], position): wanted
        for node in look.nodes
        if _takes_over(node, encodings)
        for position, _, wanted in _on_other_grids(look, node)
    }


def _takes_over(node: NodeProto, encodings: EncodingSet) -> bool:
    return node.op_type in _ONE_GRID and is_standard(node) and node.output[0] in encodings


def _on_other_grids(look: ModelLook, node: NodeProto) -> Iterator[tuple[int, str, Affine]]:
    """Yields computed inputs whose grid differs from the result's at the same width, with the result's grid."""
    wanted = look.grid(node.output[0])
    for position, name in enumerate(node.input):
        value = look.grid(name) if name and name not in look.stored else None
        if value is None or wanted is None or value.bits != wanted.bits or shares_grid(look.entry(name), wanted):
            continue
        yield position, name, wanted


def gates_apart(model: ModelProto, encodings: EncodingSet) -> dict[tuple[str, int], Affine]:
    """Grids with a little larger steps for the inputs of 16-bit Sigmoids that gate what they read.

    After a convolution or pool QAIRT 2.51 fuses x times Sigmoid(x) into one operator. It is wrong at many heights and
    widths (34 of 160 tried), and at all of them if the Sigmoid's grid has its 0 in the middle. With x in other steps
    the two stay apart; the additional rounding moves a gate by an eighth of its own step.
    """
    look, grids = ModelLook(model, encodings), dict[tuple[str, int], Affine]()
    for node in look.nodes:
        value = look.grid(node.input[0]) if node.op_type == "Sigmoid" else None
        if value is None or value.bits != 16:
            continue
        gate = {node.input[0], node.output[0]}
        if any(reader.op_type == "Mul" and set(reader.input) == gate for reader in look.readers(node.output[0])):
            # Steps larger by 1/32, over a little more than the range.
            zero = value.lowest + round((float(value.zero_point.reshape(())) - value.lowest) * 32 / 33)
            grids[node.output[0], 0] = replace(value, scale=value.scale * 33 / 32, zero_point=np.asarray(float(zero)))
    return grids


REGRIDS: tuple[Transform, ...] = (
    widen_log,
    clip_ends,
    even_results,
    softmax_rounding,
    softmax_step,
    one_grid,
)
"""The changes of grids, in the order in which they are applied."""

"""Finds where a node's inputs and outputs need one common grid width, and gives the conversions that make it so.

Measured with onnxruntime-qnn 2.7.0: an elementwise node with 8-bit and 16-bit tensors is compiled in float without a
word, and the second operand of a 16-bit MatMul of two activations is narrowed to 8 bits. It changes no model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.operators import Trait, has

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = [
    "Conversions",
    "even_results",
    "find_conversions",
    "gates_apart",
    "shares_grid",
    "symmetric_int16",
    "symmetric_operands",
    "widened",
    "with_grids",
]

_ONE_WIDTH = frozenset(
    [
        "Abs",
        "Add",
        "AveragePool",
        "Concat",
        "Cos",
        "Div",
        "Elu",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Gather",
        "Gelu",
        "GlobalAveragePool",
        "HardSigmoid",
        "HardSwish",
        "InstanceNormalization",
        "LayerNormalization",
        "LeakyRelu",
        "Log",
        "LogSoftmax",
        "Max",
        "Mean",
        "Min",
        "Mul",
        "Neg",
        "Pow",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Sin",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tanh",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
_MIDDLE = 1 << 15
_KEEPS_WEIGHTS = frozenset(["LayerNormalization", "InstanceNormalization"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversions:
    """What ``insert_qdq`` is told: other grids for inputs of nodes, and grids before a tensor's own.

    ``widened`` and ``int16`` are the first outputs of the nodes concerned; ``narrowed`` those of 16-bit MatMuls of two
    activations that were left as they are.
    """

    requantize: dict[tuple[str, int], Affine] = field(default_factory=dict)
    first: dict[str, Affine] = field(default_factory=dict)
    widened: tuple[str, ...] = ()
    int16: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()


def find_conversions(model: ModelProto, encodings: EncodingSet, *, int16_matmul: bool) -> Conversions:
    """Conversions for every node of mixed widths, and for 16-bit MatMuls of two activations where that is wanted."""
    stored = view_of(model).stored
    found = Conversions()
    wide, int16, narrowed = list[str](), list[str](), list[str]()
    for node in model.graph.node:
        if _is_wide_product(node, stored, encodings):
            (int16 if int16_matmul else narrowed).append(node.output[0])
            if int16_matmul:
                _use_int16(node, encodings, found)
        elif node.op_type in _ONE_WIDTH and _is_mixed(node, encodings):
            _use_widest(node, encodings, found)
            wide.append(node.output[0])
    return Conversions(
        requantize=found.requantize,
        first=found.first,
        widened=tuple(wide),
        int16=tuple(int16),
        narrowed=tuple(narrowed),
    )


def even_results(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The grids of 16-bit MatMuls of two activations with the steps of symmetric int16; and the tensors changed.

    A result is rounded to those steps first, so that other ones only round it once more. And a fully connected layer
    with channel scales and a bias, behind a conversion from int16 to other steps, is computed wrong (QAIRT 2.51: 14 dB,
    the bias is taken in the steps before the conversion). What merely moves a result keeps sharing its grid.
    """
    graph = view_of(model)
    products = [node.output[0] for node in graph.nodes if _is_wide_product(node, graph.stored, encodings)]
    grids = {name: _unsigned(symmetric_int16(_grid(encodings, name))) for name in products}
    return with_grids(graph, encodings, grids)


def symmetric_operands(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """Stored 16-bit operands 1 of MatMuls on grids with 0 in the middle; and the tensors changed.

    QAIRT 2.36.1 refuses every other 16-bit grid there (code 3110). A step grows to twice its size at most.
    """
    graph = view_of(model)
    static, grids = graph.static() | graph.stored.keys(), dict[str, Affine]()
    for node in graph.nodes:
        name = node.input[1] if node.op_type == "MatMul" and node.input[1] in static else ""
        entry = encodings.get(name) if name else None
        value = entry.value if entry is not None else None
        if isinstance(value, Affine) and value.bits == 16 and value.scale.size == 1 and not _is_centred(value):
            grids[name] = _unsigned(symmetric_int16(value))
    return with_grids(graph, encodings, grids)


def with_grids(
    graph: GraphCopy, encodings: EncodingSet, grids: Mapping[str, Affine]
) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with other grids for tensors, and for what they are moved to and shares them; and the names."""
    entries = dict(encodings.entries)
    for start, value in grids.items():
        for name in _moved(graph, encodings, encodings.entries[start]):
            entries[name] = replace(entries[name], value=value)
    changed = tuple(name for name, entry in entries.items() if entry is not encodings.entries[name])
    return replace(encodings, entries=entries), changed


def _grid(encodings: EncodingSet, name: str) -> Affine:
    value = encodings.entries[name].value
    assert isinstance(value, Affine)
    return value


def _unsigned(value: Affine) -> Affine:
    """A signed 16-bit grid with 0 in the middle as the unsigned one, in which activations are written."""
    return replace(value, signed=False, zero_point=np.asarray(float(_MIDDLE)))


def _is_wide_product(node: NodeProto, stored: Collection[str], encodings: EncodingSet) -> bool:
    """True for a MatMul of two activations with 16 bits on all sides."""
    return node.op_type == "MatMul" and not any(name in stored for name in node.input) and _all_wide(node, encodings)


def _moved(graph: GraphCopy, encodings: EncodingSet, entry: Encoding) -> Iterator[str]:
    """A tensor and those that it is moved to and that have its grid."""
    todo = [entry.name]
    while todo:
        name = todo.pop()
        yield name
        for node in graph.readers(name):
            if has(node, Trait.CARRIES_GRID) and node.input[0] == name:
                todo += [out for out in node.output if shares_grid(encodings.get(out), entry)]


def gates_apart(model: ModelProto, encodings: EncodingSet) -> dict[tuple[str, int], Affine]:
    """Grids with a little larger steps for the inputs of 16-bit Sigmoids that gate what they read.

    Of x times Sigmoid(x) QAIRT 2.51 makes one operator behind what slides over an image. It is wrong at many heights
    and widths (of 160 tried at 34), and at all where the Sigmoid's grid has its 0 in the middle. With x in other steps
    the two stay apart; what they are rounded by once more moves a gate by an eighth of its own step.
    """
    graph = view_of(model)
    return {
        (node.output[0], 0): _coarser(value)
        for node in graph.nodes
        if node.op_type == "Sigmoid" and any(_multiplies(reader, node) for reader in graph.readers(node.output[0]))
        for position, _, value in _grids(node, encodings)
        if position == 0 and value.bits == 16
    }


def _multiplies(reader: NodeProto, gate: NodeProto) -> bool:
    return reader.op_type == "Mul" and set(reader.input) == {gate.input[0], gate.output[0]}


def _coarser(value: Affine) -> Affine:
    """The grid with steps that are 1/32 larger, over a little more than its range."""
    zero = value.lowest + round((float(value.zero_point.reshape(())) - value.lowest) * 32 / 33)
    return replace(value, scale=value.scale * 33 / 32, zero_point=np.asarray(float(zero)))


def shares_grid(entry: Encoding | None, other: Encoding) -> bool:
    """True for two entries of one per-tensor grid, signed or not."""
    one, two = None if entry is None else entry.value, other.value
    if not isinstance(one, Affine) or not isinstance(two, Affine) or (one.bits, one.scale.size) != (two.bits, 1):
        return False
    return float(one.minimum.min()) == float(two.minimum.min()) and float(one.scale.min()) == float(two.scale.min())


def symmetric_int16(value: Affine) -> Affine:
    """The symmetric signed 16-bit grid that covers a per-tensor grid: the same one, where 0 is in its middle."""
    if value.bits == 16 and _is_centred(value):
        return replace(value, signed=True, zero_point=np.asarray(0.0), symmetric=True)
    most = max(abs(float(value.minimum.min())), abs(float(value.maximum.max())))
    return Affine(bits=16, signed=True, scale=np.asarray(most / 32767), zero_point=np.asarray(0.0), symmetric=True)


def _is_centred(value: Affine) -> bool:
    return bool(float(value.zero_point.reshape(())) - value.lowest == _MIDDLE)


def widened(value: Affine) -> Affine:
    """The unsigned 16-bit grid that contains every point of an 8-bit one: 257 finer steps for each."""
    zero = np.asarray((value.zero_point - value.lowest) * 257.0).reshape(())
    return Affine(bits=16, signed=False, scale=np.asarray(value.scale / 257.0).reshape(()), zero_point=zero)


def _grids(node: NodeProto, encodings: EncodingSet) -> Iterator[tuple[int, str, Affine]]:
    """Inputs (position) and outputs (-1) that have an integer grid per tensor."""
    for position, name in [*enumerate(node.input), *((-1, name) for name in node.output)]:
        if position > 0 and node.op_type in _KEEPS_WEIGHTS:
            continue
        entry = encodings.get(name) if name else None
        if entry is not None and isinstance(entry.value, Affine) and entry.value.scale.size == 1:
            yield position, name, entry.value


def _is_mixed(node: NodeProto, encodings: EncodingSet) -> bool:
    return {value.bits for _, _, value in _grids(node, encodings)} == {8, 16}


def _use_widest(node: NodeProto, encodings: EncodingSet, found: Conversions) -> None:
    for position, name, value in _grids(node, encodings):
        if value.bits == 8 and position >= 0:
            found.requantize[node.output[0], position] = widened(value)
        elif value.bits == 8:
            found.first[name] = widened(value)


def _all_wide(node: NodeProto, encodings: EncodingSet) -> bool:
    return [value.bits for _, _, value in _grids(node, encodings)] == [16, 16, 16]


def _use_int16(node: NodeProto, encodings: EncodingSet, found: Conversions) -> None:
    for position, name, value in _grids(node, encodings):
        if position >= 0:
            found.requantize[node.output[0], position] = symmetric_int16(value)
        else:
            found.first[name] = symmetric_int16(value)

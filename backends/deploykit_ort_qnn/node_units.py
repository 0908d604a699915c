"""Finds where a node's inputs and outputs need one common grid width, and gives the conversions that make it so.

Measured with onnxruntime-qnn 2.7.0: an elementwise node with 8-bit and 16-bit tensors is compiled in float without a
word, and the second operand of a 16-bit MatMul of two activations is narrowed to 8 bits. It changes no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.values import Affine, EncodingSet
from deploykit.graph.graph_copy import GraphCopy

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Conversions", "find_conversions", "symmetric_int16", "widened"]

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
    stored = GraphCopy(model, copy=False).stored
    found = Conversions()
    wide, int16, narrowed = list[str](), list[str](), list[str]()
    for node in model.graph.node:
        if node.op_type == "MatMul" and not any(name in stored for name in node.input):
            if not _all_wide(node, encodings):
                continue
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


def symmetric_int16(value: Affine) -> Affine:
    """The symmetric signed 16-bit grid that covers a per-tensor grid."""
    most = max(abs(float(value.minimum.min())), abs(float(value.maximum.max())))
    return Affine(bits=16, signed=True, scale=np.asarray(most / 32767), zero_point=np.asarray(0.0), symmetric=True)


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

"""Finds where a node's inputs and outputs need one grid width, and gives the conversions that make it so.

Measured with onnxruntime-qnn 2.7.0 (QAIRT 2.51): an elementwise node with 8-bit and 16-bit tensors is compiled in float
without a word, and the second operand of a 16-bit MatMul of two activations is narrowed to 8 bits. It changes no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.values import Affine, EncodingSet
from deploykit.rewrites.contract import Look

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = [
    "Conversions",
    "find_conversions",
    "is_centred",
    "is_wide_product",
    "symmetric_int16",
    "symmetric_uint16",
    "widened",
]

_ONE_WIDTH = frozenset(
    {
        *("Abs", "Add", "AveragePool", "Concat", "Cos", "Div", "Elu", "Erf", "Exp", "Expand", "Flatten", "Gather"),
        *("Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "InstanceNormalization", "LayerNormalization"),
        *("LeakyRelu", "Log", "LogSoftmax", "Max", "Mean", "Min", "Mul", "Neg", "Pow", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt"),
        *("Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
_KEEPS_WEIGHTS = frozenset({"LayerNormalization", "InstanceNormalization"})
# The zero point of an unsigned 16-bit grid with 0 in its middle.
_MIDDLE = 1 << 15


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
    look, found = Look(model, encodings), Conversions()
    wide, int16, narrowed = list[str](), list[str](), list[str]()
    for node in model.graph.node:
        grids, made = list(node_grids(look, node)), node.output[0] if node.output else ""
        if is_wide_product(look, node):
            (int16 if int16_matmul else narrowed).append(made)
            changed = [(at, name, symmetric_int16(value)) for at, name, value in grids] if int16_matmul else []
        elif node.op_type in _ONE_WIDTH and {value.bits for _, _, value in grids} == {8, 16}:
            wide.append(made)
            changed = [(at, name, widened(value)) for at, name, value in grids if value.bits == 8]
        else:
            continue
        found.requantize.update({(made, at): value for at, _, value in changed if at >= 0})
        found.first.update({name: value for at, name, value in changed if at < 0})
    return replace(found, widened=tuple(wide), int16=tuple(int16), narrowed=tuple(narrowed))


def node_grids(look: Look, node: NodeProto) -> Iterator[tuple[int, str, Affine]]:
    """Inputs (position) and outputs (-1) that have an integer grid per tensor."""
    for position, name in [*enumerate(node.input), *((-1, name) for name in node.output)]:
        value = look.grid(name) if name and not (position > 0 and node.op_type in _KEEPS_WEIGHTS) else None
        if value is not None:
            yield position, name, value


def is_wide_product(look: Look, node: NodeProto) -> bool:
    """True for a MatMul of two activations with 16 bits on all sides."""
    if node.op_type != "MatMul" or any(name in look.graph.stored for name in node.input):
        return False
    return [value.bits for _, _, value in node_grids(look, node)] == [16, 16, 16]


def symmetric_int16(value: Affine) -> Affine:
    """The symmetric signed 16-bit grid that covers a per-tensor grid: the same one, where 0 is in its middle."""
    if value.bits == 16 and is_centred(value):
        return replace(value, signed=True, zero_point=np.asarray(0.0), symmetric=True)
    most = max(abs(float(value.minimum.min())), abs(float(value.maximum.max())))
    return Affine(bits=16, signed=True, scale=np.asarray(most / 32767), zero_point=np.asarray(0.0), symmetric=True)


def symmetric_uint16(value: Affine) -> Affine:
    """The same grid as an unsigned one, in which activations are written."""
    return replace(symmetric_int16(value), signed=False, zero_point=np.asarray(float(_MIDDLE)))


def is_centred(value: Affine) -> bool:
    """True for a 16-bit grid with 0 in its middle."""
    return bool(float(value.zero_point.reshape(())) - value.lowest == _MIDDLE)


def widened(value: Affine) -> Affine:
    """The unsigned 16-bit grid that contains every point of an 8-bit one: 257 finer steps for each."""
    zero = np.asarray((value.zero_point - value.lowest) * 257.0).reshape(())
    return Affine(bits=16, signed=False, scale=np.asarray(value.scale / 257.0).reshape(()), zero_point=zero)

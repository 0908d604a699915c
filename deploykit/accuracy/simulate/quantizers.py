"""What a quantizer makes of float32 values, bit for bit as AIMET computes it, in NumPy and as ops in an ONNX graph.

    q = clamp(floor((x / s - o) + 0.5), 0, 2^b - 1)        real value = (q + o) * s

in float32, in this order: halves go up, and the offset is subtracted before rounding. ``o`` speaks of the unsigned grid
(``lowest - zero_point``). NaN becomes the lowest step. float16 and bfloat16 are IEEE casts to nearest even. In a graph
stored values are quantized in NumPy, and activations by ordinary float32 ops behind their producer. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from deploykit.encodings.values import Affine, Array, EncodingSet, Float, Float8, Lpbq, Value, on_axis
from deploykit.errors import InputError
from deploykit.findings.records import Numbers, Shape
from deploykit.model.nodes import opset_of, without_values
from deploykit.model.operators import settings
from deploykit.model.values import named_tensors
from deploykit.model.weights import element_type, is_mapped, numpy_type, stored_values

__all__ = ["RAW", "Floats", "fake_quantize", "is_simulated", "quantize_graph", "quantized_tensor"]
__all__ += ["quantizers_of", "spread_scale"]

Floats: TypeAlias = npt.NDArray[np.float32]

_AT_ONCE = 1 << 16  # numbers that stay in the processor's cache

RAW = "::raw"
"""Appended to a tensor's name: its value before the quantizer."""


def is_simulated(value: Value) -> bool:
    """False for grids wider than 24 bits: AIMET exports int32 biases and does not simulate them."""
    return not isinstance(value, Affine) or value.bits <= 24


def fake_quantize(values: Numbers, value: Value) -> Floats:
    """The float32 values on the encoding's grid, of the same shape. Raises ValueError when shapes disagree."""
    x = np.asarray(values, dtype=np.float32)
    with np.errstate(all="ignore"):
        if isinstance(value, Float):
            return x.astype(numpy_type(value.dtype)).astype(np.float32)
        if isinstance(value, Float8):  # a cast of ``x / s`` that saturates
            s = spread_scale(value.scale, value, x.shape)
            cast = np.clip(x / s, -value.largest, value.largest).astype(numpy_type(value.dtype))
            return np.asarray(cast.astype(np.float32) * s, np.float32)
        if not is_simulated(value):
            return x
        s = spread_scale(value.scale, value, x.shape)
        if isinstance(value, Lpbq):  # the offset of the unsigned grid: zero or negative
            offset = np.full(value.scale.shape, -float(1 << (value.bits - 1)))
        else:
            offset = np.asarray(value.lowest - value.zero_point)
        o = spread_scale(offset, value, x.shape)
        made = np.empty(x.shape, np.float32)
        if x.ndim < 2 or x.size <= _AT_ONCE:
            return _on_grid(x, s, o, value.bits, made)
        # Weights of a hundred megabytes in parts that stay in the processor's cache, along the first axis.
        rows = max(1, _AT_ONCE * len(x) // x.size)
        for first in range(0, len(x), rows):
            here = slice(first, first + rows)
            _on_grid(x[here], _part(s, here, x.ndim), _part(o, here, x.ndim), value.bits, made[here])
        return made


def _part(numbers: Floats, here: slice, rank: int) -> Floats:
    """The part of a scale or offset that belongs to some places of the first axis of an array of that rank."""
    return numbers[here] if numbers.ndim == rank and len(numbers) > 1 else numbers


def _on_grid(x: Floats, s: Floats, o: Floats, bits: int, made: Floats) -> Floats:
    """Compute the formula into ``made``, operation by operation in its order."""
    np.divide(x, s, out=made)
    np.subtract(made, o, out=made)
    np.add(made, np.float32(0.5), out=made)
    np.floor(made, out=made)
    np.fmax(made, np.float32(0), out=made)  # which takes NaN to the lowest step
    np.minimum(made, np.float32((1 << bits) - 1), out=made)
    np.add(made, o, out=made)
    np.multiply(made, s, out=made)
    return made


def spread_scale(numbers: Array, value: Value, shape: Shape) -> Floats:
    """A scale or offset as float32 that broadcasts against ``shape``; ValueError when it does not belong to it."""
    narrow = np.asarray(numbers, dtype=np.float32)
    block_size = getattr(value, "block_size", None)
    if narrow.size > 1 and not getattr(value, "placed", True):
        raise ValueError(f"a scale of {narrow.size} numbers has not been placed on an axis of its tensor")
    if block_size is not None:
        block_axis = getattr(value, "block_axis", None)
        if block_axis is None or narrow.ndim != len(shape):
            raise ValueError(f"a scale of shape {narrow.shape} has not been placed on a tensor of shape {shape}")
        axis = block_axis % len(shape)
        narrow = np.take(np.repeat(narrow, block_size, axis=axis), np.arange(shape[axis]), axis=axis)
    elif narrow.size == 1:
        return narrow.reshape(())
    elif (axis := getattr(value, "axis", None)) is not None:
        narrow = on_axis(narrow, axis % len(shape), len(shape))
    np.broadcast_shapes(narrow.shape, shape)
    return narrow


def quantizers_of(model: ModelProto, encodings: EncodingSet) -> tuple[dict[str, Value], dict[str, str]]:
    """The quantizer of every entry of a tensor of the main graph, and for every other entry why it is not simulated.

    Values stand in the order stored ones, inputs, computed ones. Raises InputError for an opset below 9 and for entries
    that do not fit their tensor.
    """
    opset = opset_of(model)
    if opset < 9:
        raise InputError(
            f"{model.graph.name}: opset {opset} cannot be simulated",
            why="the quantizers need opset 9 or later",
            next="convert the model to a newer opset first",
        )
    skipped = {e.name: "an int32 bias is exported and not simulated" for e in encodings if not is_simulated(e.value)}
    given = {e.name: e.value for e in encodings if e.name not in skipped}
    given |= {name: Float("float16") for name in encodings.float_tensors if name not in given}
    values = dict[str, Value]()
    for name, tensor in named_tensors(model).items():
        if name in given and tensor.data_type == tensor.FLOAT:
            _check_fit(tensor, given[name], name)
            values[name] = given[name]
    moving = [item.name for item in model.graph.input if item.type.tensor_type.elem_type == TensorProto.FLOAT]
    moving += [name for node in model.graph.node for name in node.output]
    for name in moving:
        value = given.get(name)
        if value is None or name in values:
            continue
        if not isinstance(value, Float) and (isinstance(value, Float8 | Lpbq) or value.scale.size != 1):
            raise InputError(
                f"the entry of {name!r} is {value.dtype}, {value.granularity}: only weights can be",
                why="an activation has one scale and one offset",
                next="correct the entry",
            )
        values[name] = value
    # A factor that is rounded moves whole pictures, and no device rounds a setting.
    read_as = {(name, at in settings(node)) for node in model.graph.node for at, name in enumerate(node.input)}
    for name, is_setting in read_as:
        if is_setting and (name, False) not in read_as:
            values.pop(name, None)
    skipped |= {name: "the main graph computes with no float32 of this name" for name in given if name not in values}
    return values, skipped


def quantize_graph(model: ModelProto, values: Mapping[str, Value]) -> ModelProto:
    """A copy with stored values as they are quantized, and a quantizer behind every node output that has a value.

    Graph inputs are quantized when they are fed, and weights that lie in files when they are read.
    """
    named = named_tensors(model)
    stored = {name for name in named if name in values and named[name].data_type == TensorProto.FLOAT}
    copy = without_values(model)
    graph, constants = copy.graph, dict[np.float32, str]()
    graph.initializer.extend(quantized_tensor(one, values.get(one.name)) for one in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in stored:
            name = node.output[0]
            graph.initializer.append(quantized_tensor(named[name], values[name]))
            graph.initializer[-1].name = name
            continue
        copied = graph.node.add()
        copied.CopyFrom(node)
        for index, name in enumerate(node.output):
            if name in values:
                copied.output[index] = name + RAW
                _add_quantizer(graph, name, values[name], constants)
    return copy


def quantized_tensor(tensor: TensorProto, value: Value | None) -> TensorProto:
    """A stored tensor on its encoding's grid, if it has one; a tensor that lies in a file is quantized when it is read.

    Raises InputError where the two do not fit.
    """
    if value is None or tensor.data_type != tensor.FLOAT:
        return tensor
    _check_fit(tensor, value, tensor.name)
    if is_mapped(tensor):
        return tensor
    return numpy_helper.from_array(fake_quantize(stored_values(tensor), value), tensor.name)


def _check_fit(tensor: TensorProto, value: Value, name: str) -> None:
    try:
        if not isinstance(value, Float) and is_simulated(value):
            spread_scale(value.scale, value, tuple(tensor.dims))
    except (ValueError, IndexError) as error:
        raise InputError(
            f"the entry of {name!r} does not fit its tensor of shape {tuple(tensor.dims)}",
            why=str(error),
            next="place the encodings on the model they were made from",
        ) from None


def _add_quantizer(graph: GraphProto, name: str, value: Value, known: dict[np.float32, str]) -> None:
    """The nodes that compute ``name`` from ``name::raw``; all quantizers of a graph share its ``known`` constants."""
    if isinstance(value, Float):
        inner, narrow = f"{name}::{value.dtype}", element_type(value.dtype.removesuffix("32"))
        graph.node.append(helper.make_node("Cast", [name + RAW], [inner], to=narrow))
        graph.node.append(helper.make_node("Cast", [inner], [name], to=TensorProto.FLOAT))
        return
    assert isinstance(value, Affine)  # as ``quantizers_of`` lets through
    scale, zero_offset = float(value.scale.reshape(())), float(value.lowest - value.zero_point.reshape(()))
    # The threshold takes NaN to the lowest step, for NaN is not above it.
    steps = [("Div", scale), ("Sub", zero_offset), ("Add", 0.5), ("Floor", None), ("ThresholdedRelu", None)]
    steps += [("Min", float((1 << value.bits) - 1)), ("Add", zero_offset), ("Mul", scale)]
    steps = [step for step in steps if step[1] != 0]  # an offset of zero changes no number
    before = name + RAW
    for place, (op, constant) in enumerate(steps, start=1):
        made, read = name if place == len(steps) else f"{name}::{place}", [before]
        if constant is not None:
            number = np.float32(constant)
            if number not in known:
                known[number] = f"::float32({number!s})::{number.tobytes().hex()}"
                graph.initializer.append(numpy_helper.from_array(np.asarray(number), known[number]))
            read.append(known[number])
        threshold = _THRESHOLD if op == "ThresholdedRelu" else ()
        graph.node.add(op_type=op, input=read, output=(made,), attribute=threshold)
        before = made


_THRESHOLD = (helper.make_attribute("alpha", 0.0),)

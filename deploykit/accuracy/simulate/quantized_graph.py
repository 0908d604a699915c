"""Puts quantizers into an ONNX graph as ordinary float32 ops, so that any ONNX runtime computes AIMET's simulation.

Stored values are quantized here, in numpy; activations get a chain of elementwise ops behind their producer. Tensor
names stay: a name that had an entry now carries the quantized value. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from deploykit.accuracy.simulate.quantizers import check_shape, fake_quantize, is_simulated
from deploykit.encodings.values import Affine, EncodingSet, Float, Float8, Lpbq, Value
from deploykit.errors import InputError
from deploykit.model.nodes import opset_of
from deploykit.model.weights import is_mapped

__all__ = ["RAW", "QuantizedGraph", "quantize_graph"]

RAW = "::raw"
"""Appended to a tensor's name: its value before the quantizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedGraph:
    """A graph with quantizers. ``feeds`` maps the original input names to those to feed.

    ``applied`` are the tensors that are quantized; ``skipped`` says of every other entry why it is not simulated.
    ``later`` are the entries of weights that lie in files: they are to be quantized when they are read.
    """

    model: ModelProto
    later: dict[str, Value]
    feeds: dict[str, str]
    applied: tuple[str, ...]
    skipped: dict[str, str]


def quantize_graph(model: ModelProto, encodings: EncodingSet) -> QuantizedGraph:
    """Insert a quantizer for every entry of a tensor of the main graph; the given model is not changed.

    Weights must be loaded. Raises InputError for an opset below 9 and for entries that do not fit their tensor.
    """
    _check_opset(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    skipped = {e.name: "an int32 bias is exported and not simulated" for e in encodings if not is_simulated(e.value)}
    values = {e.name: e.value for e in encodings if e.name not in skipped}
    values |= {name: Float(dtype="float16") for name in encodings.float_tensors if name not in values}
    later = {t.name: values[t.name] for t in copy.graph.initializer if t.name in values and _is_later(t)}
    stored = _quantize_stored(copy, values)
    moving = {name: value for name, value in values.items() if name not in stored}
    feeds, made = _quantize_moving(copy, moving)
    skipped |= {name: "the main graph has no such tensor" for name in moving if name not in made}
    return QuantizedGraph(model=copy, later=later, feeds=feeds, applied=(*stored, *made), skipped=skipped)


def _check_opset(model: ModelProto) -> None:
    opset = opset_of(model)
    if opset < 9:
        raise InputError(
            f"{model.graph.name}: opset {opset} cannot be simulated",
            why="the quantizers need opset 9 or later",
            next="convert the model to a newer opset first",
        )


def _quantize_stored(model: ModelProto, values: dict[str, Value]) -> list[str]:
    """Overwrite initializers and Constant values in place; the names done."""
    tensors = [(t.name, t) for t in model.graph.initializer]
    tensors += [(n.output[0], a.t) for n in _constants(model.graph.node) for a in n.attribute if a.name == "value"]
    done = []
    for name, tensor in tensors:
        if name in values and tensor.data_type == tensor.FLOAT:
            if _is_later(tensor):
                _check_fit(name, tensor, values[name])
            else:
                tensor.CopyFrom(_quantized_tensor(name, tensor, values[name]))
            done.append(name)
    return done


def _constants(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        if node.op_type == "Constant":
            _spell_out(node)
            yield node


def _spell_out(node: NodeProto) -> None:
    """Turn value_float and value_floats into a tensor, so that one case is left."""
    for attribute in list(node.attribute):
        if attribute.name in ("value_float", "value_floats"):
            value = np.asarray(helper.get_attribute_value(attribute), dtype=np.float32)
            node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))


def _is_later(tensor: TensorProto) -> bool:
    return bool(tensor.data_type == tensor.FLOAT) and is_mapped(tensor)


def _quantized_tensor(name: str, tensor: TensorProto, value: Value) -> TensorProto:
    try:
        return numpy_helper.from_array(fake_quantize(numpy_helper.to_array(tensor), value), tensor.name)
    except (ValueError, IndexError) as error:
        raise _unfit(name, tensor, error) from None


def _check_fit(name: str, tensor: TensorProto, value: Value) -> None:
    try:
        check_shape(value, tuple(tensor.dims))
    except (ValueError, IndexError) as error:
        raise _unfit(name, tensor, error) from None


def _unfit(name: str, tensor: TensorProto, error: Exception) -> InputError:
    return InputError(
        f"the entry of {name!r} does not fit its tensor of shape {tuple(tensor.dims)}",
        why=str(error),
        next="place the encodings on the model they were made from",
    )


def _quantize_moving(model: ModelProto, values: dict[str, Value]) -> tuple[dict[str, str], list[str]]:
    """Put a chain of ops behind every input and node output that has a value; the feeds and the names done."""
    chains = _Chains(model)
    feeds = {item.name: item.name for item in model.graph.input}
    given, made = list(model.graph.node), []
    nodes = model.graph.node
    del nodes[:]
    for item in model.graph.input:
        if item.name in values and item.type.tensor_type.elem_type == 1:
            nodes.extend(chains.chain(item.name, values[item.name]))
            made.append(item.name)
            feeds[item.name] = item.name = item.name + RAW
    for node in given:
        nodes.append(node)
        quantized = [index for index, name in enumerate(node.output) if name in values]
        for index in quantized:
            nodes[-1].output[index] += RAW
        for name in (node.output[index] for index in quantized):
            nodes.extend(chains.chain(name, values[name]))
            made.append(name)
    return feeds, made


class _Chains:
    """Makes the ops of quantizers and shares their constants among all of them."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._known: set[str] = set()

    def chain(self, name: str, value: Value) -> list[NodeProto]:
        """The nodes that compute ``name`` from ``name::raw``."""
        if isinstance(value, Float):
            return self._casts(name, value.dtype)
        if isinstance(value, Float8 | Lpbq) or value.scale.size != 1:
            raise InputError(
                f"the entry of {name!r} is {value.dtype}, {value.granularity}: only weights can be",
                why="an activation has one scale and one offset",
                next="correct the entry",
            )
        return self._grid(name, value)

    def _grid(self, name: str, value: Affine) -> list[NodeProto]:
        scale = self._constant(float(value.scale.reshape(())))
        offset = self._constant(float(value.lowest - value.zero_point.reshape(())))
        zero, half, top = self._constant(0.0), self._constant(0.5), self._constant(float((1 << value.bits) - 1))
        steps = [
            ("Div", (name + RAW, scale), "div"),
            ("Sub", ("div", offset), "sub"),
            ("Add", ("sub", half), "add"),
            ("Floor", ("add",), "floor"),
            ("Greater", ("floor", zero), "above"),  # NaN is not
            ("Where", ("above", "floor", zero), "real"),
            ("Min", ("real", top), "q"),
            ("Add", ("q", offset), "shifted"),
            ("Mul", ("shifted", scale), ""),
        ]
        return self._nodes(name, steps)

    def _casts(self, name: str, dtype: str) -> list[NodeProto]:
        narrow = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}
        inner = f"{name}::{dtype}"
        return [
            helper.make_node("Cast", [name + RAW], [inner], name=f"{name}::narrow", to=narrow[dtype]),
            helper.make_node("Cast", [inner], [name], name=f"{name}::widen", to=TensorProto.FLOAT),
        ]

    def _nodes(self, name: str, steps: list[tuple[str, tuple[str, ...], str]]) -> list[NodeProto]:
        inner = {made for _, _, made in steps}
        nodes = []
        for op, inputs, made in steps:
            full = [f"{name}::{i}" if i in inner else i for i in inputs]
            output = f"{name}::{made}" if made else name
            nodes.append(helper.make_node(op, full, [output], name=f"{name}::{op}::{made or 'value'}"))
        return nodes

    def _constant(self, value: float) -> str:
        name = f"::float32({np.float32(value)!s})::{np.float32(value).tobytes().hex()}"
        if name not in self._known:
            self._known.add(name)
            self._model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), name))
        return name

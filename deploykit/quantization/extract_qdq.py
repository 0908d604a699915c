"""Takes QuantizeLinear and DequantizeLinear out of a model: the float model and the encodings they stood for.

The opposite of ``insert_qdq``. Pairs whose grid is computed at run time stay where they are and are reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq, Value
from deploykit.graph.editing import (
    attribute,
    constant_values,
    consumers_of,
    drop_unused_constants,
    label,
    producers_of,
    rename_inputs,
    set_nodes,
    stored_tensors,
    usable_copy,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["Extracted", "extract_qdq"]

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The float model, its encodings (placed), and the nodes that could not be taken out, with the reason."""

    model: ModelProto
    encodings: EncodingSet
    kept: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Work:
    model: ModelProto
    stored: dict[str, TensorProto]
    producers: dict[str, NodeProto]
    readers: dict[str, list[tuple[NodeProto, int]]]
    entries: dict[str, Encoding] = field(default_factory=dict)
    read_as: dict[str, str] = field(default_factory=dict)
    weights: dict[str, TensorProto] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)


def extract_qdq(model: ModelProto) -> Extracted:
    """Remove every pair and every dequantized constant. Weights become float32 initializers on their grid."""
    copy = usable_copy(model)
    work = _Work(
        model=copy,
        stored=stored_tensors(copy.graph),
        producers=producers_of(copy.graph),
        readers=consumers_of(copy.graph),
    )
    for node in copy.graph.node:
        if node.op_type == _DQ:
            _take(work, node)
    _rewire(work)
    drop_unused_constants(copy.graph, work.stored)
    _drop_dead_scales(copy)
    entries = dict(sorted(work.entries.items()))
    encodings = EncodingSet(version="qdq", entries=entries)
    return Extracted(model=copy, encodings=encodings, kept=work.kept)


def _take(work: _Work, node: NodeProto) -> None:
    """One DequantizeLinear: of an activation's pair, of a stored weight, or of a scale (left to its reader)."""
    if _is_scale(work, node):
        work.gone.add(id(node))
        return
    source = work.producers.get(node.input[0])
    try:
        value = _value(work, node)
    except ValueError as error:
        work.kept[label(node)] = str(error)
        return
    if source is not None and source.op_type == _Q:
        _take_pair(work, node, source, value)
    elif node.input[0] in work.stored:
        _take_weight(work, node, value)
    else:
        work.kept[label(node)] = f"its integers come from {'the graph input' if source is None else label(source)}"


def _is_scale(work: _Work, node: NodeProto) -> bool:
    readers = work.readers.get(node.output[0], [])
    return bool(readers) and all(reader.op_type in (_Q, _DQ) and position == 1 for reader, position in readers)


def _take_pair(work: _Work, node: NodeProto, quantize: NodeProto, value: Value) -> None:
    name = quantize.input[0]
    weight = name in work.stored
    is_output = any(output.name == node.output[0] for output in work.model.graph.output)
    known = work.entries.get(name)
    if known is not None and not _same(known.value, value):
        work.kept[label(node)] = f"{name} is quantized a second time, with another grid"
        return
    final = node.output[0] if is_output and not weight else name
    work.entries.pop(name, None)
    work.entries[final] = Encoding(name=final, value=value, is_param=weight or None)
    work.gone |= {id(node), id(quantize)}
    if final != name:
        work.read_as[name] = final
    work.read_as[node.output[0]] = final


def _take_weight(work: _Work, node: NodeProto, value: Value) -> None:
    from onnx import numpy_helper

    name = _plain_name(work, node)
    integers = constant_values(work.stored[node.input[0]]).astype(np.float32)
    floats = _dequantize(integers, value)
    work.weights[name] = numpy_helper.from_array(floats, name)
    work.entries[name] = Encoding(name=name, value=value, is_param=True)
    work.read_as[node.output[0]] = name
    work.gone.add(id(node))


def _plain_name(work: _Work, node: NodeProto) -> str:
    """The weight's own name, where the integers' name is that name with a usual suffix."""
    for suffix in ("_q", "_quantized"):
        base = node.input[0].removesuffix(suffix)
        if base != node.input[0] and base not in work.stored and base not in work.producers:
            return str(base if base not in work.weights else node.output[0])
    return str(node.output[0])


def _value(work: _Work, node: NodeProto) -> Value:
    axis, size = int(attribute(node, "axis", 1)), int(attribute(node, "block_size", 0))
    zero_name = node.input[2] if len(node.input) > 2 else ""
    dtype = _dtype(work, node, zero_name)
    scale_node = work.producers.get(node.input[1])
    if scale_node is not None and scale_node.op_type == _DQ:
        return _lpbq_value(work, scale_node, dtype, axis, size)
    if node.input[1] not in work.stored:
        raise ValueError("its scale is computed at run time")
    scale = constant_values(work.stored[node.input[1]]).astype(np.float64)
    rank = _rank(work, node, scale)
    axis = axis + rank if axis < 0 else axis
    if dtype.startswith("float8"):
        return Float8(dtype=dtype, scale=scale, axis=axis if scale.ndim else None)
    zero = np.zeros_like(scale)
    if zero_name:
        if zero_name not in work.stored:
            raise ValueError("its zero point is computed at run time")
        zero = constant_values(work.stored[zero_name]).astype(np.float64)
    scale, zero = (scale.reshape(()), zero.reshape(())) if scale.size == 1 and not size else (scale, zero)
    return Affine(
        bits=int("".join(letter for letter in dtype if letter.isdigit())),
        signed=not dtype.startswith("u"),
        scale=scale,
        zero_point=zero,
        symmetric=None,
        axis=_channel_axis(scale, axis, size),
        block_axis=axis if size else None,
        block_size=size or None,
    )


def _channel_axis(scale: Any, axis: int, size: int) -> int | None:
    if not size:
        return axis if scale.ndim else None
    others = [i for i, dim in enumerate(scale.shape) if i != axis and dim > 1]
    return others[0] if len(others) == 1 else None


def _rank(work: _Work, node: NodeProto, scale: Any) -> int:
    stored = work.stored.get(node.input[0])
    if stored is None and (source := work.producers.get(node.input[0])) is not None:
        stored = work.stored.get(source.input[0])
    return len(stored.dims) if stored is not None else max(1, scale.ndim)


def _lpbq_value(work: _Work, scale_node: NodeProto, dtype: str, axis: int, size: int) -> Value:
    blocks, channel = (work.stored.get(name) for name in scale_node.input[:2])
    if blocks is None or channel is None or not size:
        raise ValueError("its scale is computed at run time")
    if any(np.any(constant_values(work.stored[n])) for n in scale_node.input[2:] if n in work.stored):
        raise ValueError("its block scales have a zero point")
    numbers = constant_values(blocks).astype(np.float64)
    rank, channel_axis = numbers.ndim, int(attribute(scale_node, "axis", 1))
    axis, channel_axis = axis % rank, channel_axis % rank
    scales = constant_values(channel).astype(np.float64)
    shape = tuple(-1 if i == channel_axis else 1 for i in range(rank))
    return Lpbq(
        bits=int(dtype.removeprefix("int")),
        decompressed_bits=2 * int(dtype.removeprefix("int")),
        channel_scale=scales.reshape(shape),
        block_scale=numbers,
        axis=channel_axis,
        block_axis=axis,
        block_size=size,
    )


def _dtype(work: _Work, node: NodeProto, zero_name: str) -> str:
    from onnx import TensorProto

    for name in (zero_name, node.input[0]):
        if name in work.stored:
            return str(TensorProto.DataType.Name(work.stored[name].data_type)).lower()
    source = work.producers.get(node.input[0])
    if source is not None and source.op_type == _Q and len(source.input) > 2 and source.input[2] in work.stored:
        return str(TensorProto.DataType.Name(work.stored[source.input[2]].data_type)).lower()
    return "uint8"


def _same(a: Value, b: Value) -> bool:
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return type(a) is type(b) and a.dtype == b.dtype
    return a.dtype == b.dtype and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def _dequantize(integers: Any, value: Value) -> Any:
    assert not isinstance(value, Float)
    if isinstance(value, Float8):
        return integers * _spread(value.scale, value.axis, integers.ndim)
    axis = value.block_axis
    if axis is not None and value.block_size is not None:
        scale = np.repeat(value.scale.astype(np.float32), value.block_size, axis=axis)
        zero = 0.0 if isinstance(value, Lpbq) else np.repeat(value.zero_point, value.block_size, axis=axis)
    else:
        assert isinstance(value, Affine)
        scale = _spread(value.scale.astype(np.float32), value.axis, integers.ndim)
        zero = _spread(value.zero_point, value.axis, integers.ndim)
    return np.asarray((integers - zero) * scale, np.float32)


def _spread(numbers: Any, axis: int | None, rank: int) -> Any:
    if axis is None or numbers.ndim == 0:
        return numbers
    return numbers.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


def _rewire(work: _Work) -> None:
    graph = work.model.graph
    graph.initializer.extend(work.weights.values())
    kept = [node for node in graph.node if id(node) not in work.gone]
    for node in kept:
        rename_inputs(node, work.read_as)
        for position, name in enumerate(node.output):
            node.output[position] = work.read_as.get(name, name)
    set_nodes(graph, kept)
    del graph.value_info[:]


def _drop_dead_scales(model: ModelProto) -> None:
    drop_unused_constants(model.graph, [tensor.name for tensor in model.graph.initializer])

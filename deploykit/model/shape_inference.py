"""Infers the type and shape of every tensor with onnx, on a copy without weights, and never fails because of it.

It opens no external data and does not look into functions of the model: a few of them expand to any size. What is
inferred follows from that copy alone, so a graph that was seen a moment ago is answered by its content, and a model of
the same bytes without making the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

from onnx import ModelProto, shape_inference

from deploykit.model.files.explosion import explosive_nodes
from deploykit.model.files.negative_shapes import OPAQUE, forget_negative, inferred_in_stages
from deploykit.model.files.tensors import dtype_name, element_count, is_external

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

__all__ = ["Inferred", "Shape", "infer", "inferred_graph", "type_of"]

Shape: TypeAlias = tuple[int | str | None, ...] | None

_KEPT_INTEGERS = 1024
_KEPT_OTHERS = 64

_CONTRIBUTED = "com.microsoft"
_SHAPED_LIKE = {"QuantizeLinear": "", "DequantizeLinear": "", "Gelu": "Identity", "QuickGelu": "Identity"}
"""Contributed operators that onnx knows nothing of, with an operator of the standard that gives the same shape ("": the
one of the same name). 16-bit Q/DQ are among them before opset 21; without them every shape behind them is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """(dtype, shape) of tensors by name; ``problem`` is empty unless inference was impossible.

    ``negative`` names a tensor that would have fewer than no elements, in a graph with a Slice, where onnx and ONNX
    Runtime end the process.
    """

    types: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    problem: str = ""
    negative: str = ""


_SEEN: dict[bytes, Inferred] = {}
_MOST_SEEN = 16
"""Names of graphs of which the answer is kept: matchers, rules and proofs ask about a handful again and again."""
_QUICKLY_NAMED = 8 << 20
"""Bytes of a model up to which its own bytes name it as well: to write them takes less than to make the copy."""


def infer(proto: ModelProto) -> Inferred:
    """What is declared and what onnx infers from it; the model is not changed and no external data is opened."""
    try:
        whole = sha256(proto.SerializeToString()).digest() if proto.ByteSize() <= _QUICKLY_NAMED else b""
        if whole in _SEEN:
            return _keep(whole, _SEEN.pop(whole))
        lean = _without_weights(proto)
        key = sha256(lean.SerializeToString(deterministic=True)).digest()
    except Exception as error:  # as below: a tensor that claims what it cannot hold ends it before onnx is asked
        return _types(proto, proto.graph, _reason(error))
    known = _SEEN.pop(key) if key in _SEEN else _types(proto, *_inferred(proto, lean))
    return _keep(whole, _keep(key, known)) if whole else _keep(key, known)


def _keep(name: bytes, known: Inferred) -> Inferred:
    """The one asked for last stands last, and the first goes first."""
    _SEEN[name] = known
    if len(_SEEN) > _MOST_SEEN:
        del _SEEN[next(iter(_SEEN))]
    return known


def inferred_graph(proto: ModelProto) -> tuple[GraphProto, str]:
    """The graph with what onnx infers in its ``value_info``, without weights; as declared, and why, where it cannot."""
    try:
        graph, problem, _ = _inferred(proto, _without_weights(proto))
        return graph, problem
    except Exception as error:
        return proto.graph, _reason(error)


def _inferred(proto: ModelProto, lean: ModelProto) -> tuple[GraphProto, str, str]:
    try:
        _hide_explosive(proto, lean)
        graph, negative = inferred_in_stages(lean, partial(shape_inference.infer_shapes, data_prop=True))
        return graph, "", negative
    except Exception as error:  # the binding raises whatever its C++ side threw; shapes are then simply unknown
        return proto.graph, _reason(error), ""


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _types(proto: ModelProto, graph: GraphProto, problem: str, negative: str = "") -> Inferred:
    return Inferred(types=_collect_types(graph, _symbols(proto.graph)), problem=problem, negative=negative)


def _hide_explosive(proto: ModelProto, lean: ModelProto) -> None:
    """Give nodes that inference must not look at a domain of which it knows nothing."""
    explosive = explosive_nodes(proto.graph)
    for index in explosive:
        lean.graph.node[index].domain = OPAQUE
    if explosive:
        lean.opset_import.add(domain=OPAQUE, version=1)


def _collect_types(graph: GraphProto, symbols: frozenset[str]) -> dict[str, tuple[str, Shape]]:
    items = (*graph.value_info, *graph.input, *graph.output)
    return {item.name: type_of(item.type, symbols) for item in items}


def type_of(proto: TypeProto, symbols: frozenset[str] | None = None) -> tuple[str, Shape]:
    """(dtype, shape) of a declared type; sequences, maps and optionals have neither.

    Symbols outside ``symbols`` were invented by the inference and count as unknown, as negative numbers do.
    """
    if not proto.HasField("tensor_type"):
        return "", None
    tensor = proto.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            symbol = dim.dim_param
            dims.append(symbol if symbol and (symbols is None or symbol in symbols) else None)
    return dtype, tuple(dims)


def _symbols(graph: GraphProto) -> frozenset[str]:
    """Symbols that the model itself declares."""
    items: Iterable[ValueInfoProto] = (*graph.value_info, *graph.input, *graph.output)
    return frozenset(
        dim.dim_param
        for item in items
        if item.type.HasField("tensor_type")
        for dim in item.type.tensor_type.shape.dim
        if dim.dim_param and isinstance(dim.dim_param, str)
    )


def _without_weights(proto: ModelProto) -> ModelProto:
    """A copy in which stored tensors have a type and dimensions, and values only where a shape may depend on them."""
    lean = ModelProto(ir_version=proto.ir_version)
    lean.opset_import.extend(proto.opset_import)
    graph = lean.graph
    graph.name = proto.graph.name or "graph"
    for items, copies in (
        (proto.graph.input, graph.input),
        (proto.graph.output, graph.output),
        (proto.graph.value_info, graph.value_info),
    ):
        copies.extend(items)
        forget_negative(copies)
    for tensor in proto.graph.initializer:
        _copy_tensor(tensor, graph.initializer.add())
    for node in proto.graph.node:
        _copy_node(node, graph.node.add())
    return lean


def _copy_tensor(tensor: TensorProto, copy: TensorProto) -> None:
    count = element_count(tensor, tensor.name)
    integer = "int" in dtype_name(tensor.data_type)
    if not is_external(tensor) and count <= (_KEPT_INTEGERS if integer else _KEPT_OTHERS):
        copy.CopyFrom(tensor)
        return
    copy.name, copy.data_type = tensor.name, tensor.data_type
    copy.dims.extend(tensor.dims)


def _copy_node(node: NodeProto, copy: NodeProto) -> None:
    if node.op_type != "Constant":
        copy.CopyFrom(node)
        if node.domain == _CONTRIBUTED and node.op_type in _SHAPED_LIKE:
            copy.domain, copy.op_type = "", _SHAPED_LIKE[node.op_type] or node.op_type
        return
    copy.op_type, copy.domain, copy.name = node.op_type, node.domain, node.name
    copy.output.extend(node.output)
    for attribute in node.attribute:
        twin = copy.attribute.add()
        if attribute.HasField("t"):
            twin.name, twin.type = attribute.name, attribute.type
            _copy_tensor(attribute.t, twin.t)
        else:
            twin.CopyFrom(attribute)

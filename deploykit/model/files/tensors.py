"""Finds the stored tensors of a model and compares what they claim with the bytes that are there.

It never copies or opens weight data; external files are somebody else's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from deploykit.errors import InputError
from deploykit.model.element_types import BITS
from deploykit.model.nodes import bodies

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

__all__ = [
    "StoredTensor",
    "all_graphs",
    "byte_size",
    "check_inline",
    "constant_tensor",
    "dtype_name",
    "element_count",
    "is_external",
    "nested_graphs",
    "stored_tensors",
]

_LARGEST = 1 << 62
_MOST_DIMS = 64

# Which typed field holds the elements where raw_data does not, and how many entries one element takes.
_FIELDS = {
    **dict.fromkeys(BITS, ("int32_data", 1)),
    "float": ("float_data", 1),
    "complex64": ("float_data", 2),
    "double": ("double_data", 1),
    "complex128": ("double_data", 2),
    "int64": ("int64_data", 1),
    **dict.fromkeys(("uint32", "uint64"), ("uint64_data", 1)),
    "string": ("string_data", 1),
}


class StoredTensor(NamedTuple):
    """One stored tensor and where it was met: its name, or the node that holds it."""

    where: str
    proto: TensorProto


def stored_tensors(proto: ModelProto) -> Iterator[StoredTensor]:
    """Every tensor stored anywhere in the model: initializers, attributes, subgraphs, functions, training graphs."""
    for graph in all_graphs(proto):
        for tensor in graph.initializer:
            yield StoredTensor(f"tensor {tensor.name!r}", tensor)
        for sparse in graph.sparse_initializer:
            yield from _sparse_parts(f"sparse tensor {sparse.values.name!r}", sparse)
        yield from _node_tensors(graph.node)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[StoredTensor]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(node, attribute)


def _attribute_tensors(node: NodeProto, attribute: AttributeProto) -> Iterator[StoredTensor]:
    where = f"attribute {attribute.name!r} of node {node.name or node.op_type!r}"
    if attribute.HasField("t"):
        yield StoredTensor(f"tensor {node.output[0]!r}" if _is_constant(node) else where, attribute.t)
    yield from (StoredTensor(where, tensor) for tensor in attribute.tensors)
    if attribute.HasField("sparse_tensor"):
        yield from _sparse_parts(where, attribute.sparse_tensor)
    for sparse in attribute.sparse_tensors:
        yield from _sparse_parts(where, sparse)


def _is_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and len(node.output) == 1


def _sparse_parts(where: str, sparse: SparseTensorProto) -> Iterator[StoredTensor]:
    yield StoredTensor(f"values of {where}", sparse.values)
    yield StoredTensor(f"indices of {where}", sparse.indices)


def all_graphs(proto: ModelProto) -> Iterator[GraphProto]:
    """The main graph, then every graph nested in it, in functions and in training information."""
    yield proto.graph
    yield from nested_graphs(proto.graph.node)
    for function in proto.functions:
        yield from nested_graphs(function.node)
    for training in proto.training_info:
        for graph in (training.initialization, training.algorithm):
            yield graph
            yield from nested_graphs(graph.node)


def nested_graphs(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """Every graph in the attributes of the given nodes, at any depth."""
    todo = [nodes]
    while todo:
        for node in todo.pop():
            for graph in bodies(node):
                yield graph
                todo.append(graph.node)


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """What a Constant node holds, as a tensor named like its output; None for a sparse or missing value."""
    from onnx import TensorProto, helper

    for attribute in node.attribute:
        name, plain = node.output[0], _PLAIN.get(attribute.name)
        if attribute.name == "value":
            held: TensorProto = attribute.t
            return held
        if plain is not None:
            value = helper.get_attribute_value(attribute)
            many = attribute.name.endswith("s")
            data_type = TensorProto.DataType.Value(plain)
            return helper.make_tensor(name, data_type, [len(value)] if many else [], value if many else [value])
    return None


_PLAIN = {"value_float": "FLOAT", "value_floats": "FLOAT", "value_int": "INT64", "value_ints": "INT64"}
_PLAIN |= {"value_string": "STRING", "value_strings": "STRING"}


def is_external(tensor: TensorProto) -> bool:
    """True where the data lies in another file."""
    return bool(tensor.data_location == 1)  # TensorProto.EXTERNAL


@cache
def dtype_name(data_type: int) -> str:
    """ONNX's lower-case name of an element type, "" for one that the installed onnx does not know."""
    from onnx import TensorProto

    try:
        name: str = TensorProto.DataType.Name(data_type).lower()
    except ValueError:
        return ""
    return "" if name == "undefined" else name


def element_count(tensor: TensorProto, where: str) -> int:
    """How many elements the dimensions claim; InputError where they are negative or absurd."""
    dims = tuple(tensor.dims)
    if dims and min(dims) < 0:
        raise InputError(f"{where}: has the negative dimension {min(dims)}", why=f"its dimensions are {_brief(dims)}")
    if len(dims) > _MOST_DIMS:
        raise InputError(f"{where}: has {len(dims)} dimensions", why=f"no array has more than {_MOST_DIMS}")
    count: int = math.prod(dims)
    if count > _LARGEST:
        raise InputError(f"{where}: claims more elements than any file holds", why=f"its dimensions are {_brief(dims)}")
    return count


def byte_size(tensor: TensorProto, where: str) -> int:
    """The bytes that the elements take as raw data, as claimed by type and dimensions; 0 for strings."""
    count, name = element_count(tensor, where), dtype_name(tensor.data_type)
    if not name:
        raise InputError(
            f"{where}: has the unknown element type {tensor.data_type}",
            next="upgrade onnx, if a newer version has that type",
        )
    return (count * BITS.get(name, 0) + 7) // 8


def check_inline(tensor: TensorProto, where: str) -> None:
    """InputError unless the data stored in the model has the length that type and dimensions claim."""
    size = byte_size(tensor, where)
    name = dtype_name(tensor.data_type)
    if tensor.HasField("raw_data") and name != "string":
        present, wanted, unit = len(tensor.raw_data), size, "bytes"
    else:
        field, entries = _FIELDS[name]
        packed = BITS.get(name) in (2, 4)
        present, unit = len(getattr(tensor, field)), "values"
        wanted = size if packed else element_count(tensor, where) * entries
    if present != wanted:
        raise InputError(
            f"{where}: holds {present:,} {unit}, but its dimensions {_brief(tuple(tensor.dims))} need {wanted:,}",
            why="the file is damaged, or was written wrongly",
            next="export the model again",
        )


def _brief(dims: tuple[int, ...]) -> str:
    text = " x ".join(map(str, dims[:8])) or "(a scalar)"
    return text + (" x …" if len(dims) > 8 else "")

"""A copy of a model that keeps its structure and none of its weights; it reads no weight and writes nothing.

Stored values become ones of the same type and shape, except where they are structure: small integers that are no
quantized weights, and settings of operators: factors, bounds, grids of quantizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from msgspec import Struct
from onnx import AttributeProto, ModelProto, TensorProto, helper

from deploykit.model.nodes import bodies, copy_of
from deploykit.model.operators import QUANTIZERS, is_standard, settings
from deploykit.model.weights import point_outside

__all__ = ["Emptied", "emptied"]

# Bytes; larger stubs lie outside the model, in one file per element type, as long as the longest of them.
_INLINE = 1024
_SMALL = 64


class Emptied(Struct, kw_only=True):
    """The emptied model, how many stored values were replaced and kept, and the files that hold its stubs.

    ``files`` maps a file name to the bytes of one element (one byte for two or more narrow ones) and to the file's
    length.
    """

    model: ModelProto
    replaced: int = 0
    kept: int = 0
    files: dict[str, tuple[bytes, int]] = {}


def emptied(model: ModelProto, tensor: Callable[[str], str], node: Callable[[str], str]) -> Emptied:
    """A copy without weights; ``tensor`` and ``node`` give the new names of tensors (and symbolic sizes) and of nodes.

    What exporters write beside a graph (documentation, metadata, the graph's own name) is left out.
    """
    copy = copy_of(model)
    made = Emptied(model=copy)
    for unwanted in ("training_info", "domain"):
        copy.ClearField(unwanted)
    _forget(copy)
    for body in (copy.graph, *copy.functions):
        _empty(made, body, tensor, node)
    return made


def _forget(message: Any) -> None:
    """Clear documentation, metadata and annotations at any depth."""
    for known, value in message.ListFields():
        if known.name in ("doc_string", "metadata_props", "denotation", "quantization_annotation"):
            message.ClearField(known.name)
        elif known.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _forget(inner)


def _empty(made: Emptied, body: Any, tensor: Callable[[str], str], node: Callable[[str], str]) -> None:
    """Empty one graph or function, and the graphs that its nodes run."""
    uses = dict[str, set[tuple[str, bool]]]()
    for reader in body.node:
        known = {1, 2} if reader.op_type in QUANTIZERS else settings(reader)
        for place, name in enumerate(reader.input):
            uses.setdefault(name, set()).add((reader.op_type, place in known))

    def stub(stored: TensorProto, read: set[tuple[str, bool]]) -> None:
        _stub(made, stored, read)
        stored.name = tensor(stored.name) if stored.name else ""

    for one in body.node:
        read = uses.get(one.output[0], set()) if one.op_type == "Constant" and one.output else set()
        for inner in bodies(one):
            _empty(made, inner, tensor, node)
        for attribute in one.attribute:
            for stored in _held(attribute):
                stub(stored, read)
            structure = attribute.name == "value_float" and any(is_setting for _, is_setting in read)
            if not structure and (one.op_type == "Constant" or not is_standard(one)):
                _blank(attribute)
        one.name = node(one.name) if one.name else ""
    is_graph, values = hasattr(body, "initializer"), [*body.value_info]
    if is_graph:
        body.name = "graph"
        values += [*body.input, *body.output]
        for stored in body.initializer:
            stub(stored, uses.get(stored.name, set()))
        for each in body.sparse_initializer:
            stub(each.values, set())
    for value in values:
        value.name = tensor(value.name)
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = tensor(dim.dim_param)
    for named in (*body.node, *(() if is_graph else (body,))):
        named.input[:] = [tensor(name) if name else "" for name in named.input]
        named.output[:] = [tensor(name) if name else "" for name in named.output]


def _held(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield attribute.sparse_tensor.values
    yield from (sparse.values for sparse in attribute.sparse_tensors)


def _blank(attribute: AttributeProto) -> None:
    """Overwrite the floats of an attribute with 1.0 and empty its strings: values outside of any tensor."""
    if attribute.HasField("f"):
        attribute.f = 1.0
    if attribute.HasField("s"):
        attribute.s = b""
    attribute.floats[:] = [1.0] * len(attribute.floats)
    attribute.strings[:] = [b""] * len(attribute.strings)


def _stub(made: Emptied, stored: TensorProto, read: set[tuple[str, bool]]) -> None:
    """Replace a stored value by ones unless it is structure.

    ``read`` holds each use: the operator, and whether it takes the value as a setting.
    """
    kind, name, shape = stored.data_type, stored.name, list(stored.dims)
    count, outside = prod(shape), stored.data_location == TensorProto.EXTERNAL
    small = kind in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL) and count <= _SMALL
    structure = bool(read) and all(is_setting for _, is_setting in read)
    if (structure or small) and not outside and ("DequantizeLinear", False) not in read:
        made.kept += 1
        return
    made.replaced += 1
    stored.Clear()
    stored.name, stored.data_type = name, kind
    stored.dims.extend(shape)
    if kind == TensorProto.STRING:
        stored.string_data.extend([b""] * count)
        return
    narrow = kind in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)
    element = b"\x11" if narrow else helper.tensor_dtype_to_np_dtype(kind).type(1).tobytes()
    size = (count + 1) // 2 if narrow else len(element) * count
    if size <= _INLINE:
        stored.raw_data = (element * (size // len(element) + 1))[:size]
        return
    # All stubs of a type share the beginning of one file.
    file = f"ones-{TensorProto.DataType.Name(kind).lower()}.bin"
    made.files[file] = (element, max(made.files.get(file, (b"", 0))[1], size))
    point_outside(stored, file, 0, size)

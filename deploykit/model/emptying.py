"""A copy of a model that keeps its structure and none of its weights; it reads no weight and writes nothing.

Stored values become ones of the same type and shape, except where they are structure: small integers that are no
quantized weights, factors of Resize, bounds of Range, and grids of quantizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

__all__ = ["Emptied", "emptied"]

_INLINE = 1024
"""Bytes; larger stubs lie in one file per element type, as long as the longest of them."""
_SMALL = 64
_STRUCTURE = {("Resize", 1), ("Resize", 2), ("Upsample", 1), ("Range", 0), ("Range", 1), ("Range", 2)}
_GRIDS = {(kind, place) for kind in ("QuantizeLinear", "DequantizeLinear") for place in (1, 2)}


@dataclass(slots=True, kw_only=True)
class Emptied:
    """The model, how many stored values were replaced and kept, and the files that its stubs lie in.

    ``files`` has by name the bytes of one element (one byte for two or more narrow ones) and the length.
    """

    model: ModelProto
    replaced: int = 0
    kept: int = 0
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)


def emptied(model: ModelProto, tensor: Callable[[str], str], node: Callable[[str], str]) -> Emptied:
    """The copy; ``tensor`` and ``node`` say what a tensor, or a symbolic length, and a node are called in it.

    What exporters write beside a graph (documentation, metadata, the graph's own name) is left out.
    """
    from onnx import ModelProto

    copy = ModelProto()
    copy.CopyFrom(model)
    made = Emptied(model=copy)
    for unwanted in ("doc_string", "metadata_props", "training_info", "domain"):
        copy.ClearField(unwanted)
    for body in (copy.graph, *copy.functions):
        _Work(made=made, tensor=tensor, node=node).empty(body)
    return made


@dataclass(slots=True, kw_only=True)
class _Work:
    made: Emptied
    tensor: Callable[[str], str]
    node: Callable[[str], str]

    def empty(self, body: GraphProto | FunctionProto) -> None:
        uses = _uses(body.node)
        body.ClearField("doc_string")
        body.ClearField("metadata_props")
        for node in body.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
            read = uses.get(node.output[0], set()) if node.op_type == "Constant" and node.output else set()
            for attribute in node.attribute:
                self._attribute(node, attribute, read)
            node.name = self.node(node.name) if node.name else ""
            self._rename(node.input)
            self._rename(node.output)
        for value in body.value_info:
            self._value(value)
        if not hasattr(body, "initializer"):
            self._rename(body.input)
            self._rename(body.output)
            return
        body.name = "graph"
        body.ClearField("quantization_annotation")
        for tensor in body.initializer:
            self._stub(tensor, uses.get(tensor.name, set()))
            tensor.name = self.tensor(tensor.name)
        for sparse in body.sparse_initializer:
            self._stub(sparse.values, set())
            sparse.values.name = self.tensor(sparse.values.name)
        for value in (*body.input, *body.output):
            self._value(value)

    def _attribute(self, node: NodeProto, attribute: AttributeProto, read: set[tuple[str, int]]) -> None:
        attribute.ClearField("doc_string")
        for tensor in _tensors(attribute):
            self._stub(tensor, read)
            tensor.name = self.tensor(tensor.name) if tensor.name else ""
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
            self.empty(graph)
        if node.domain in ("", "ai.onnx") and node.op_type != "Constant":
            return
        if attribute.name != "value_float" or not read & _STRUCTURE:
            # Numbers and texts that are written into a node without being a tensor.
            if attribute.HasField("f"):
                attribute.f = 1.0
            if attribute.HasField("s"):
                attribute.s = b""
            attribute.floats[:] = [1.0] * len(attribute.floats)
            attribute.strings[:] = [b""] * len(attribute.strings)

    def _rename(self, names: object) -> None:
        names[:] = [self.tensor(name) if name else "" for name in names]  # type: ignore[index,attr-defined]

    def _value(self, value: object) -> None:
        value.ClearField("doc_string")  # type: ignore[attr-defined]
        value.ClearField("metadata_props")  # type: ignore[attr-defined]
        value.name = self.tensor(value.name)  # type: ignore[attr-defined]
        for dim in value.type.tensor_type.shape.dim:  # type: ignore[attr-defined]
            if dim.dim_param:
                dim.dim_param = self.tensor(dim.dim_param)
            dim.ClearField("denotation")

    def _stub(self, tensor: TensorProto, read: set[tuple[str, int]]) -> None:
        tensor.ClearField("doc_string")
        tensor.ClearField("metadata_props")
        if _is_structure(tensor, read):
            self.made.kept += 1
            return
        self.made.replaced += 1
        count = prod(tensor.dims)
        kind = tensor.data_type
        shape, name = list(tensor.dims), tensor.name
        tensor.Clear()
        tensor.name, tensor.data_type = name, kind
        tensor.dims.extend(shape)
        element, size = _ones(kind, count)
        if not element:
            tensor.string_data.extend([b""] * count)
        elif size <= _INLINE:
            tensor.raw_data = (element * (size // len(element) + 1))[:size]
        else:
            self._outside(tensor, element, size)

    def _outside(self, tensor: TensorProto, element: bytes, size: int) -> None:
        """All stubs of a type share the beginning of one file."""
        from onnx import TensorProto

        file = f"ones-{TensorProto.DataType.Name(tensor.data_type).lower()}.bin"
        _, longest = self.made.files.get(file, (b"", 0))
        self.made.files[file] = (element, max(longest, size))
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", "0"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)


def _uses(nodes: object) -> dict[str, set[tuple[str, int]]]:
    """By tensor, as which input of which operator it is read."""
    uses: dict[str, set[tuple[str, int]]] = {}
    for node in nodes:  # type: ignore[attr-defined]
        for place, name in enumerate(node.input):
            uses.setdefault(name, set()).add((node.op_type, place))
    return uses


def _tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield attribute.sparse_tensor.values
    yield from (sparse.values for sparse in attribute.sparse_tensors)


def _is_structure(tensor: TensorProto, read: set[tuple[str, int]]) -> bool:
    from onnx import TensorProto

    if ("DequantizeLinear", 0) in read or tensor.data_location == TensorProto.EXTERNAL:
        return False
    if read and read <= _STRUCTURE | _GRIDS:
        return True
    whole = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    return tensor.data_type in whole and prod(tensor.dims) <= _SMALL


def _ones(kind: int, count: int) -> tuple[bytes, int]:
    """One element, or one byte of narrow ones, and the length of all; no bytes for texts."""
    from onnx import TensorProto, helper

    if kind == TensorProto.STRING:
        return b"", 0
    if kind in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return b"\x11", (count + 1) // 2
    element = helper.tensor_dtype_to_np_dtype(kind).type(1).tobytes()
    return element, len(element) * count

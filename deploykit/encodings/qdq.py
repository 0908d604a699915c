"""Reads the encodings that the QuantizeLinear and DequantizeLinear nodes of an ONNX model stand for.

Entries carry the name their tensor has once those nodes are gone; the model is not changed. A scale that is computed
at run time is no encoding and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from deploykit.encodings import grids
from deploykit.encodings.differences import compare_values
from deploykit.encodings.values import Array, Encoding, EncodingSet, Value
from deploykit.errors import InputError
from deploykit.graph.ops import DEFAULT_DOMAINS, ROLES

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

__all__ = ["QDQ_VERSION", "read_qdq"]

QDQ_VERSION = "qdq"
"""What stands for the version in a set that was read from a model."""

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_DOMAINS = (*DEFAULT_DOMAINS, "com.microsoft")
_SUFFIXES = ("_q", "_quantized")
"""What AIMET and ONNX Runtime append to the name of a weight whose integers they store."""

ReadTensor = Callable[[str], "np.ndarray[Any, Any] | None"]
"""Gives the values of an initializer that is stored outside of the model, or None."""


def read_qdq(model: ModelProto, *, source: str = "model", read_tensor: ReadTensor | None = None) -> EncodingSet:
    """Per-tensor, per-channel, blockwise, LPBQ and float8 encodings of the main graph, placed, in node order.

    ``source`` names the model in messages. Scales are float64 of what is stored. Scales kept outside of the model are
    asked of ``read_tensor``. Raises InputError for scales that are not stored, not positive, or disagree.
    """
    graph = _Graph.of(model, source, read_tensor)
    found: dict[str, Encoding] = {}
    for node in graph.quantizers():
        for entry in _entries(graph, node):
            known = found.get(entry.name)
            if known is not None and compare_values(known.value, entry.value):
                graph.fail(node, f"quantizes {entry.name!r} a second time, onto another grid")
            found.setdefault(entry.name, entry)
    return EncodingSet(version=QDQ_VERSION, entries=found, source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """The parts of a graph that reading needs, by name."""

    nodes: list[NodeProto]
    stored: Mapping[str, TensorProto]
    producers: Mapping[str, NodeProto]
    readers: Mapping[str, list[tuple[NodeProto, int]]]
    outputs: frozenset[str]
    ranks: Mapping[str, int]
    types: Mapping[str, int]
    source: str
    read_tensor: ReadTensor | None = None
    arrays: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ModelProto, source: str, read_tensor: ReadTensor | None) -> _Graph:
        graph = model.graph
        stored = {tensor.name: tensor for tensor in graph.initializer}
        readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in graph.node:
            for position, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, position))
            if node.op_type == "Constant":
                values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
                stored.update(zip(node.output, values, strict=False))
        infos = (*graph.input, *graph.output, *graph.value_info)
        return cls(
            nodes=list(graph.node),
            stored=stored,
            producers={name: node for node in graph.node for name in node.output},
            readers=readers,
            outputs=frozenset(output.name for output in graph.output),
            ranks={i.name: len(i.type.tensor_type.shape.dim) for i in infos if i.type.tensor_type.HasField("shape")},
            types={i.name: i.type.tensor_type.elem_type for i in infos},
            source=source,
            read_tensor=read_tensor,
        )

    def quantizers(self) -> Iterator[NodeProto]:
        for node in self.nodes:
            if node.op_type in (_Q, _DQ) and node.domain in _DOMAINS:
                if len(node.input) < 2 or not node.output:
                    self.fail(node, "has no scale")
                yield node

    def rank(self, name: str) -> int | None:
        tensor = self.stored.get(name)
        return len(tensor.dims) if tensor is not None else self.ranks.get(name)

    def values(self, node: NodeProto, name: str) -> Array:
        """The stored values behind an input, as float64."""
        if name not in self.arrays:
            self.arrays[name] = self._load(node, name)
        return self.arrays[name]

    def _load(self, node: NodeProto, name: str) -> Array:
        from onnx import TensorProto, numpy_helper

        tensor = self.stored.get(name)
        if tensor is None:
            self.fail(node, f"reads {name!r}, which is computed at run time", why="an encoding holds constants")
        if tensor.data_location == TensorProto.EXTERNAL:
            outside = self.read_tensor(name) if self.read_tensor is not None else None
            if outside is None:
                self.fail(node, f"reads {name!r}, which is stored outside of the model and was not given")
            return np.asarray(outside).astype(np.float64)
        try:
            return numpy_helper.to_array(tensor).astype(np.float64)
        except (ValueError, TypeError) as error:
            self.fail(node, f"reads {name!r}, which cannot be decoded", why=str(error))

    def fail(self, node: NodeProto, complaint: str, *, why: str = "") -> NoReturn:
        label = node.name or (node.output[0] if node.output else "?")
        raise InputError(f"{self.source}: {node.op_type} {label!r} {complaint}", why=why)


def _entries(graph: _Graph, node: NodeProto) -> Iterator[Encoding]:
    """The entry that a node stands for; none for the second half of a pair and for scales of scales."""
    maker = graph.producers.get(node.input[0])
    if node.op_type == _DQ and maker is not None and maker.op_type == _Q:
        if compare_values(_value(graph, node, maker.input[0]), _value(graph, maker, maker.input[0])):
            graph.fail(node, f"has another grid than the QuantizeLinear {maker.name!r} it reads from")
        return
    if node.op_type == _DQ and _makes_scales(graph, node):
        return
    tensor = node.input[0]
    yield Encoding(name=_name(graph, node), value=_value(graph, node, tensor), is_param=_is_param(graph, node))


def _makes_scales(graph: _Graph, node: NodeProto) -> bool:
    readers = graph.readers.get(node.output[0], [])
    return bool(readers) and all(reader.op_type in (_Q, _DQ) and position == 1 for reader, position in readers)


def _name(graph: _Graph, node: NodeProto) -> str:
    if node.op_type == _DQ:
        return _plain_name(graph, node)
    pairs = [reader for reader, position in graph.readers.get(node.output[0], []) if position == 0]
    final = [pair.output[0] for pair in pairs if pair.op_type == _DQ and pair.output[0] in graph.outputs]
    return str(final[0] if final and node.input[0] not in graph.stored else node.input[0])


def _plain_name(graph: _Graph, node: NodeProto) -> str:
    """The name that stored integers would have as floats: their own without the usual suffix, else the output's."""
    for suffix in _SUFFIXES:
        base = node.input[0].removesuffix(suffix)
        if base and base != node.input[0] and base not in graph.stored and base not in graph.producers:
            return str(base)
    return str(node.output[0])


def _is_param(graph: _Graph, node: NodeProto) -> bool:
    """True for stored values that end where an op expects a weight, a bias or a norm parameter."""
    if node.input[0] not in graph.stored:
        return False
    ends = _floating_readers(graph, node)
    named = any(position in ROLES.get(reader.op_type, {}) for reader, position in ends)
    return named or graph.stored[node.input[0]].data_type == _INT32


def _floating_readers(graph: _Graph, node: NodeProto) -> list[tuple[NodeProto, int]]:
    pairs = graph.readers.get(node.output[0], [])
    if node.op_type == _DQ:
        return pairs
    return [end for pair, _ in pairs if pair.op_type == _DQ for end in graph.readers.get(pair.output[0], [])]


def _value(graph: _Graph, node: NodeProto, tensor: str) -> Value:
    where = f"{graph.source}: {tensor!r}"
    dtype = _dtype(graph, node)
    block_size = _attribute(node, "block_size", 0)
    scale_node = graph.producers.get(node.input[1])
    if scale_node is not None and scale_node.op_type == _DQ:
        return _lpbq(graph, node, scale_node, where, dtype)
    scale = graph.values(node, node.input[1])
    if scale.shape == (1,) and not block_size:
        scale = scale.reshape(())
    axis, block_axis = _axes(graph, node, tensor, scale, blocked=bool(block_size))
    size = block_size if block_size and scale.ndim > 1 else None
    if dtype in grids.FLOAT8_TYPES:
        return grids.float8(where, dtype=dtype, scale=scale, axis=axis, block_axis=block_axis, block_size=size)
    grid = grids.split_dtype(dtype)
    if grid is None:
        graph.fail(node, f"makes {dtype or 'a type that is not stated'}, which is no grid that encodings know")
    zeros = graph.values(node, node.input[2]) if _has_zero_point(node) else np.zeros(scale.shape)
    return grids.affine(
        where,
        bits=grid[0],
        signed=grid[1],
        scale=scale,
        zero_point=zeros.reshape(scale.shape) if zeros.size == scale.size else zeros,
        axis=axis,
        block_axis=block_axis,
        block_size=size,
    )


def _axes(graph: _Graph, node: NodeProto, tensor: str, scale: Array, *, blocked: bool) -> tuple[int | None, int | None]:
    """``(channel axis, block axis)``; a negative axis stays so where the rank is not known."""
    if not scale.ndim:
        return None, None
    axis = _attribute(node, "axis", 1)
    rank = scale.ndim if blocked and scale.ndim > 1 else graph.rank(tensor)
    if rank is not None:
        axis = grids.normal_axis(axis, rank, f"{graph.source}: {tensor!r}")
    if blocked and scale.ndim > 1:
        return grids.other_axis(scale.shape, axis), axis
    if scale.ndim != 1:
        graph.fail(node, f"has scales of {scale.ndim} dimensions, but no block size")
    return axis, None


def _lpbq(graph: _Graph, node: NodeProto, scale_node: NodeProto, where: str, dtype: str) -> Value:
    """Integer block scales that are dequantized by a float scale per channel."""
    grid, size = grids.split_dtype(dtype), _attribute(node, "block_size", 0)
    blocks = graph.values(scale_node, scale_node.input[0])
    channels = graph.values(scale_node, scale_node.input[1])
    zeros = [graph.values(owner, owner.input[2]) for owner in (node, scale_node) if _has_zero_point(owner)]
    if grid is None or not grid[1] or not size or any(zero.any() for zero in zeros) or blocks.ndim < 2:
        graph.fail(node, "has quantized scales, but is not a symmetric blockwise weight", why="only LPBQ is known")
    axis = grids.normal_axis(_attribute(scale_node, "axis", 1), blocks.ndim, where)
    if channels.size != blocks.shape[axis]:
        graph.fail(scale_node, f"has {channels.size} scales for {blocks.shape[axis]} channels")
    return grids.lpbq(
        where,
        bits=grid[0],
        decompressed_bits=2 * grid[0],
        channel_scale=channels.reshape([blocks.shape[axis] if dim == axis else 1 for dim in range(blocks.ndim)]),
        block_scale=blocks,
        block_size=size,
        axis=axis,
        block_axis=grids.normal_axis(_attribute(node, "axis", 1), blocks.ndim, where),
        placed=True,
    )


_INT32 = 6
_UINT8 = 2


def _dtype(graph: _Graph, node: NodeProto) -> str:
    """The integers' type, in ONNX's lower case: of the zero point, the attribute, or the stored integers."""
    from onnx import TensorProto

    zero = graph.stored.get(node.input[2]) if _has_zero_point(node) else None
    if zero is not None:
        number = zero.data_type
    elif node.op_type == _Q:
        number = _attribute(node, "output_dtype", 0) or _UINT8
    elif (maker := graph.producers.get(node.input[0])) is not None and maker.op_type == _Q:
        return _dtype(graph, maker)
    else:
        integers = graph.stored.get(node.input[0])
        number = integers.data_type if integers is not None else graph.types.get(node.input[0], 0)
    try:
        return str(TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return ""


def _has_zero_point(node: NodeProto) -> bool:
    return len(node.input) > 2 and bool(node.input[2])


def _attribute(node: NodeProto, name: str, default: int) -> int:
    found: AttributeProto | None = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else int(found.i)

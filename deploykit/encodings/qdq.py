"""Reads the encodings that the QuantizeLinear and DequantizeLinear nodes of a model stand for, and removes the nodes.

It reads per-tensor, per-channel, blockwise, LPBQ and float8 grids whose scales are stored. Entries carry the name that
their tensor has once those nodes are gone. A scale that is computed at run time is no encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from msgspec import Struct
from onnx import ModelProto, NodeProto, helper, numpy_helper

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.differences import compare_values
from deploykit.encodings.insert_qdq import dequantized
from deploykit.encodings.place import encoded_bounds
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Float8, Lpbq, Value, on_axis
from deploykit.errors import InputError
from deploykit.findings.records import Record, field, replace
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label, operand
from deploykit.model.operators import CONTRIBUTED, DEFAULT_DOMAINS, QUANTIZERS, ROLES
from deploykit.model.patterns import PAIRS
from deploykit.model.ranges import Arithmetic, graph_bounds
from deploykit.model.values import dtype_name
from deploykit.model.weights import element_type, is_unreadable, stored_values

__all__ = ["DEQUANTIZE", "QDQ_VERSION", "QUANTIZE", "extract_qdq", "read_qdq"]


class PlainNames(Struct, kw_only=True):
    """One name for the tensors that a pair reads and makes.

    ``copies`` maps an output to the tensor with the same values, where both names must stay: that tensor is an input or
    output too.
    """

    graph: GraphCopy
    copies: dict[str, str] = {}
    _read_as: dict[str, str] = {}

    def final(self, name: str) -> str:
        """The name that a tensor of the graph has when all pairs are gone."""
        while name in self._read_as:
            name = self._read_as[name]
        return name

    def say(self, name: str, plain: str) -> None:
        """Let the readers of ``name`` read ``plain``, which may be the same."""
        if name != plain:
            self._read_as[name] = plain

    def join(self, read: str, made: str) -> str:
        """Give both ends of a pair one name, and return it.

        An output of the graph keeps its name, and the tensor before the pair gets that name.
        """
        name = self.final(read)
        if made not in self.graph.outputs:
            self._read_as[made] = name
        elif name in {*self.graph.inputs, *self.graph.outputs, *self.graph.stored}:
            self.copies[made] = self._read_as[made] = name
        else:
            self._read_as[name] = name = made
        return name


QUANTIZE, DEQUANTIZE = QUANTIZERS
_DOMAINS = (*DEFAULT_DOMAINS, CONTRIBUTED)
_SUFFIXES = ("_q", "_quantized")
"""The suffixes that AIMET and ONNX Runtime append to the name of a weight whose integers they store."""

ReadTensor = Callable[[str], "np.ndarray[Any, Any] | None"]
"""A function that gives the values of an initializer that is stored outside of the model, or None."""


class QdqGraph(Record):
    """A graph with the known numbers of its tensors. ``source`` names the model in messages.

    ``read_tensor`` gives scales outside of the model. Methods raise InputError for what is no encoding.
    """

    graph: GraphCopy
    source: str
    read_tensor: ReadTensor | None = None
    arrays: dict[str, Array] = field(default_factory=dict)

    def fail(self, node: NodeProto, complaint: str, *, why: str = "") -> NoReturn:
        """Raise an InputError about one node."""
        name = node.name or (node.output[0] if node.output else "?")
        raise InputError(f"{self.source}: {node.op_type} {name!r} {complaint}", why=why)

    def quantizers(self) -> Iterator[NodeProto]:
        """Every QuantizeLinear and DequantizeLinear, in graph order."""
        for node in self.graph.nodes:
            if node.op_type in QUANTIZERS and node.domain in _DOMAINS:
                if len(node.input) < 2 or not node.output:
                    self.fail(node, "has no scale")
                yield node

    def first_of_pair(self, node: NodeProto) -> NodeProto | None:
        """The QuantizeLinear that a DequantizeLinear undoes; None for one of stored integers.

        InputError where grids differ.
        """
        maker = self.graph.maker(node.input[0])
        if maker is None or maker.op_type != QUANTIZE:
            return None
        if compare_values(self.value(node, maker.input[0]), self.value(maker)):
            self.fail(node, f"has another grid than {label(maker)!r} it reads from")
        return maker

    def makes_scales(self, node: NodeProto) -> bool:
        """True for a DequantizeLinear whose result is read only as a scale of other quantizers, as in LPBQ."""
        uses = self.graph.uses(node.output[0])
        return bool(uses) and all(reader.op_type in QUANTIZERS and position == 1 for reader, position in uses)

    def plain_name(self, node: NodeProto) -> str:
        """The name for the float values of the integers that a node reads.

        It is the integers' name without the usual suffix, else that of the node's output.
        """
        for suffix in _SUFFIXES:
            base = node.input[0].removesuffix(suffix)
            if base and base != node.input[0] and base not in self.graph.stored and base not in self.graph.makers:
                return str(base)
        return str(node.output[0])

    def is_param(self, node: NodeProto) -> bool:
        """True for stored values that an operator reads as a weight, a bias or a norm parameter, or that are int32."""
        stored = self.graph.stored.get(node.input[0])
        if stored is None:
            return False
        ends = self.graph.uses(node.output[0])
        if node.op_type == QUANTIZE:
            ends = [end for pair, _ in ends if pair.op_type == DEQUANTIZE for end in self.graph.uses(pair.output[0])]
        named = any(position in ROLES.get(reader.op_type, {}) for reader, position in ends)
        return named or stored.data_type == element_type("int32")

    def value(self, node: NodeProto, tensor: str = "") -> Value:
        """The grid of one node, for the tensor that it reads or for ``tensor``."""
        tensor = tensor or node.input[0]
        where = f"{self.source}: {tensor!r}"
        dtype = self._dtype(node)
        blocked = int(attribute(node, "block_size", 0))
        scale_node = self.graph.maker(node.input[1])
        if scale_node is not None and scale_node.op_type == DEQUANTIZE:
            return self._lpbq(node, scale_node, where, dtype)
        scale = self._numbers(node, node.input[1])
        if scale.shape == (1,) and not blocked:
            scale = scale.reshape(())
        axis, block_axis = self._axes(node, tensor, scale, blocked=bool(blocked))
        size = blocked if blocked and scale.ndim > 1 else None
        if dtype in grids.FLOAT8_TYPES:
            return grids.checked(
                where, Float8(dtype=dtype, scale=scale, axis=axis, block_axis=block_axis, block_size=size)
            )
        grid = grids.INTEGER_TYPES.get(dtype)
        if grid is None:
            self.fail(node, f"makes {dtype or 'a type that is not stated'}, which is no grid that encodings know")
        zeros = self._numbers(node, node.input[2]) if operand(node, 2) else np.zeros(scale.shape)
        value = Affine(
            bits=grid[0],
            signed=grid[1],
            scale=scale,
            zero_point=zeros.reshape(scale.shape) if zeros.size == scale.size else zeros,
            axis=axis,
            block_axis=block_axis,
            block_size=size,
        )
        return grids.checked(where, value)

    def _axes(self, node: NodeProto, tensor: str, scale: Array, *, blocked: bool) -> tuple[int | None, int | None]:
        """``(channel axis, block axis)``; a negative axis stays so where the rank is not known."""
        if not scale.ndim:
            return None, None
        axis = int(attribute(node, "axis", 1))
        shape = scale.shape if blocked and scale.ndim > 1 else self.graph.shape(tensor)
        if shape is not None:
            axis = grids.normal_axis(axis, len(shape), f"{self.source}: {tensor!r}")
        if blocked and scale.ndim > 1:
            return grids.other_axis(scale.shape, axis), axis
        if scale.ndim != 1:
            self.fail(node, f"has scales of {scale.ndim} dimensions, but no block size")
        return axis, None

    def _lpbq(self, node: NodeProto, scale_node: NodeProto, where: str, dtype: str) -> Value:
        """The LPBQ grid of integer block scales that are dequantized by a float scale per channel."""
        grid, size = grids.INTEGER_TYPES.get(dtype), int(attribute(node, "block_size", 0))
        blocks = self._numbers(scale_node, scale_node.input[0])
        channels = self._numbers(scale_node, scale_node.input[1])
        zeros = [self._numbers(owner, owner.input[2]) for owner in (node, scale_node) if operand(owner, 2)]
        if grid is None or not grid[1] or not size or any(zero.any() for zero in zeros) or blocks.ndim < 2:
            self.fail(node, "has quantized scales, but is not a symmetric blockwise weight", why="only LPBQ is known")
        axis = grids.normal_axis(int(attribute(scale_node, "axis", 1)), blocks.ndim, where)
        if channels.size != blocks.shape[axis]:
            self.fail(scale_node, f"has {channels.size} scales for {blocks.shape[axis]} channels")
        value = Lpbq(
            bits=grid[0],
            decompressed_bits=2 * grid[0],
            channel_scale=on_axis(channels, axis, blocks.ndim),
            block_scale=blocks,
            block_size=size,
            axis=axis,
            block_axis=grids.normal_axis(int(attribute(node, "axis", 1)), blocks.ndim, where),
        )
        return grids.checked(where, value)

    def _dtype(self, node: NodeProto) -> str:
        """The integers' type, in ONNX's lower case: from the zero point, the attribute, or the stored integers."""
        zero = self.graph.stored.get(operand(node, 2))
        if zero is not None:
            return dtype_name(zero.data_type)
        if node.op_type == QUANTIZE:
            return dtype_name(int(attribute(node, "output_dtype", 0)) or element_type("uint8"))
        maker = self.graph.maker(node.input[0])
        if maker is not None and maker.op_type == QUANTIZE:
            return self._dtype(maker)
        return self.graph.dtype(node.input[0])

    def _numbers(self, node: NodeProto, name: str) -> Array:
        """The stored values behind an input, as float64."""
        if name in self.arrays:
            return self.arrays[name]
        tensor = self.graph.stored.get(name)
        if tensor is None:
            self.fail(node, f"reads {name!r}, which is computed at run time", why="an encoding holds constants")
        try:
            if not is_unreadable(tensor):
                values = stored_values(tensor)
            elif self.read_tensor is None or (outside := self.read_tensor(name)) is None:
                self.fail(node, f"reads {name!r}, which is stored outside of the model and was not given")
            else:
                values = np.asarray(outside)
            self.arrays[name] = values.astype(np.float64)
        except (ValueError, TypeError) as error:
            self.fail(node, f"reads {name!r}, which cannot be decoded", why=str(error))
        return self.arrays[name]


QDQ_VERSION = "qdq"
"""The version of an encoding set that was read from a QDQ model."""


def read_qdq(model: ModelProto, *, source: str = "model", read_tensor: ReadTensor | None = None) -> EncodingSet:
    """Per-tensor, per-channel, blockwise, LPBQ and float8 encodings of the main graph, placed, in node order.

    ``source`` names the model in messages. Scales are float64 of what is stored. Scales kept outside of the model are
    asked of ``read_tensor``. Raises InputError for scales that are not stored, not positive, or disagree.
    """
    graph = QdqGraph(graph=view_of(model), source=source, read_tensor=read_tensor)
    names = PlainNames(graph=graph.graph)
    for node in graph.quantizers():
        quantize = graph.first_of_pair(node)
        if quantize is not None:
            names.join(quantize.input[0], node.output[0])
    found = dict[str, Encoding]()
    for node in graph.quantizers():
        # The second half of a pair says nothing new, and scales of scales belong to the entry of their weight.
        if graph.first_of_pair(node) is not None or (node.op_type == DEQUANTIZE and graph.makes_scales(node)):
            continue
        if graph.graph.maker(node.input[1], "DynamicQuantizeLinear") is not None:  # of a CPU's dynamic quantization
            continue
        name = graph.plain_name(node) if node.op_type == DEQUANTIZE else names.final(node.input[0])
        entry = Encoding(name, graph.value(node), is_param=graph.is_param(node))
        known = found.setdefault(entry.name, entry)
        if compare_values(known.value, entry.value):
            graph.fail(node, f"quantizes {entry.name!r} a second time, onto another grid")
    found |= {copy: replace(found[name], name=copy) for copy, name in names.copies.items()}
    return EncodingSet(QDQ_VERSION, found, source=source)


class Extracted(Record):
    """The float model, its encodings (placed), and the nodes that could not be taken out, with the reason."""

    model: ModelProto
    encodings: EncodingSet
    kept: dict[str, str]


def extract_qdq(model: ModelProto, *, saturate: bool = False) -> Extracted:
    """Remove every pair and every dequantized constant. Weights become float32 initializers on their grid.

    A pair that is no encoding, such as one with a grid computed at run time, stays and is reported. ``saturate`` is for
    running the model without its pairs: a Clip computes what only their saturation did.
    """
    graph = GraphCopy(model)
    qdq, names = QdqGraph(graph=graph, source="the model"), PlainNames(graph=graph)
    entries = dict[str, Encoding]()
    weights = dict[str, Any]()
    kept = dict[str, str]()
    gone, ends = set[int](), dict[str, int]()
    for node in qdq.quantizers():
        if node.op_type != DEQUANTIZE:
            continue
        try:
            if not qdq.makes_scales(node):  # scales are left to their reader
                value, quantize = qdq.value(node), qdq.first_of_pair(node)
                if quantize is not None:
                    plain = names.final(quantize.input[0])
                    known = entries.get(plain)
                    if known is not None and compare_values(known.value, value):
                        qdq.fail(node, f"quantizes {plain!r} a second time, onto another grid")
                    entries.pop(plain, None)  # of a pair before this one
                    name = names.join(plain, node.output[0])  # one for both ends
                    if len(graph.uses(quantize.input[0])) == 1 and node.input[1] in graph.stored:
                        ends[name] = graph.stored[node.input[1]].data_type
                else:
                    if node.input[0] not in graph.stored:
                        source = graph.maker(node.input[0])
                        qdq.fail(node, f"reads integers from {'the graph input' if source is None else label(source)}")
                    name = qdq.plain_name(node)
                    name = str(node.output[0]) if name in weights else name  # the same integers, dequantized twice
                    assert not isinstance(value, Float)  # no DequantizeLinear makes a plain cast
                    integers = stored_values(graph.stored[node.input[0]]).astype(np.float32)
                    weights[name] = dequantized(integers, value)
                    names.say(node.output[0], name)
                entries[name] = Encoding(name, value, is_param=qdq.is_param(quantize or node))
            gone.add(id(node))
        except InputError as error:
            kept[label(node)] = error.what.removeprefix("the model: ")
    for node in graph.nodes:  # a QuantizeLinear whose integers somebody else reads stays
        is_hidden = node.op_type == QUANTIZE and node.output[0] not in graph.outputs
        if is_hidden and gone.issuperset(map(id, graph.readers(node.output[0]))):
            gone.add(id(node))
    # The nodes that remain read and make what they would without the removed pairs, whose scales and integers are
    # dropped, and so is what leads nowhere.
    graph.model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    left = [node for node in graph.nodes if id(node) not in gone]
    for node in left:
        for used in (node.input, node.output):
            for position, name in enumerate(used):
                used[position] = names.final(name)
    left += [
        helper.make_node("Identity", [name], [copy], name=graph.fresh(copy)) for copy, name in names.copies.items()
    ]
    graph.prune(left)
    del graph.model.graph.value_info[:]
    entries |= {copy: replace(entries[name], name=copy) for copy, name in names.copies.items()}
    encodings = EncodingSet(QDQ_VERSION, dict(sorted(entries.items())))
    if saturate:
        _saturate(graph, encodings, {names.final(name): dtype for name, dtype in ends.items()})
    return Extracted(model=graph.model, encodings=encodings, kept=kept)


def _saturate(graph: GraphCopy, encodings: EncodingSet, types: Mapping[str, int]) -> None:
    """Put a Clip where only the saturation of a pair bounded a tensor that nothing else reads unquantized.

    ONNX Runtime's quantizer leaves out a Relu or Clip in front of a pair whose grid begins at zero. Behind a layer or a
    sum with results of both signs such a grid stands for one: without the pair, the values it cut off would go on. So
    would the infinity of a Log whose small summand became zero on its grid.
    """
    limits = {
        entry.name: entry.value.ends
        for entry in encodings
        if entry.name in types and isinstance(entry.value, Affine) and entry.value.scale.size == 1
    }
    bounds, arithmetic, nodes = graph_bounds(graph, encoded_bounds(encodings)), Arithmetic(graph), list[NodeProto]()
    for node in list(graph.nodes):
        nodes.append(node)
        name = node.output[0] if node.output else ""
        if name not in limits or node.op_type not in _FUSED_WITH_CLIP | _WITH_POLES:
            continue
        (low, high), reach = limits[name], next(arithmetic.outputs(node, bounds))
        is_cut = low == 0 and reach[0] < -_ROUNDING * high
        if not (is_cut if node.op_type in _FUSED_WITH_CLIP else math.isinf(reach[0] - reach[1])):
            continue
        node.output[0] = graph.fresh(f"{name}_before_clip")
        ends: dict[str, Any] = {"min": low, "max": high}
        stored = list[str]()
        if graph.opset >= 11:  # where the ends are inputs
            dtype = helper.tensor_dtype_to_np_dtype(types[name])
            stored = [graph.store(f"{name}_{end}", np.asarray(value, dtype)) for end, value in ends.items()]
            ends = {}
        nodes.append(helper.make_node("Clip", [node.output[0], *stored], [name], graph.fresh(f"{name}_clip"), **ends))
    graph.set_nodes(nodes)


_FUSED_WITH_CLIP = frozenset().union(*(kind.makers for kind in PAIRS if kind.name in ("Clip", "Relu")))
_WITH_POLES = frozenset({"Div", "Log", "Pow", "Reciprocal"})
_ROUNDING = 0.01  # of a grid's range: bounds made of grids, as of 1 + Erf, end a few steps beside zero

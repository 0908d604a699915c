"""Writes encodings into a float model as QuantizeLinear and DequantizeLinear nodes.

Every quantized tensor is read through its own pair, weights are stored as integers, and biases as int32 where that is
asked for. Weights are rounded as AIMET does: ``floor(x / scale - offset + 1/2)`` in float32, halves upward, clamped to
the grid. It derives no encoding: which tensors need one is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from onnx import ModelProto, NodeProto, helper

from deploykit.encodings.formats.differences import to_unsigned
from deploykit.encodings.place import needed_opset
from deploykit.encodings.values import Affine, Array, EncodingSet, Float, Float8, Lpbq, on_axis
from deploykit.findings.records import Numbers, Record, Shape, replace
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import copy_of, operand, opset_of, raise_opset
from deploykit.model.operators import CONTRIBUTED, QUANTIZERS, Trait, has, ops, settings
from deploykit.model.weights import element_type, numpy_type, stored_values

__all__ = ["dequantized", "insert_qdq"]


class QuantizedConstant(Record, eq=False, kw_only=False):
    """Integers of a weight with the grid that gives them meaning.

    ``scale`` and ``zero_point`` are 0-d per tensor, 1-d along ``axis`` per channel, and of the tensor's rank per block,
    where ``axis`` is the block axis. ``channel_scale`` (1-d along ``channel_axis``) is set for LPBQ only: then
    ``scale`` holds the whole-numbered block scales.
    """

    dtype: str
    values: Numbers
    scale: Numbers
    zero_point: Numbers
    axis: int | None
    block_size: int | None = None
    channel_scale: Numbers | None = None
    channel_axis: int | None = None


def quantize_constant(values: Numbers, encoding: Affine | Lpbq) -> QuantizedConstant:
    """Quantize a weight; the encoding must be placed on a graph, and its scale must fit the tensor's shape.

    Raises ValueError with the reason when it does not fit, or when ONNX has no type for the grid.
    """
    if isinstance(encoding, Lpbq):
        if encoding.bits != 4 or encoding.axis is None or encoding.block_axis is None:
            raise ValueError("LPBQ is understood for 4-bit weights with known axes only")
        channel = encoding.channel_scale.reshape(-1)
        blocks = _whole_blocks(values.shape, encoding.block_scale, encoding)
        lowest = -(1 << (encoding.bits - 1))
        sizes = blocks * on_axis(channel, encoding.axis, values.ndim)
        grid = np.repeat(sizes, encoding.block_size, encoding.block_axis)
        return QuantizedConstant(
            encoding.dtype,
            _steps(values, grid, -lowest, encoding.bits) + lowest,
            scale=blocks.astype(np.float32),
            zero_point=np.zeros(blocks.shape, np.int64),
            axis=encoding.block_axis,
            block_size=encoding.block_size,
            channel_scale=channel.astype(np.float32),
            channel_axis=encoding.axis,
        )
    if encoding.bits not in (4, 8, 16, 32):
        raise ValueError(f"ONNX Runtime stores no {encoding.bits}-bit integers")
    if np.any(encoding.zero_point != np.rint(encoding.zero_point)):
        raise ValueError("a shifted (fractional) zero point cannot be stored")
    scale, zero = (_whole_blocks(values.shape, array, encoding) for array in (encoding.scale, encoding.zero_point))
    shift = _full(values.shape, zero - encoding.lowest, encoding)  # distance of the real zero from the lowest integer
    steps = _steps(values, _full(values.shape, scale, encoding), shift, encoding.bits)
    return QuantizedConstant(
        encoding.dtype,
        steps + encoding.lowest,
        scale=scale.astype(np.float32),
        zero_point=zero.astype(np.int64),
        axis=encoding.axis if encoding.block_size is None else encoding.block_axis,
        block_size=encoding.block_size,
    )


def dequantized(integers: Numbers, encoding: Affine | Lpbq | Float8) -> Numbers:
    """The float32 values that the integers of a weight stand for; the encoding must be placed."""
    shape = integers.shape
    if isinstance(encoding, Float8):
        return np.asarray(integers * _full(shape, encoding.scale, encoding), np.float32)
    scale = _full(shape, encoding.scale.astype(np.float32), encoding)
    zero = 0.0 if isinstance(encoding, Lpbq) else _full(shape, encoding.zero_point, encoding)
    return np.asarray((integers - zero) * scale, np.float32)


def _whole_blocks(shape: Shape, numbers: Array, encoding: Affine | Lpbq) -> Array:
    """Blockwise numbers in full length along every axis but the block one, as ONNX wants; encodings may have 1 there.

    Raises ValueError where they do not fit the shape.
    """
    if encoding.block_size is None or encoding.block_axis is None:
        return numbers
    axis, size = encoding.block_axis, encoding.block_size
    wanted = tuple(dim // size if i == axis else dim for i, dim in enumerate(shape))
    try:
        return np.ascontiguousarray(np.broadcast_to(numbers, wanted))
    except ValueError:
        raise ValueError(f"scales of shape {list(numbers.shape)} do not fit a tensor of {list(shape)}") from None


def _steps(values: Numbers, grid: Numbers, shift: Any, bits: int) -> Numbers:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = values.astype(np.float32) / grid.astype(np.float32) + np.asarray(shift, np.float32)
        rounded = np.floor(scaled + np.float32(0.5))
    top = float((1 << bits) - 1)
    return np.asarray(np.clip(np.nan_to_num(rounded, nan=0.0, posinf=top, neginf=0.0), 0, top), np.int64)


def _full(shape: Shape, numbers: Numbers, encoding: Affine | Lpbq | Float8) -> Numbers:
    """Numbers of an encoding's granularity, shaped to broadcast against the tensor."""
    if encoding.block_size is not None and encoding.block_axis is not None:
        return np.repeat(numbers, encoding.block_size, axis=encoding.block_axis)
    if numbers.ndim == 0 or encoding.axis is None:
        return numbers
    return on_axis(numbers, encoding.axis, len(shape))


Bias: TypeAlias = Literal["float", "encoded", "int32"]

_BIASED = ops(Trait.TAKES_BATCHNORM) | {"LayerNormalization"}


class QdqModel(Record):
    """The quantized model. ``placed`` maps each quantized tensor to its type, ``stored`` to the name of its integers.

    ``activations`` are the quantized tensors computed at run time, and ``skipped`` gives for a tensor left float the
    reason.
    """

    model: ModelProto
    placed: dict[str, str]
    stored: dict[str, str]
    activations: frozenset[str]
    skipped: Mapping[str, str]


def insert_qdq(
    model: ModelProto,
    encodings: EncodingSet,
    *,
    bias: Bias = "float",
    unsigned_activations: bool = True,
    requantize: Mapping[tuple[str, int], Affine] | None = None,
    first: Mapping[str, Affine] | None = None,
) -> QdqModel:
    """A QDQ model made of a float model and its encodings, which must be placed on it.

    ``bias``: ``float`` leaves the biases of Conv, ConvTranspose and Gemm alone, ``encoded`` stores those that have an
    int32 entry, ``int32`` stores all with the scale the multiplication gives (input scale times weight scale).
    ``unsigned_activations`` writes signed activation grids as the same unsigned ones.
    ``requantize`` gives a node (by its first output) another grid for the input at a position, through a pair of its
    own; ``first`` quantizes a tensor to another grid before its own, so that its producer writes that one.
    Graph inputs and outputs stay float. 16-bit and 4-bit types need opset 21 or the com.microsoft domain; blocks need
    opset 21, to which the model is raised.
    """
    copy, domain = raise_opset(copy_of(model), needed_opset(encodings)), ""
    if opset_of(copy) < 21 and any(getattr(entry.value, "bits", 0) == 16 for entry in encodings):
        domain = CONTRIBUTED
        if not opset_of(copy, CONTRIBUTED):
            copy.opset_import.add(domain=CONTRIBUTED, version=1)
    work = _Insertion(
        graph=GraphCopy(copy, copy=False),
        encodings=encodings,
        domain=domain,
        bias=bias,
        unsigned=unsigned_activations,
        requantize=requantize or {},
        first=first or {},
    )
    return work.insert()


class _Insertion(Struct, kw_only=True):
    """A graph while pairs are put into it.

    ``read_as`` has the new names of tensors that are read, ``nodes`` the nodes so far.
    """

    graph: GraphCopy
    encodings: EncodingSet
    domain: str
    bias: Bias
    unsigned: bool
    requantize: Mapping[tuple[str, int], Affine]
    first: Mapping[str, Affine]
    read_as: dict[str, str] = {}
    stands_for: dict[str, str] = {}
    biases: dict[tuple[str, bytes], str] = {}
    placed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    nodes: list[NodeProto] = []

    def insert(self) -> QdqModel:
        graph = self.graph
        constants = dict(graph.stored)
        for value in list(graph.model.graph.input):
            if value.name not in constants:
                self._quantize_activation(value.name)
        for node in list(graph.nodes):
            plain = settings(node)
            if has(node, Trait.TAKES_BATCHNORM) and self.bias == "int32":
                self._fit_weight(node)
            if node.op_type in QUANTIZERS:
                plain = frozenset(range(len(node.input)))
            for position, name in enumerate(node.input):
                if not name or position in plain:
                    continue
                if node.op_type in _BIASED and position == 2 and name in self.graph.stored:
                    node.input[position] = self._bias_input(node, name)
                    continue
                if name in self.graph.stored and name not in self.read_as:
                    self._store_weight(name)
                node.input[position] = self.read_as.get(name, name)
                other = self.requantize.get((node.output[0], position))
                if other is not None and name in self.placed:
                    node.input[position] = self._pair(f"{node.output[0]}_input{position}", node.input[position], other)
            self.nodes.append(node)
            if node.op_type != "Constant":
                for position, name in enumerate(node.output):
                    if name:
                        node.output[position] = self._quantize_activation(name)
        graph.prune(self.nodes)
        del graph.model.graph.value_info[:]
        # A bias that was stored for several layers is read from its last one.
        read_as = {**self.read_as, **{name: final for (name, _), final in self.biases.items()}}
        makers = {name: graph.makers.get(final) for name, final in read_as.items()}
        return QdqModel(
            model=graph.model,
            placed=dict(sorted(self.placed.items())),
            stored={
                name: made.input[0] for name, made in makers.items() if made and made.op_type == "DequantizeLinear"
            },
            activations=frozenset(self.placed) - constants.keys(),
            skipped=self.skipped,
        )

    def _quantize_activation(self, name: str) -> str:
        """Emit the pair behind a tensor; returns the name that its producer must write from now on."""
        entry = self.encodings.get(name)
        if entry is None or isinstance(entry.value, Float):
            return name
        value = entry.value
        if not isinstance(value, Affine) or value.scale.size != 1 or value.bits not in (8, 16):
            self.skipped.setdefault(name, f"an activation cannot be {value.dtype} {value.granularity}")
            return name
        value = to_unsigned(value) if self.unsigned else value
        # An input that is also an output has no producer that could write another name.
        is_output = name in self.graph.outputs - self.graph.inputs
        source = self.graph.fresh(f"{name}_float") if is_output else name
        read = self._pair(f"{name}_wide", source, self.first[name]) if name in self.first else source
        self._read(name, self._pair(name, read, value, final=name if is_output else ""), value.dtype)
        return source

    def _read(self, name: str, final: str, dtype: str) -> None:
        self.read_as[name], self.stands_for[final], self.placed[name] = final, name, dtype

    def _pair(
        self, name: str, source: str, value: Affine | Float8, *, final: str = "", **more: int | str | None
    ) -> str:
        """Emit QuantizeLinear and DequantizeLinear behind a tensor; returns the name of the result."""
        zero = value.zero_point if isinstance(value, Affine) else np.zeros(value.scale.shape)
        scale, zero = (one.reshape(()) if one.size == 1 else one for one in (value.scale, zero))
        grid = self._grid(name, scale, zero, value.dtype)
        middle = self.graph.fresh(f"{name}_q")
        final = final or self.graph.fresh(f"{name}_dq")
        self._node("QuantizeLinear", [source, *grid], middle, name, **more)
        return self._node("DequantizeLinear", [middle, *grid], final, name, **more)

    def _node(self, op_type: str, inputs: list[str], output: str, name: str, **attributes: int | str | None) -> str:
        given: dict[str, Any] = {
            "domain": self.domain,
            **{key: value for key, value in attributes.items() if value is not None},
        }
        made = helper.make_node(op_type, inputs, [output], name=self.graph.fresh(f"{name}_{op_type}"), **given)
        self.nodes.append(made)
        return output

    def _grid(self, name: str, scale: Any, zero: Any, dtype: str) -> tuple[str, str]:
        """Store a scale and a zero point; returns their names."""
        with np.errstate(over="ignore"):
            stored = np.asarray(scale, np.float32)
        return self.graph.store(f"{name}_scale", stored), self._store(f"{name}_zero_point", zero, dtype)

    def _store(self, name: str, values: Numbers, dtype: str) -> str:
        """Store values in this type under a fresh name; returns the name."""
        return self.graph.store(name, np.asarray(values).astype(numpy_type(dtype)))

    def _store_weight(self, name: str) -> None:
        entry, tensor = self.encodings.get(name), self.graph.stored[name]
        if entry is None or isinstance(entry.value, Float) or tensor.data_type != element_type("float"):
            return
        value = entry.value
        if not getattr(value, "placed", True):
            self.skipped.setdefault(name, "along which axes its scales lie is not known")
            return
        if isinstance(value, Float8):  # quantized at run time from the float weight: no integer grid exists to store
            self._read(name, self._pair(name, name, value, axis=value.axis, domain=""), value.dtype)
            return
        is_bias = entry.integer_bits == 32
        if is_bias and self.bias == "float":
            return
        if self.unsigned and entry.is_param is False and isinstance(value, Affine) and value.bits <= 16:
            value = to_unsigned(value)
        try:
            values = stored_values(tensor)
            constant = self._int32(name, values, value.scale) if is_bias else quantize_constant(values, value)
        except ValueError as error:
            self.skipped.setdefault(name, str(error))
            return
        self._read(name, self._store_constant(name, constant), constant.dtype)

    def _store_constant(self, name: str, constant: QuantizedConstant) -> str:
        """Add the integers of a weight and the nodes that read them; returns the float tensor's name."""
        stored = self._store(f"{name}_q", constant.values, constant.dtype)
        if constant.channel_scale is None:
            scale, zero = self._grid(name, constant.scale, constant.zero_point, constant.dtype)
        else:  # LPBQ: the whole-numbered block scales (1 to 16, so not uint4) times the channel scales
            blocks = self._store(f"{name}_block_scale_q", constant.scale, "uint8")
            none = np.zeros(constant.channel_scale.shape)
            channels = self._grid(f"{name}_channel", constant.channel_scale, none, "uint8")
            scale = self.graph.fresh(f"{name}_block_scale")
            self._node("DequantizeLinear", [blocks, *channels], scale, f"{name}_scale", axis=constant.channel_axis)
            zero = self._store(f"{name}_zero_point", constant.zero_point, constant.dtype)
        final = self.graph.fresh(f"{name}_dq")
        axes = {"axis": constant.axis, "block_size": constant.block_size}
        return self._node("DequantizeLinear", [stored, scale, zero], final, name, **axes)

    def _bias_input(self, node: NodeProto, name: str) -> str:
        """The name under which a node reads its bias: an int32 copy where it is wanted and possible, else the bias."""
        scale = None if self.bias == "float" else self._bias_scale(node, name)
        if scale is None:
            return name
        key = (name, np.asarray(scale).tobytes())
        if key not in self.biases:
            constant = self._int32(name, stored_values(self.graph.stored[name]), scale)
            self.biases[key] = self._store_constant(name, constant)
            self.placed[name] = constant.dtype
        return self.biases[key]

    def _int32(self, name: str, values: Numbers, scale: Array) -> QuantizedConstant:
        """A bias as int32 with zero point 0; ``scale`` is 0-d or has one number per value of the 1-d bias."""
        steps, zero_point = np.rint(values.astype(np.float64) / scale), np.zeros(np.shape(scale), np.int64)
        if (np.abs(steps) > 2**31).any():
            self.skipped.setdefault(name, "32 bits do not hold its values in the steps of its layer: they are cut off")
        return QuantizedConstant(
            "int32",
            np.clip(steps, -(2**31), 2**31 - 1).astype(np.int64),
            scale=np.asarray(scale, np.float32),
            zero_point=zero_point,
            axis=0 if np.ndim(scale) else None,
        )

    def _fit_weight(self, node: NodeProto) -> None:
        """Coarsen the weights of channels whose bias 32 bits do not hold: beside it the weights are nothing."""
        weight, name = self.encodings.get(node.input[1]), operand(node, 2)
        scale = self._bias_scale(node, name) if name in self.graph.stored else None
        if weight is None or not isinstance(weight.value, Affine) or scale is None or not scale.ndim:
            return
        steps = np.abs(stored_values(self.graph.stored[name]).astype(np.float64)) / scale
        if (steps > 2**31).any():
            coarser = weight.value.scale * np.maximum(steps / (2**31 - 2), 1)
            self.encodings = self.encodings.with_entries([replace(weight, value=replace(weight.value, scale=coarser))])

    def _bias_scale(self, node: NodeProto, name: str) -> Array | None:
        """The scale of a bias: its int32 entry's, or input scale times weight scale.

        0-d or one per channel, None without.
        """
        dims = self.graph.stored[name].dims
        if len(dims) != 1:
            self.skipped.setdefault(name, f"a bias of rank {len(dims)} cannot be int32")
            return None
        if self.bias == "encoded":
            entry = self.encodings.get(name)
            value = None if entry is None else entry.value
            return value.scale if isinstance(value, Affine) and value.bits == 32 else None
        # The data and weight inputs were rewired before the bias: look up what they stand for.
        data, weight = (self.encodings.get(self.stands_for.get(read, read)) for read in node.input[:2])
        if data is None or weight is None or not isinstance(data.value, Affine) or data.value.scale.size != 1:
            return None
        scale = np.asarray(data.value.scale, np.float64).reshape(())
        if isinstance(weight.value, Lpbq):
            return np.asarray(scale * weight.value.channel_scale.reshape(-1))
        if not isinstance(weight.value, Affine) or weight.value.block_size is not None:
            return None
        product = np.asarray(scale * weight.value.scale.reshape(-1))
        if product.size == 1:
            return product.reshape(())
        return product if product.size == dims[0] else None

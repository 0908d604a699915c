"""Writes encodings into a float model as QuantizeLinear and DequantizeLinear nodes.

Every quantized tensor is read through its own pair, weights are stored as integers, and biases as int32 where that is
asked for. Weights are rounded as AIMET does: ``floor(x / scale - offset + 1/2)`` in float32, halves upward, clamped to
the grid. It derives no encoding: which tensors need one is somebody else's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.place import is_wide, needed_opset
from deploykit.encodings.values import Affine, Array, EncodingSet, Float, Float8, Lpbq
from deploykit.model.graph import GraphCopy, copy_of
from deploykit.model.nodes import opset_of, raise_opset
from deploykit.model.operators import settings
from deploykit.model.weights import constant_values, element_type, integer_tensor

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = [
    "QdqModel",
    "QuantizedConstant",
    "Skipped",
    "dequantized",
    "insert_qdq",
    "quantize_bias",
    "quantize_constant",
    "spread_blocks",
]

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedConstant:
    """Integers of a weight with the grid that gives them meaning.

    ``scale`` and ``zero_point`` are 0-d per tensor, 1-d along ``axis`` per channel, and of the tensor's rank per block,
    where ``axis`` is the block axis. ``channel_scale`` (1-d along ``channel_axis``) is set for LPBQ only: then
    ``scale`` holds the whole-numbered block scales.
    """

    dtype: str
    values: Numbers
    scale: Numbers
    zero_point: Numbers
    axis: int | None = None
    block_size: int | None = None
    channel_scale: Numbers | None = None
    channel_axis: int | None = None


def quantize_constant(values: Numbers, encoding: Affine | Lpbq) -> QuantizedConstant:
    """Quantize a weight; the encoding must be placed on a graph, and its scale must fit the tensor's shape.

    Raises ValueError with the reason when it does not fit, or when ONNX has no type for the grid.
    """
    if isinstance(encoding, Lpbq):
        return _lpbq(values, encoding)
    if encoding.bits not in (4, 8, 16, 32):
        raise ValueError(f"ONNX Runtime stores no {encoding.bits}-bit integers")
    if np.any(encoding.zero_point != np.rint(encoding.zero_point)):
        raise ValueError("a shifted (fractional) zero point cannot be stored")
    scale, zero = spread_blocks(values.shape, encoding.scale, encoding), encoding.zero_point
    offset = encoding.zero_point - encoding.lowest  # distance of the real zero from the lowest integer
    grid = _full(values.shape, scale, encoding.axis, encoding.block_axis, encoding.block_size)
    shift = _full(
        values.shape,
        spread_blocks(values.shape, offset, encoding),
        encoding.axis,
        encoding.block_axis,
        encoding.block_size,
    )
    steps = _steps(values, grid, shift, encoding.bits)
    return QuantizedConstant(
        dtype=encoding.dtype,
        values=steps + encoding.lowest,
        scale=scale.astype(np.float32),
        zero_point=spread_blocks(values.shape, zero, encoding).astype(np.int64),
        axis=encoding.axis if encoding.block_size is None else encoding.block_axis,
        block_size=encoding.block_size,
    )


def quantize_bias(values: Numbers, scale: Array) -> QuantizedConstant:
    """A bias as int32 with zero point 0; ``scale`` is 0-d or has one number per value of the 1-d bias."""
    limit = float(2**31 - 1)
    steps = np.clip(np.rint(values.astype(np.float64) / scale), -limit - 1, limit).astype(np.int64)
    return QuantizedConstant(
        dtype="int32",
        values=steps,
        scale=np.asarray(scale, np.float32),
        zero_point=np.zeros(np.shape(scale), np.int64),
        axis=0 if np.ndim(scale) else None,
    )


def dequantized(constant: QuantizedConstant) -> Numbers:
    """The float32 values that the integers stand for."""
    scale = constant.scale
    if constant.channel_scale is not None and constant.channel_axis is not None:
        scale = scale * _along(constant.channel_scale, constant.channel_axis, scale.ndim)
    shape = constant.values.shape
    block_axis = constant.axis if constant.block_size else None
    axis = None if constant.block_size else constant.axis
    grid = _full(shape, scale, axis, block_axis, constant.block_size)
    zero = _full(shape, constant.zero_point, axis, block_axis, constant.block_size)
    return np.asarray((constant.values - zero) * grid.astype(np.float32), np.float32)


def spread_blocks(shape: tuple[int, ...], numbers: Array, encoding: Affine | Lpbq) -> Array:
    """Per block, ONNX wants the full length in every axis but the block one; encodings may have 1 there."""
    if encoding.block_size is None or encoding.block_axis is None:
        return numbers
    axis, size = encoding.block_axis, encoding.block_size
    if axis >= len(shape) or shape[axis] % size:
        raise ValueError(f"blocks of {size} do not divide axis {axis} of shape {list(shape)}")
    wanted = tuple(dim // size if i == axis else dim for i, dim in enumerate(shape))
    try:
        return np.ascontiguousarray(np.broadcast_to(numbers, wanted))
    except ValueError:
        raise ValueError(f"scales of shape {list(numbers.shape)} do not fit a tensor of {list(shape)}") from None


def _lpbq(values: Numbers, encoding: Lpbq) -> QuantizedConstant:
    if encoding.bits != 4 or encoding.axis is None or encoding.block_axis is None:
        raise ValueError("LPBQ is understood for 4-bit weights with known axes only")
    channel = encoding.channel_scale.reshape(-1)
    if channel.size != values.shape[encoding.axis]:
        raise ValueError(f"{channel.size} channel scales for {values.shape[encoding.axis]} channels")
    blocks = spread_blocks(values.shape, encoding.block_scale, encoding)
    full = blocks * _along(channel, encoding.axis, values.ndim)
    grid = _full(values.shape, full, None, encoding.block_axis, encoding.block_size)
    low = -(1 << (encoding.bits - 1))
    return QuantizedConstant(
        dtype=encoding.dtype,
        values=_steps(values, grid, np.float32(-low), encoding.bits) + low,
        scale=blocks.astype(np.float32),
        zero_point=np.zeros(blocks.shape, np.int64),
        axis=encoding.block_axis,
        block_size=encoding.block_size,
        channel_scale=channel.astype(np.float32),
        channel_axis=encoding.axis,
    )


def _steps(values: Numbers, grid: Numbers, shift: Any, bits: int) -> Numbers:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = values.astype(np.float32) / grid.astype(np.float32) + np.asarray(shift, np.float32)
        rounded = np.floor(scaled + np.float32(0.5))
    top = float((1 << bits) - 1)
    return np.asarray(np.clip(np.nan_to_num(rounded, nan=0.0, posinf=top, neginf=0.0), 0, top), np.int64)


def _full(
    shape: tuple[int, ...], numbers: Numbers, axis: int | None, block_axis: int | None, block_size: int | None
) -> Numbers:
    """Numbers of any granularity, broadcastable against the tensor."""
    if block_size is not None and block_axis is not None:
        return np.repeat(numbers, block_size, axis=block_axis)
    if numbers.ndim == 0 or axis is None:
        return numbers
    if numbers.size != shape[axis]:
        raise ValueError(f"{numbers.size} scales for {shape[axis]} channels along axis {axis}")
    return _along(numbers, axis, len(shape))


def _along(numbers: Numbers, axis: int, rank: int) -> Numbers:
    return numbers.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


Bias = Literal["float", "encoded", "int32"]

_BIASED = ("Conv", "ConvTranspose", "Gemm", "LayerNormalization")
_MS = "com.microsoft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An encoding that could not be written, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QdqModel:
    """The quantized model. ``placed`` maps each quantized tensor to its type, ``stored`` to the name of its integers,
    ``activations`` are those computed at run time, and ``skipped`` says what was left float.
    """

    model: ModelProto
    placed: dict[str, str]
    stored: dict[str, str] = field(default_factory=dict)
    activations: frozenset[str] = frozenset()
    skipped: tuple[Skipped, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Work:
    graph: GraphCopy
    encodings: EncodingSet
    domain: str
    bias: Bias
    unsigned: bool
    requantize: Mapping[tuple[str, int], Affine]
    first: Mapping[str, Affine]
    read_as: dict[str, str] = field(default_factory=dict)
    stands_for: dict[str, str] = field(default_factory=dict)
    biases: dict[tuple[str, bytes], str] = field(default_factory=dict)
    placed: dict[str, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)

    def read(self, name: str, final: str, dtype: str) -> None:
        self.read_as[name], self.stands_for[final], self.placed[name] = final, name, dtype

    def skip(self, tensor: str, reason: str) -> None:
        if all(entry.tensor != tensor for entry in self.skipped):
            self.skipped.append(Skipped(tensor=tensor, reason=reason))


def insert_qdq(
    model: ModelProto,
    encodings: EncodingSet,
    *,
    bias: Bias = "float",
    unsigned_activations: bool = True,
    only: Collection[str] | None = None,
    requantize: Mapping[tuple[str, int], Affine] | None = None,
    first: Mapping[str, Affine] | None = None,
) -> QdqModel:
    """A QDQ model made of a float model and its encodings, which must be placed on it.

    ``bias``: ``float`` leaves the biases of Conv, ConvTranspose and Gemm alone, ``encoded`` stores those that have an
    int32 entry, ``int32`` stores all with the scale the multiplication gives (input scale times weight scale).
    ``unsigned_activations`` writes signed activation grids as the same unsigned ones. ``only`` limits the tensors.
    ``requantize`` gives a node (by its first output) another grid for the input at a position, through a pair of its
    own; ``first`` quantizes a tensor to another grid before its own, so that its producer writes that one.
    Graph inputs and outputs stay float. 16-bit and 4-bit types need opset 21 or the com.microsoft domain; blocks need
    opset 21, to which the model is raised.
    """
    chosen = _chosen(encodings, only)
    work = _start(model, chosen, bias, unsigned_activations, requantize or {}, first or {})
    graph = work.graph
    constants = dict(graph.stored)
    for value in list(graph.model.graph.input):
        if value.name not in constants:
            _quantize_activation(work, value.name, value.name)
    for node in list(graph.nodes):
        _copy_node(work, node)
    graph.set_nodes(work.nodes)
    graph.drop_unused(constants)
    del graph.model.graph.value_info[:]
    return QdqModel(
        model=graph.model,
        placed=dict(sorted(work.placed.items())),
        stored=_integers(work),
        activations=frozenset(work.placed) - constants.keys(),
        skipped=tuple(work.skipped),
    )


def _integers(work: _Work) -> dict[str, str]:
    """What each dequantized tensor is read from; a bias that was stored for several layers has its last one."""
    read_as = {**work.read_as, **{name: final for (name, _), final in work.biases.items()}}
    makers = {name: work.graph.makers.get(final) for name, final in read_as.items()}
    return {name: made.input[0] for name, made in makers.items() if made and made.op_type == "DequantizeLinear"}


def _chosen(encodings: EncodingSet, only: Collection[str] | None) -> EncodingSet:
    if only is None:
        return encodings
    wanted = frozenset(only)
    return replace(encodings, entries={name: entry for name, entry in encodings.entries.items() if name in wanted})


def _start(
    model: ModelProto,
    encodings: EncodingSet,
    bias: Bias,
    unsigned: bool,
    requantize: Mapping[tuple[str, int], Affine],
    first: Mapping[str, Affine],
) -> _Work:
    copy = raise_opset(copy_of(model), needed_opset(encodings))
    domain = ""
    if opset_of(copy) < 21 and any(is_wide(entry.value) for entry in encodings):
        domain = _MS
        if not opset_of(copy, _MS):
            copy.opset_import.add(domain=_MS, version=1)
    return _Work(
        graph=GraphCopy(copy, copy=False),
        encodings=encodings,
        domain=domain,
        bias=bias,
        unsigned=unsigned,
        requantize=requantize,
        first=first,
    )


def _copy_node(work: _Work, node: NodeProto) -> None:
    # What stays as it is: settings, and everything that quantizers read already.
    plain = (
        frozenset(range(len(node.input))) if node.op_type in ("QuantizeLinear", "DequantizeLinear") else settings(node)
    )
    for position, name in enumerate(node.input):
        if not name or position in plain:
            continue
        if node.op_type in _BIASED and position == 2 and name in work.graph.stored:
            node.input[position] = _bias_input(work, node, name)
            continue
        if name in work.graph.stored and name not in work.read_as:
            _store_weight(work, name)
        node.input[position] = work.read_as.get(name, name)
        other = work.requantize.get((node.output[0], position))
        if other is not None and name in work.placed:
            node.input[position] = _pair(work, f"{node.output[0]}_input{position}", node.input[position], other)
    work.nodes.append(node)
    if node.op_type != "Constant":
        for position, name in enumerate(node.output):
            if name:
                node.output[position] = _quantize_activation(work, name, name)


def _quantize_activation(work: _Work, name: str, source: str) -> str:
    """Emit the pair behind a tensor; answers with the name its producer must write from now on."""
    entry = work.encodings.get(name)
    if entry is None or isinstance(entry.value, Float):
        return source
    value = entry.value
    if not isinstance(value, Affine) or value.scale.size != 1 or value.bits not in (8, 16):
        work.skip(name, f"an activation cannot be {value.dtype} {value.granularity}")
        return source
    value = _unsigned(value) if work.unsigned else value
    # What the graph is given and gives back unchanged has no producer that could write another name.
    is_output = name in work.graph.outputs - work.graph.inputs
    if is_output:
        source = work.graph.fresh(f"{name}_float")
    if name in work.first:
        first = _pair(work, f"{name}_wide", source, work.first[name])
        final = _pair(work, name, first, value, final=name if is_output else None)
    else:
        final = _pair(work, name, source, value, final=name if is_output else None)
    work.read(name, final, value.dtype)
    return source


def _unsigned(value: Affine) -> Affine:
    return replace(value, signed=False, zero_point=value.zero_point - value.lowest) if value.signed else value


def _pair(work: _Work, name: str, source: str, value: Affine, *, final: str | None = None) -> str:
    """Emit QuantizeLinear and DequantizeLinear behind a tensor; answers with the name of the result."""
    scale, zero = _grid(work, name, value.scale.reshape(()), value.zero_point.reshape(()), value.dtype)
    middle = work.graph.fresh(f"{name}_q")
    final = final or work.graph.fresh(f"{name}_dq")
    quantize = work.graph.fresh(f"{name}_QuantizeLinear")
    dequantize = work.graph.fresh(f"{name}_DequantizeLinear")
    work.nodes += [
        helper.make_node("QuantizeLinear", [source, scale, zero], [middle], name=quantize, domain=work.domain),
        helper.make_node("DequantizeLinear", [middle, scale, zero], [final], name=dequantize, domain=work.domain),
    ]
    return final


def _grid(work: _Work, name: str, scale: Any, zero: Any, dtype: str) -> tuple[str, str]:
    scale_name, zero_name = work.graph.fresh(f"{name}_scale"), work.graph.fresh(f"{name}_zero_point")
    with np.errstate(over="ignore"):
        stored = np.asarray(scale, np.float32)
    work.graph.model.graph.initializer.append(numpy_helper.from_array(stored, scale_name))
    work.graph.model.graph.initializer.append(integer_tensor(zero_name, np.asarray(zero), dtype))
    return scale_name, zero_name


def _store_weight(work: _Work, name: str) -> None:
    entry, tensor = work.encodings.get(name), work.graph.stored[name]
    if entry is None or isinstance(entry.value, Float) or tensor.data_type != element_type("float"):
        return
    if isinstance(entry.value, Float8):
        # Quantized at run time from the float weight: no integer grid exists to store.
        scale_name, zero_name = work.graph.fresh(f"{name}_scale"), work.graph.fresh(f"{name}_zero_point")
        scale = np.asarray(entry.value.scale, np.float32)
        zero = TensorProto(name=zero_name, data_type=element_type(entry.value.dtype), dims=scale.shape)
        zero.raw_data = bytes(scale.size)
        work.graph.model.graph.initializer.append(numpy_helper.from_array(scale, scale_name))
        work.graph.model.graph.initializer.append(zero)
        middle, final = work.graph.fresh(f"{name}_q"), work.graph.fresh(f"{name}_dq")
        attributes: dict[str, Any] = {} if entry.value.axis is None else {"axis": entry.value.axis}
        quantize, dequantize = (work.graph.fresh(f"{name}_{kind}Linear") for kind in ("Quantize", "Dequantize"))
        work.nodes += [
            helper.make_node("QuantizeLinear", [name, scale_name, zero_name], [middle], name=quantize, **attributes),
            helper.make_node(
                "DequantizeLinear", [middle, scale_name, zero_name], [final], name=dequantize, **attributes
            ),
        ]
        work.read(name, final, entry.value.dtype)
        return
    value = entry.value
    if isinstance(value, Affine) and value.bits == 32 and work.bias == "float":
        return
    if work.unsigned and entry.is_param is False and isinstance(value, Affine) and value.bits <= 16:
        value = _unsigned(value)
    try:
        values = constant_values(tensor)
        is_bias = isinstance(value, Affine) and value.bits == 32
        constant = quantize_bias(values, value.scale) if is_bias else quantize_constant(values, value)
    except ValueError as error:
        work.skip(name, str(error))
        return
    work.read(name, _store_constant(work, name, constant), constant.dtype)


def _store_constant(work: _Work, name: str, constant: QuantizedConstant) -> str:
    """Add the integers of a weight and the nodes that read them; answers with the float tensor's name."""
    graph = work.graph.model.graph
    stored = work.graph.fresh(f"{name}_q")
    graph.initializer.append(integer_tensor(stored, constant.values, constant.dtype))
    if constant.channel_scale is None:
        scale, zero = _grid(work, name, constant.scale, constant.zero_point, constant.dtype)
    else:
        scale = _store_block_scales(work, name, constant)
        zero = work.graph.fresh(f"{name}_zero_point")
        graph.initializer.append(integer_tensor(zero, constant.zero_point, constant.dtype))
    final = work.graph.fresh(f"{name}_dq")
    node = helper.make_node(
        "DequantizeLinear",
        [stored, scale, zero],
        [final],
        name=work.graph.fresh(f"{name}_DequantizeLinear"),
        domain=work.domain,
    )
    if constant.axis is not None:
        node.attribute.append(helper.make_attribute("axis", constant.axis))
    if constant.block_size is not None:
        node.attribute.append(helper.make_attribute("block_size", constant.block_size))
    work.nodes.append(node)
    return final


def _store_block_scales(work: _Work, name: str, constant: QuantizedConstant) -> str:
    """LPBQ: the whole-numbered block scales (1 to 16, so not uint4) times the channel scales."""
    assert constant.channel_scale is not None and constant.channel_axis is not None
    blocks = work.graph.fresh(f"{name}_block_scale_q")
    work.graph.model.graph.initializer.append(integer_tensor(blocks, constant.scale.astype(np.int64), "uint8"))
    zero = np.zeros(constant.channel_scale.shape, np.int64)
    channel, channel_zero = _grid(work, f"{name}_channel", constant.channel_scale, zero, "uint8")
    scale = work.graph.fresh(f"{name}_block_scale")
    work.nodes.append(
        helper.make_node(
            "DequantizeLinear",
            [blocks, channel, channel_zero],
            [scale],
            name=work.graph.fresh(f"{name}_scale_DequantizeLinear"),
            domain=work.domain,
            axis=constant.channel_axis,
        )
    )
    return scale


def _bias_input(work: _Work, node: NodeProto, name: str) -> str:
    """The name under which a node reads its bias: an int32 one where that is wanted and possible."""
    if work.bias == "float":
        return name
    scale = _bias_scale(work, node, name)
    if scale is None:
        return name
    key = (name, np.asarray(scale).tobytes())
    if key not in work.biases:
        values = constant_values(work.graph.stored[name])
        constant = quantize_bias(values, scale)
        work.biases[key] = _store_constant(work, name, constant)
        work.placed[name] = constant.dtype
    return work.biases[key]


def _bias_scale(work: _Work, node: NodeProto, name: str) -> Any:
    tensor = work.graph.stored[name]
    if len(tensor.dims) != 1:
        work.skip(name, f"a bias of rank {len(tensor.dims)} cannot be int32")
        return None
    entry = work.encodings.get(name)
    if work.bias == "encoded":
        value = None if entry is None else entry.value
        is_bias = isinstance(value, Affine) and value.bits == 32
        return value.scale if is_bias and isinstance(value, Affine) else None
    # Input scale times weight scale, 0-d or one per channel; None where one of the two is not an integer grid.
    channels = int(tensor.dims[0])
    # The data and weight inputs were rewired before the bias: look up what they stand for.
    data, weight = (
        work.encodings.get(work.stands_for.get(node.input[position], node.input[position])) for position in (0, 1)
    )
    if data is None or weight is None or not isinstance(data.value, Affine) or data.value.scale.size != 1:
        return None
    scale = np.asarray(data.value.scale, np.float64).reshape(())
    if isinstance(weight.value, Lpbq):
        return scale * weight.value.channel_scale.reshape(-1)
    if not isinstance(weight.value, Affine) or weight.value.block_size is not None:
        return None
    weights = weight.value.scale.reshape(-1)
    product = scale * weights
    return product.reshape(()) if weights.size == 1 else (product if product.size == channels else None)

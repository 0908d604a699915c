"""Turns block-quantized weights of a QDQ model file into LPBQ, one weight in memory at a time, external data streamed.

A weight that does not qualify is left as it is and reported with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from onnx import NodeProto, TensorProto, helper, numpy_helper

from deploykit.encodings.files import data_of
from deploykit.encodings.lpbq import BlockWeight, LpbqLoss, lpbq_integers, lpbq_scales
from deploykit.errors import InputError, PackageError, UsageError
from deploykit.findings.records import Arrays, Json, Published, Record
from deploykit.model.graph import GraphCopy
from deploykit.model.load import Model, load_model
from deploykit.model.nodes import attribute, operand
from deploykit.model.values import FileSpan, is_external
from deploykit.model.weights import copy_bytes, numpy_type, point_outside, weight
from deploykit.system.files import unwritable
from deploykit.system.folders import scratch

__all__ = ["LpbqReport", "convert_file"]

_LAYERS = ("MatMul", "Gemm", "Conv")
_FUSED = ("Add", "Relu", "Clip")


class WeightReport(Published):
    """One block-quantized weight: converted with its loss, or left as it is with the reason."""

    WITHOUT = ("has_bias",)
    ALSO = ("converted",)

    weight: str
    op_type: str
    node: str
    has_bias: bool = False
    reason: str = ""
    loss: LpbqLoss | None = None

    @property
    def converted(self) -> bool:
        """True when the weight is LPBQ now."""
        return self.loss is not None


class LpbqReport(Record):
    """What became of every weight with a block size, in graph order; ``output`` is the written model."""

    weights: tuple[WeightReport, ...]
    output: Path | None

    @property
    def converted(self) -> int:
        """The number of weights that are LPBQ now."""
        return sum(report.converted for report in self.weights)


class _ModelWork(Struct, kw_only=True):
    model: Model
    graph: GraphCopy
    refined: bool
    scratch: Path
    claims: Mapping[str, tuple[Path, FileSpan]]
    before: dict[str, NodeProto] = {}
    replaced: dict[str, Path] = {}
    gone: set[str] = set()


class _LeftError(Exception):
    """The weight does not qualify; the text says why."""


def convert_file(source: Path, target: Path, *, refined: bool = False, force: bool = False) -> LpbqReport:
    """Convert every weight that qualifies and write the model; ``refined`` re-rounds the integers to the new scales.

    Raises InputError for a model without block-quantized weights, PackageError for an existing target.
    """
    if target.exists() and not force:
        raise PackageError(f"{target}: exists and was kept", next="name another file, or replace it with --force")
    if target.exists() and os.path.samefile(source, target):  # noqa: PTH121
        raise UsageError(f"{target}: is the model itself", next="choose another name")
    if not target.parent.is_dir():
        raise PackageError(f"{target.parent}: no such folder", next="create the folder first, or name another one")
    data = data_of(target)
    if os.path.lexists(data) and not force:
        raise PackageError(f"{data}: exists and was kept", why="large weights go there", next="name another file")
    model = load_model(source)
    if data.exists() and any(data.samefile(external.path) for external in model.external):
        raise UsageError(f"{data}: holds weights of the model itself", next="choose another name")
    with scratch(target.resolve().parent) as folder:
        claims = {claim.tensor: (file.path, claim) for file in model.external for claim in file.claims}
        work = _ModelWork(model=model, graph=GraphCopy(model.proto), refined=refined, scratch=folder, claims=claims)
        reports = tuple(_convert_all(work))
        if not reports:
            raise InputError(
                f"{source}: no DequantizeLinear with a block size", why="there is nothing to convert in it"
            )
        # New nodes stand before their readers; old scales, and integers computed at run time so far, are dropped.
        graph = work.graph
        nodes = list[NodeProto]()
        for node in graph.nodes:
            if work.gone.intersection(node.output):
                continue
            if node.output and node.output[0] in work.before:
                nodes.append(work.before[node.output[0]])
            nodes.append(node)
        graph.prune(nodes)
        # External tensors are streamed into one new data file; the model follows when that is complete.
        data, moved = folder / "data", False
        try:
            with data.open("wb") as sink:
                for tensor in graph.model.graph.initializer:
                    moved |= _move(work, tensor, sink, data_of(target).name)
            body = folder / "model"
            body.write_bytes(graph.model.SerializeToString())
            if moved:
                data.replace(data_of(target))
            body.replace(target)
        except OSError as error:
            raise unwritable(target, error) from None
    return LpbqReport(weights=reports, output=target)


def _convert_all(work: _ModelWork) -> Iterator[WeightReport]:
    for node in work.graph.nodes:
        if node.op_type != "DequantizeLinear" or not attribute(node, "block_size", 0):
            continue
        layers = work.graph.readers(node.output[0])
        layer, has_bias = layers[0] if layers else None, False
        if layer is not None and layer.op_type == "MatMul":
            behind = work.graph.readers(layer.output[0])
            has_bias = len(behind) == 1 and behind[0].op_type == "Add"
        elif layer is not None:
            has_bias = bool(operand(layer, 2))
        common: Json = {
            "weight": node.input[0],
            "op_type": layer.op_type if layer is not None else "",
            "node": layer.name if layer is not None else "",
            "has_bias": has_bias,
        }
        try:
            given = _block_weight(work, node, _layer(work, node, layers))
            channel, blocks = lpbq_scales(given.scale, given.channel_axis)
            packed, loss = lpbq_integers(given, refined=work.refined)
            if work.refined:
                file = work.scratch / f"r{len(work.replaced)}.bin"
                packed.tofile(file)
                work.replaced[node.input[0]] = file
            base = node.input[0]
            stored: Arrays = {
                "block_scale_q": blocks.astype(np.uint8),
                "channel_scale": channel.astype(np.float32),
                "channel_zero_point": np.zeros(channel.shape, np.uint8),
            }
            names = [work.graph.store(f"{base}_{end}", values) for end, values in stored.items()]
            result, label = work.graph.fresh(f"{base}_block_scale"), work.graph.fresh(f"{base}_scale_DequantizeLinear")
            work.before[node.output[0]] = helper.make_node(
                "DequantizeLinear", names, [result], name=label, axis=given.channel_axis
            )
            node.input[1] = result
            yield WeightReport(loss=loss, **common)
        except _LeftError as reason:
            yield WeightReport(reason=str(reason), **common)


def _layer(work: _ModelWork, node: NodeProto, layers: list[NodeProto]) -> NodeProto:
    if len(layers) != 1 or layers[0].op_type not in _LAYERS or layers[0].input[1] != node.output[0]:
        raise _LeftError("it is not the weight of one MatMul, Gemm or Conv")
    layer = layers[0]
    data = work.graph.maker(layer.input[0])
    if data is None or data.op_type != "DequantizeLinear":
        raise _LeftError("the layer's input is float")
    result = layer.output[0]
    for _ in range(3):
        readers = work.graph.readers(result)
        if any(reader.op_type == "QuantizeLinear" for reader in readers):
            return layer
        if len(readers) != 1 or readers[0].op_type not in _FUSED:
            break
        result = readers[0].output[0]
    raise _LeftError("the layer's result is float")


def _block_weight(work: _ModelWork, node: NodeProto, layer: NodeProto) -> BlockWeight:
    size = int(attribute(node, "block_size", 0))
    scale = work.model.stored.get(node.input[1])
    if scale is None:
        maker = work.graph.maker(node.input[1])
        already = maker is not None and maker.op_type == "DequantizeLinear"
        raise _LeftError("it is LPBQ already" if already else "its scales are computed at run time")
    # The stored integers, or the stored float weight that a QuantizeLinear in front turns into them.
    stored, maker = work.model.stored.get(node.input[0]), work.graph.maker(node.input[0])
    if maker is not None and maker.op_type == "QuantizeLinear" and maker.input[1:] == node.input[1:]:
        stored = work.model.stored.get(maker.input[0])
    if stored is None:
        raise _LeftError("its integers are computed at run time")
    source = stored
    kind = source.data_type
    if source.name != node.input[0]:
        zero = work.model.stored.get(operand(node, 2))
        kind = TensorProto.UINT8 if zero is None else zero.data_type
    if kind != TensorProto.INT4:
        kind = TensorProto.DataType.Name(kind).lower()
        raise _LeftError(f"its integers are {kind}; LPBQ expands int4 to 8 bits")
    if operand(node, 2):
        zero = work.model.stored.get(node.input[2])
        if zero is None or np.any(np.asarray(weight(work.model, node.input[2])).astype(np.int8)):
            raise _LeftError("its zero point is not 0")
    shape = tuple(source.dims)
    # Channel and block axis of a layer's weight.
    rank = len(shape)
    is_kernel = layer.op_type == "Conv"
    if (rank < 3) if is_kernel else (rank != 2):
        raise _LeftError(f"the weight of a {layer.op_type} has rank {rank}")
    channel_axis, block_axis = (0, 1) if is_kernel or attribute(layer, "transB", 0) else (1, 0)
    axis = int(attribute(node, "axis", 1)) % max(1, len(shape))
    if axis != block_axis:
        raise _LeftError(f"its blocks run along axis {axis}; the layer sums along axis {block_axis}")
    wanted = tuple(dim // size if i == axis else dim for i, dim in enumerate(shape))
    if int(np.prod(scale.dims)) == 1 and int(np.prod(wanted)) > 1:
        raise _LeftError("it has one scale and a block size")
    if tuple(scale.dims) != wanted or min(wanted, default=0) < 1 or shape[axis] % size:
        raise _LeftError(f"scales of shape {list(scale.dims)} do not fit blocks of {size} in {list(shape)}")
    numbers = np.asarray(weight(work.model, node.input[1]), np.float32)
    if not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
        raise _LeftError("a scale is negative or not finite")
    floats = source.name != node.input[0]
    return BlockWeight(
        packed=_quantized(work, node, source, numbers, size) if floats else _packed(work, source),
        shape=shape,
        scale=numbers,
        block_axis=block_axis,
        channel_axis=channel_axis,
        block_size=size,
    )


def _quantized(work: _ModelWork, node: NodeProto, floats: TensorProto, scale: Any, size: int) -> Any:
    """The packed integers that the QuantizeLinear computes (halves to even); they are stored from then on."""
    axis = int(attribute(node, "axis", 1)) % len(floats.dims)
    with np.errstate(all="ignore"):  # behind a scale of 0 any integer stands for 0
        values = np.asarray(weight(work.model, floats.name), np.float32) / np.repeat(scale, size, axis=axis)
    steps = np.clip(np.rint(np.nan_to_num(values)), -8, 7).astype(numpy_type("int4"))
    made = numpy_helper.from_array(steps, node.input[0])
    packed = np.frombuffer(made.raw_data, np.uint8)
    if is_external(floats):
        file = work.scratch / f"q{len(work.replaced)}.bin"
        packed.tofile(file)
        work.replaced[node.input[0]] = file
        made.ClearField("raw_data")
        point_outside(made, file.name, 0, packed.size)
    work.graph.model.graph.initializer.append(made)
    work.gone.add(node.input[0])
    return packed


def _packed(work: _ModelWork, stored: TensorProto) -> Any:
    """The packed bytes of an int4 tensor as they lie in the file: two integers each, never unpacked as a whole."""
    if not is_external(stored):
        if stored.raw_data:
            return np.frombuffer(stored.raw_data, np.uint8)
        return np.asarray(stored.int32_data, np.int32).astype(np.uint8)
    path, claim = work.claims[stored.name]
    return np.memmap(path, np.uint8, "r", claim.offset, (claim.length,))


def _move(work: _ModelWork, tensor: TensorProto, sink: Any, location: str) -> bool:
    replaced = work.replaced.get(tensor.name)
    if not is_external(tensor):
        if replaced is not None:
            tensor.ClearField("int32_data")
            tensor.raw_data = replaced.read_bytes()
        return False
    if replaced is None:
        source, claim = work.claims[tensor.name]
        start, length = claim.offset, claim.length
    else:
        source, start, length = replaced, 0, replaced.stat().st_size
    sink.write(bytes(-sink.tell() % 4096))
    offset = sink.tell()
    copy_bytes(source, start, length, sink)
    point_outside(tensor, location, offset, length)
    return True

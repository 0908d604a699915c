"""Folds BatchNormalization into the convolution or linear layer in front of it, encodings included.

An integer weight grid is carried exactly: a channel's scale is multiplied by the channel's factor. It folds only where
the layer's result is read by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Lpbq, Value
from deploykit.graph.editing import (
    Names,
    attribute,
    constant_values,
    consumers_of,
    drop_unused_constants,
    label,
    producers_of,
    read_elsewhere,
    set_nodes,
    stored_tensors,
    usable_copy,
)
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

__all__ = ["transform"]

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    layer: str
    norm: str
    weight: str
    axis: int


def _match(model: ModelProto) -> MatchResult:
    graph = model.graph
    producers, consumers, stored = producers_of(graph), consumers_of(graph), stored_tensors(graph)
    outputs = read_elsewhere(graph)
    sites, refusals = list[Site](), list[Refusal]()
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        layer = producers.get(node.input[0])
        reason = _reason(node, layer, consumers, stored, outputs)
        if reason:
            refusals.append(Refusal(nodes=(label(node),), reason=reason))
            continue
        assert layer is not None
        pair = _Pair(layer=layer.output[0], norm=node.output[0], weight=layer.input[1], axis=_channel_axis(layer))
        why = f"{label(node)} scales the channels of {label(layer)}"
        sites.append(Site(nodes=(label(layer), label(node)), tensors=(layer.output[0],), why=why, data=pair))
    none = "" if sites or refusals else "the graph has no BatchNormalization"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=none)


def _reason(
    node: NodeProto,
    layer: NodeProto | None,
    consumers: dict[str, list[tuple[NodeProto, int]]],
    stored: dict[str, TensorProto],
    outputs: set[str],
) -> str:
    if attribute(node, "training_mode", 0) or len([name for name in node.output if name]) > 1:
        return "it is in training mode"
    if layer is None or layer.op_type not in _LAYERS:
        return "no Conv, ConvTranspose or Gemm feeds it"
    if layer.output[0] in outputs or len(consumers[layer.output[0]]) > 1:
        return f"{layer.output[0]} is read elsewhere too"
    if layer.op_type == "ConvTranspose" and int(attribute(layer, "group", 1)) != 1:
        return "the transposed convolution has groups"
    if layer.op_type == "Gemm" and (attribute(layer, "alpha", 1.0) != 1.0 or attribute(layer, "beta", 1.0) != 1.0):
        return "the Gemm has factors of its own"
    needed = [*node.input[1:5], layer.input[1], *[name for name in layer.input[2:3] if name]]
    missing = [name for name in needed if name not in stored]
    if missing:
        return f"{missing[0]} is not a constant"
    if len(consumers[layer.input[1]]) > 1:
        return f"the weight {layer.input[1]} is used elsewhere too"
    return ""


def _channel_axis(layer: NodeProto) -> int:
    if layer.op_type == "Gemm":
        return 0 if attribute(layer, "transB", 0) else 1
    return 1 if layer.op_type == "ConvTranspose" else 0


def _apply(model: ModelProto, encodings: EncodingSet | None, found: MatchResult) -> Rewritten:
    copy = usable_copy(model)
    stored, constants, names = stored_tensors(copy.graph), list(stored_tensors(copy.graph)), Names(copy.graph)
    entries = dict(encodings.entries) if encodings is not None else {}
    touched, folded = set[str](), set[str]()
    producers = producers_of(copy.graph)
    for site in found.sites:
        pair: _Pair = site.data
        layer, norm = producers[pair.layer], producers[pair.norm]
        factor, shift = _line(norm, stored)
        _fold_weight(pair, stored, factor)
        bias = _fold_bias(copy.graph, layer, stored, names, factor, shift)
        touched.add(bias)
        if pair.weight in entries:
            entries[pair.weight] = _scaled(entries[pair.weight], factor, pair.axis)
        entries.pop(bias, None)
        for name in (*norm.input[1:5], pair.layer):
            entries.pop(name, None)
        layer.output[0] = pair.norm
        norm.output[0] = names.fresh(f"{pair.norm}_folded")
        folded.add(norm.output[0])
    set_nodes(copy.graph, [n for n in copy.graph.node if n.output[0] not in folded])
    drop_unused_constants(copy.graph, constants)
    result = None if encodings is None else replace(encodings, entries=entries)
    return Rewritten(model=copy, encodings=result, touched=frozenset(touched))


def _line(norm: NodeProto, stored: dict[str, TensorProto]) -> tuple[Any, Any]:
    """Factor and shift per channel, in double precision."""
    gamma, beta, mean, variance = (constant_values(stored[name]).astype(np.float64) for name in norm.input[1:5])
    factor = gamma / np.sqrt(variance + float(attribute(norm, "epsilon", 1e-5)))
    return factor, beta - mean * factor


def _fold_weight(pair: _Pair, stored: dict[str, TensorProto], factor: Any) -> None:
    from onnx import numpy_helper

    values = constant_values(stored[pair.weight])
    shape = tuple(-1 if i == pair.axis else 1 for i in range(values.ndim))
    folded = (values.astype(np.float64) * factor.reshape(shape)).astype(np.float32)
    stored[pair.weight].CopyFrom(numpy_helper.from_array(folded, pair.weight))


def _fold_bias(
    graph: GraphProto, layer: NodeProto, stored: dict[str, TensorProto], names: Names, factor: Any, shift: Any
) -> str:
    from onnx import numpy_helper

    old = layer.input[2] if len(layer.input) > 2 else ""
    values = constant_values(stored[old]).astype(np.float64) if old else 0.0
    name = names.fresh(f"{layer.name or layer.output[0]}.bias")
    graph.initializer.append(numpy_helper.from_array((values * factor + shift).astype(np.float32), name))
    if len(layer.input) > 2:
        layer.input[2] = name
    else:
        layer.input.append(name)
    return name


def _scaled(entry: Encoding, factor: Any, axis: int) -> Encoding:
    value: Value = entry.value
    if isinstance(value, Float):
        return entry
    if isinstance(value, Lpbq):
        shape = tuple(-1 if i == axis else 1 for i in range(value.channel_scale.ndim))
        return replace(entry, value=replace(value, channel_scale=value.channel_scale * np.abs(factor).reshape(shape)))
    if isinstance(value, Affine):
        return replace(entry, value=_scaled_affine(value, factor, axis))
    scale = value.scale.reshape(-1) * np.abs(factor)
    return replace(entry, value=replace(value, scale=scale, axis=axis))


def _scaled_affine(value: Affine, factor: Any, axis: int) -> Affine:
    """A negative factor mirrors the grid, which only moves the zero point of an asymmetric one."""
    if value.block_size is not None:
        shape = tuple(-1 if i == axis else 1 for i in range(value.scale.ndim))
        size = np.abs(factor).reshape(shape)
    else:
        size, shape = np.abs(factor), (-1,)
    scale = np.asarray(value.scale * size)
    zero = np.broadcast_to(value.zero_point, scale.shape)
    symmetric = np.logical_and(value.signed, zero == 0)
    mirrored = np.where(symmetric, zero, value.lowest + value.highest - zero)
    zero = np.where(np.broadcast_to(factor.reshape(shape), scale.shape) < 0, mirrored, zero)
    return replace(value, scale=scale, zero_point=np.asarray(zero, np.float64), axis=axis)


transform = Transform(
    name="fold-batchnorm",
    summary="Fold BatchNormalization into the layer in front of it, weight encodings included.",
    match=_match,
    apply=_apply,
    ulps=64.0,
)

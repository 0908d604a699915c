"""Folds BatchNormalization into the convolution or linear layer in front of it, encodings included.

An integer weight grid is carried exactly: a channel's scale is multiplied by the channel's factor. It folds only where
the layer's result is read by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Lpbq, Value
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import Trait, has
from deploykit.model.weights import constant_values
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["transform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    layer: str
    norm: str
    weight: str
    axis: int


def _match(model: ModelProto) -> MatchResult:
    graph = view_of(model)
    sites, refusals = list[Site](), list[Refusal]()
    for node in graph.nodes:
        if node.op_type != "BatchNormalization":
            continue
        layer = graph.maker(node.input[0])
        reason = _reason(graph, node, layer)
        if reason:
            refusals.append(Refusal(nodes=(label(node),), reason=reason))
            continue
        assert layer is not None
        pair = _Pair(layer=layer.output[0], norm=node.output[0], weight=layer.input[1], axis=_channel_axis(layer))
        why = f"{label(node)} scales the channels of {label(layer)}"
        sites.append(Site(nodes=(label(layer), label(node)), tensors=(layer.output[0],), why=why, data=pair))
    none = "" if sites or refusals else "the graph has no BatchNormalization"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=none)


def _reason(graph: GraphCopy, node: NodeProto, layer: NodeProto | None) -> str:
    if attribute(node, "training_mode", 0) or len([name for name in node.output if name]) > 1:
        return "it is in training mode"
    if layer is None or not has(layer, Trait.TAKES_BATCHNORM):
        return "no Conv, ConvTranspose or Gemm feeds it"
    if graph.only_reader(layer.output[0]) is None:
        return f"{layer.output[0]} is read elsewhere too"
    if layer.op_type == "ConvTranspose" and int(attribute(layer, "group", 1)) != 1:
        return "the transposed convolution has groups"
    if layer.op_type == "Gemm" and (attribute(layer, "alpha", 1.0) != 1.0 or attribute(layer, "beta", 1.0) != 1.0):
        return "the Gemm has factors of its own"
    needed = [*node.input[1:5], layer.input[1], *[name for name in layer.input[2:3] if name]]
    missing = [name for name in needed if name not in graph.stored]
    if missing:
        return f"{missing[0]} is not a constant"
    if len(graph.uses(layer.input[1])) > 1:
        return f"the weight {layer.input[1]} is used elsewhere too"
    return ""


def _channel_axis(layer: NodeProto) -> int:
    if layer.op_type == "Gemm":
        return 0 if attribute(layer, "transB", 0) else 1
    return 1 if layer.op_type == "ConvTranspose" else 0


def _apply(model: ModelProto, encodings: EncodingSet | None, found: MatchResult) -> Rewritten:
    graph = GraphCopy(model)
    entries = dict(encodings.entries) if encodings is not None else {}
    touched: set[str] = set()
    gone: list[NodeProto] = []
    for site in found.sites:
        pair: _Pair = site.data
        layer, norm = graph.makers[pair.layer], graph.makers[pair.norm]
        factor, shift = _line(graph, norm)
        _fold_weight(graph, pair, factor)
        bias = _fold_bias(graph, layer, factor, shift)
        touched.add(bias)
        if pair.weight in entries:
            entries[pair.weight] = _scaled(entries[pair.weight], factor, pair.axis)
        for name in (bias, *norm.input[1:5], pair.layer):
            entries.pop(name, None)
        layer.output[0] = pair.norm
        gone.append(norm)
    graph.replace_nodes(gone, {})
    result = None if encodings is None else replace(encodings, entries=entries)
    return Rewritten(model=graph.model, encodings=result, touched=frozenset(touched))


def _line(graph: GraphCopy, norm: NodeProto) -> tuple[Any, Any]:
    """Factor and shift per channel, in double precision."""
    stored = (constant_values(graph.stored[name]) for name in norm.input[1:5])
    gamma, beta, mean, variance = (values.astype(np.float64) for values in stored)
    factor = gamma / np.sqrt(variance + float(attribute(norm, "epsilon", 1e-5)))
    return factor, beta - mean * factor


def _fold_weight(graph: GraphCopy, pair: _Pair, factor: Any) -> None:
    values = constant_values(graph.stored[pair.weight])
    shape = tuple(-1 if i == pair.axis else 1 for i in range(values.ndim))
    graph.restore(pair.weight, (values.astype(np.float64) * factor.reshape(shape)).astype(np.float32))


def _fold_bias(graph: GraphCopy, layer: NodeProto, factor: Any, shift: Any) -> str:
    old = layer.input[2] if len(layer.input) > 2 else ""
    values = constant_values(graph.stored[old]).astype(np.float64) if old else 0.0
    name = graph.store(f"{layer.name or layer.output[0]}.bias", (values * factor + shift).astype(np.float32))
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

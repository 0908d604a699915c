"""Writes a linear layer on rank 3 (MatMul by a stored weight, bias Add) as a 1x1 Conv on rank 4.

The layout ops around it only move values. Encodings are carried over: the weight's along its new axes, the output's as
it is, the input's to its moved copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float8, Lpbq, Value
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["transform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """The layer ``output = source @ weight + bias``; ``bias`` is empty without one."""

    source: str
    weight: str
    bias: str
    output: str
    product: str


def match(model: ModelProto) -> MatchResult:
    """Every MatMul of a rank-3 activation by a stored rank-2 weight, with the Add of a stored bias if there is one."""
    graph = view_of(model)
    shapes = graph.shapes()
    sites, refusals = [], []
    for node in graph.nodes:
        if node.op_type != "MatMul" or node.input[1] not in graph.stored:
            continue
        rank, weight = len(shapes.get(node.input[0], ())), graph.stored[node.input[1]]
        if rank != 3 or len(weight.dims) != 2 or weight.data_type != weight.FLOAT:
            reason = f"{node.input[0]} has rank {rank or 'unknown'}, its weight rank {len(weight.dims)}"
            refusals.append(Refusal(nodes=(label(node),), reason=f"{reason}: needed are 3 and 2, in float32"))
            continue
        linear, nodes = _linear(graph, node)
        why = "a linear layer on rank 3"
        sites.append(Site(nodes=nodes, tensors=(linear.source, linear.output), why=why, data=linear))
    reason = "" if sites else "no MatMul of a rank-3 activation by a stored weight"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _linear(graph: GraphCopy, node: NodeProto) -> tuple[_Linear, tuple[str, ...]]:
    product = node.output[0]
    linear = _Linear(source=node.input[0], weight=node.input[1], bias="", output=product, product=product)
    add = graph.only_reader(product)
    if add is None or add.op_type != "Add" or len(set(add.input)) != 2:
        return linear, (label(node),)
    bias = add.input[0] if add.input[1] == product else add.input[1]
    tensor = graph.stored.get(bias)
    if tensor is None or list(tensor.dims) != [graph.stored[node.input[1]].dims[1]]:
        return linear, (label(node),)
    return replace(linear, bias=bias, output=add.output[0]), (label(node), label(add))


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Rewrite every site; the layer's output keeps its name."""
    graph = GraphCopy(model)
    old, new, carried = [], {}, {}
    for site in matched.sites:
        linear: _Linear = site.data
        product, last = graph.makers[linear.product], graph.makers[linear.output]
        nodes, names = _conv(graph, linear, label(product))
        new[graph.index_of(last)] = nodes
        old += [product, last] if last is not product else [product]
        carried.update(_carried(encodings, linear, names))
    graph.replace_nodes(old, new)
    entries = keep_entries(encodings, graph)
    if entries is not None:
        floats = {name for name, source in carried.items() if isinstance(source, str)}
        made = {name: entry for name, entry in carried.items() if isinstance(entry, Encoding)}
        entries = replace(entries, entries={**entries.entries, **made}, float_tensors=entries.float_tensors | floats)
    notes = tuple(f"{site.data.output}: a 1x1 Conv on rank 4" for site in matched.sites)
    return Rewritten(model=graph.model, encodings=entries, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The tensors that one rewrite makes."""

    turned: str
    image: str
    weight: str
    result: str
    flat: str


def _conv(graph: GraphCopy, linear: _Linear, stem: str) -> tuple[list[NodeProto], _Names]:
    stored: Any = graph.array(linear.weight)
    names = _Names(
        turned=graph.fresh(f"{linear.output}_turned"),
        image=graph.fresh(f"{linear.output}_image"),
        weight=graph.store(f"{linear.weight}_conv", np.ascontiguousarray(stored.T)[:, :, None, None]),
        result=graph.fresh(f"{linear.output}_conv"),
        flat=graph.fresh(f"{linear.output}_flat"),
    )
    operands = [names.image, names.weight, *([linear.bias] if linear.bias else [])]
    nodes = [
        helper.make_node("Transpose", [linear.source], [names.turned], name=f"{stem}/turn", perm=[0, 2, 1]),
        _rank_node(graph, "Unsqueeze", names.turned, names.image, f"{stem}/image"),
        helper.make_node("Conv", operands, [names.result], name=f"{stem}/conv", kernel_shape=[1, 1]),
        _rank_node(graph, "Squeeze", names.result, names.flat, f"{stem}/flat"),
        helper.make_node("Transpose", [names.flat], [linear.output], name=f"{stem}/return", perm=[0, 2, 1]),
    ]
    return nodes, names


def _rank_node(graph: GraphCopy, op_type: str, source: str, target: str, name: str) -> NodeProto:
    """Add or drop axis 2; the axes are an attribute before opset 13."""
    if graph.opset < 13:
        return helper.make_node(op_type, [source], [target], name=name, axes=[2])
    axes = graph.store("linear_to_conv_axes", np.asarray([2], dtype=np.int64))
    return helper.make_node(op_type, [source, axes], [target], name=name)


def _carried(encodings: EncodingSet | None, linear: _Linear, names: _Names) -> dict[str, Encoding | str]:
    """Entries of the new tensors; a name in place of an entry stands for a float tensor of the side list."""
    if encodings is None:
        return {}
    pairs = [(linear.source, names.turned), (linear.source, names.image)]
    pairs += [(linear.output, names.result), (linear.output, names.flat)]
    made: dict[str, Encoding | str] = {}
    for source, target in pairs:
        entry = encodings.get(source)
        if entry is not None:
            made[target] = replace(entry, name=target)
        elif source in encodings.float_tensors:
            made[target] = source
    weight = encodings.get(linear.weight)
    if weight is not None:
        made[names.weight] = replace(weight, name=names.weight, value=_turned(weight.value))
    return made


def _turned(value: Value) -> Value:
    """A weight's encoding after [in, out] became [out, in, 1, 1]."""
    if isinstance(value, Affine):
        if not value.placed and value.scale.size > 1:
            return value
        scale, zero_point = (_turned_array(a, value) for a in (value.scale, value.zero_point))
        axis, block_axis = _turned_axis(value.axis), _turned_axis(value.block_axis)
        return replace(value, scale=scale, zero_point=zero_point, axis=axis, block_axis=block_axis)
    if isinstance(value, Lpbq):
        channels, blocks = (_turned_array(a, value) for a in (value.channel_scale, value.block_scale))
        axis, block_axis = _turned_axis(value.axis), _turned_axis(value.block_axis)
        return replace(value, channel_scale=channels, block_scale=blocks, axis=axis, block_axis=block_axis)
    if isinstance(value, Float8):
        return replace(value, axis=_turned_axis(value.axis))
    return value


def _turned_axis(axis: int | None) -> int | None:
    return None if axis is None else 1 - axis % 2


def _turned_array(array: Array, value: Affine | Lpbq) -> Array:
    return array.T[:, :, None, None] if value.block_size is not None and array.ndim == 2 else array


transform = Transform(
    name="linear-to-conv",
    summary="Writes linear layers on rank 3 as 1x1 Convs on rank 4.",
    match=match,
    apply=apply,
    ulps=64.0,
)

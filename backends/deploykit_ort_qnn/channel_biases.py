"""Writes linear layers as 1x1 Convs, for a backend whose FullyConnected takes no bias with a scale per channel.

A Conv computes the same products and sums and takes such a bias; around it tensors only change their shape. It knows
no version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import label

__all__ = ["channel_biases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """``output = source @ weight + bias``; ``nodes`` make it, ``channel`` is the weight's axis of outputs."""

    nodes: tuple[NodeProto, ...]
    source: str
    weight: str
    bias: str
    output: str
    channel: int


def channel_biases(graph: GraphCopy, encodings: EncodingSet) -> tuple[tuple[str, ...], dict[str, Encoding]]:
    """Rewrite every Gemm, and every MatMul with the Add of a bias, that has a bias and a weight scale per channel.

    Answers with the labels of the layers, and with entries for the tensors made. A layer stays as it is where a shape
    is not known, where its input or output has no integer grid, and where a Gemm does more than multiply and add.
    """
    shapes, names, entries = graph.shapes(), list[str](), dict[str, Encoding]()
    old, new = list[NodeProto](), dict[int, list[NodeProto]]()
    for node in graph.nodes:
        layer = _gemm(graph, node) or _matmul(graph, node, encodings)
        value = None if layer is None else _channel_value(encodings, layer)
        if layer is None or value is None:
            continue
        dims = [_known(shapes.get(name, ())) for name in (layer.source, layer.output)]
        sides = [encodings.get(name) for name in (layer.source, layer.output)]
        if not all(dims) or not all(_on_grid(side) for side in sides):
            continue
        nodes, made = _conv(graph, layer, *dims)
        new[graph.index_of(layer.nodes[-1])] = nodes
        old += layer.nodes
        names.append(label(node))
        for name, entry in zip(made, (*[sides[0]] * 2, *[sides[1]] * 2), strict=False):
            assert entry is not None
            entries[name] = replace(entry, name=name)
        entries[made[-1]] = Encoding(name=made[-1], value=value, is_param=True)
    if names:
        graph.replace_nodes(old, new)
    return tuple(names), entries


def _gemm(graph: GraphCopy, node: NodeProto) -> _Layer | None:
    if node.op_type != "Gemm" or len(node.input) < 3 or not _stored(graph, node.input[1], node.input[2]):
        return None
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if given.get("transA") or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
        return None
    source, weight, bias = node.input
    channel = 0 if given.get("transB") else 1
    return _layer(graph, (node,), source, weight, bias, channel)


def _matmul(graph: GraphCopy, node: NodeProto, encodings: EncodingSet) -> _Layer | None:
    """ONNX Runtime makes one layer of a MatMul and an Add where the product has no grid of its own."""
    if node.op_type != "MatMul" or not _stored(graph, node.input[1]) or node.output[0] in encodings:
        return None
    add = graph.only_reader(node.output[0])
    if add is None or add.op_type != "Add" or len(set(add.input)) != 2:
        return None
    bias = next(name for name in add.input if name != node.output[0])
    if not _stored(graph, bias):
        return None
    return _layer(graph, (node, add), node.input[0], node.input[1], bias, channel=1)


def _stored(graph: GraphCopy, *names: str) -> bool:
    return all(name in graph.stored for name in names)


def _layer(
    graph: GraphCopy, nodes: tuple[NodeProto, ...], source: str, weight: str, bias: str, channel: int
) -> _Layer | None:
    dims = list(graph.stored[weight].dims)
    if len(dims) != 2 or list(graph.stored[bias].dims) != [dims[channel]]:
        return None
    output = nodes[-1].output[0]
    return _Layer(nodes=nodes, source=source, weight=weight, bias=bias, output=output, channel=channel)


def _channel_value(encodings: EncodingSet, layer: _Layer) -> Affine | None:
    """The weight's grid as that of the Conv's, None where it has no scale per output channel."""
    entry = encodings.get(layer.weight)
    value = None if entry is None else entry.value
    if not isinstance(value, Affine) or value.block_size is not None or value.scale.size == 1:
        return None
    flat = (value.scale.reshape(-1), value.zero_point.reshape(-1))
    return replace(value, scale=flat[0], zero_point=flat[1], axis=0) if value.axis == layer.channel else None


def _known(shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape, () where a side of it is not known."""
    sides = tuple(side for side in shape if side is not None)
    return sides if len(sides) == len(shape) >= 2 else ()


def _on_grid(entry: Encoding | None) -> bool:
    return entry is not None and isinstance(entry.value, Affine)


def _conv(
    graph: GraphCopy, layer: _Layer, source: tuple[int, ...], output: tuple[int, ...]
) -> tuple[list[NodeProto], tuple[str, str, str, str, str]]:
    """The nodes, and the tensors: two on the input's grid, two on the output's, and the weight.

    Rows become places of one image, whose channels are last: turning those to the front is undone by the provider.
    """
    weight: Any = graph.array(layer.weight)
    turned = weight if layer.channel == 0 else weight.T
    stem, rows = layer.output, int(np.prod(source[:-1]))
    image, first, conv, last = (graph.fresh(f"{stem}_{part}") for part in ("image", "channels", "conv", "places"))
    kernel = graph.store(f"{layer.weight}_conv", np.ascontiguousarray(turned)[:, :, None, None])
    places = graph.store(f"{stem}_as_image", np.asarray([1, rows, 1, source[-1]], np.int64))
    back = graph.store(f"{stem}_as_before", np.asarray(output, np.int64))
    name = label(layer.nodes[0])
    nodes = [
        helper.make_node("Reshape", [layer.source, places], [image], name=f"{name}/image"),
        helper.make_node("Transpose", [image], [first], name=f"{name}/channels", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", [first, kernel, layer.bias], [conv], name=name, kernel_shape=[1, 1]),
        helper.make_node("Transpose", [conv], [last], name=f"{name}/places", perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", [last, back], [layer.output], name=f"{name}/rows"),
    ]
    return nodes, (image, first, conv, last, kernel)

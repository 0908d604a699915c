"""Rewrites that make one operator of a normalization: LayerNormalization of single operators, BatchNormalization of
nothing, folded into the layer in front of it.

They match the exact form and nothing that is only close to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.encodings.values import Affine, Encoding, Float, Lpbq
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy, copy_of
from deploykit.model.nodes import attribute, changed_operators, label, opset_of, raise_opset
from deploykit.model.operators import Trait, has
from deploykit.model.weights import constant_values, element_type
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, NoMatchError, Refusal, rewrite, rewrite_graph

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["fold_batchnorm", "fuse_layernorm"]

# LayerNormalization is an operator of ONNX since this set.
_LAYERNORM_SINCE = 17


@rewrite_graph(
    name="fuse-layernorm",
    summary="Fuse the layer normalization written in single operators into one LayerNormalization.",
    none="no Sqrt belongs to a normalization",
    ulps=64.0,
)
def fuse_layernorm(look: ModelLook) -> Iterator[Match | Refusal]:
    """``(x - mean) / sqrt(mean((x - mean)^2) + epsilon)`` over the last axis, with an optional factor and shift."""
    sites, cannot = list[Match](), ""
    for root, variance in _candidates(look.graph):
        try:
            sites.append(_layernorm(look, root, variance))
        except NoMatchError as error:
            yield Refusal(nodes=(label(root),), reason=error.reason)
    if sites:
        cannot = _cannot_raise(look.model)
    yield from (Refusal(nodes=site.nodes, reason=cannot) if cannot else site for site in sites)


def _candidates(graph: GraphCopy) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Every Sqrt of a mean square plus something, with the ReduceMean."""
    for node in graph.nodes:
        plus = graph.maker(node.input[0], "Add") if node.op_type == "Sqrt" else None
        for name in plus.input if plus is not None else ():
            mean = graph.maker(name, "ReduceMean")
            if mean is not None and graph.maker(mean.input[0], "Pow", "Mul") is not None:
                yield node, mean
                break


def _cannot_raise(model: ModelProto) -> str:
    if opset_of(model) >= _LAYERNORM_SINCE or not changed_operators(model, _LAYERNORM_SINCE):
        return ""
    try:
        raise_opset(copy_of(model), _LAYERNORM_SINCE)
    except InputError as error:
        return f"LayerNormalization needs operator set {_LAYERNORM_SINCE}: {error.what}, {error.why}"
    return ""


def _layernorm(look: ModelLook, root: NodeProto, variance: NodeProto) -> Match:
    """The normalization around a Sqrt and the mean of squares under it."""
    graph = look.graph
    plus, square = graph.makers[root.input[0]], graph.makers[variance.input[0]]
    rest = [name for name in plus.input if name != variance.output[0]]
    epsilon = graph.scalar(rest[0]) if len(rest) == 1 else None
    if epsilon is None:
        raise NoMatchError("what is added to the variance is not one stored number")
    if epsilon < 0:
        raise NoMatchError(f"the number added to the variance is negative: {epsilon:g}")
    by_itself = square.op_type == "Mul" and square.input[0] == square.input[1]
    if not by_itself and (square.op_type != "Pow" or graph.scalar(square.input[1]) != 2.0):
        raise NoMatchError("the mean under the root is not one of squares")
    centred = graph.maker(square.input[0], "Sub")
    if centred is None:
        raise NoMatchError("no mean is subtracted before squaring")
    source, mean = centred.input[0], graph.maker(centred.input[1], "ReduceMean")
    if mean is None or mean.input[0] != source:
        raise NoMatchError("what is subtracted before squaring is not the mean of the same tensor")
    size = _last_axis(look, source, (mean, variance))
    div = graph.only_reader(root.output[0])
    if div is None or div.op_type != "Div" or div.input[1] != root.output[0]:
        raise NoMatchError("its result does not only divide")
    numerator = graph.maker(div.input[0], "Sub")
    if numerator is None or list(numerator.input) != [source, mean.output[0]]:
        raise NoMatchError("what it divides is not x minus its mean")
    scale, gamma = _stored_operand(graph, div, "Mul", size)
    shift, beta = _stored_operand(graph, scale or div, "Add", size)
    core = [mean, centred, numerator, square, variance, plus, root, div]
    chain = [*core, *(node for node in (scale, shift) if node is not None)]
    own, last = {id(node) for node in chain}, chain[-1].output[0]
    inner = tuple(dict.fromkeys(node.output[0] for node in chain[:-1]))
    for name in inner:
        if name in graph.outputs or any(id(reader) not in own for reader in graph.readers(name)):
            raise NoMatchError(f"{name} is read elsewhere too")
    name = f"{label(chain[-1]).rpartition('/')[0] or last}/LayerNormalization"

    def write(to: NodeSteps) -> None:
        to.gone = [to.node, *(to.graph.makers[made] for made in inner)]
        factor = gamma
        if not factor:  # the operator cannot do without a scale
            factor = to.graph.store(f"{last}_scale", np.ones(size, np.float32))
            to.needs(factor)
        inputs = [source, factor, *([beta] if beta else [])]
        to.end("LayerNormalization", inputs, name=name, axis=-1, epsilon=epsilon)

    why = f"the layer normalization of {source} over its last {size} values"
    nodes = (label(chain[-1]),)
    return Match(why=why, write=write, output=last, nodes=nodes, tensors=inner, opset=_LAYERNORM_SINCE)


def _last_axis(look: ModelLook, source: str, means: tuple[NodeProto, NodeProto]) -> int:
    """The length of the last axis, over which both means go."""
    shape = look.shape(source) if look.dtype(source) == "float" else None
    size = shape[-1] if shape else None
    if shape is None or not isinstance(size, int) or size < 1:
        raise NoMatchError(f"{source} is not float32, or the length of its last axis is unknown")
    for node in means:
        stored = look.graph.array(node.input[1]) if len(node.input) > 1 else None
        axes = attribute(node, "axes") if stored is None else stored.reshape(-1).tolist()
        if axes is None or len(axes) != 1 or int(axes[0]) not in (-1, len(shape) - 1):
            raise NoMatchError(f"{label(node)} is no mean over the last axis alone")
        if not attribute(node, "keepdims", 1):
            raise NoMatchError(f"{label(node)} drops the axis")
    return size


def _stored_operand(graph: GraphCopy, node: NodeProto, op_type: str, size: int) -> tuple[NodeProto | None, str]:
    """The factor or shift of the last axis that alone reads the node's result, and the stored tensor."""
    found = graph.only_reader(node.output[0])
    if found is None or found.op_type != op_type or len(set(found.input)) != 2:
        return None, ""
    name = next(name for name in found.input if name != node.output[0])
    tensor = graph.stored.get(name)
    if tensor is None or list(tensor.dims) != [size] or tensor.data_type != element_type("float"):
        return None, ""
    return found, name


@rewrite(
    "BatchNormalization",
    name="fold-batchnorm",
    summary="Fold BatchNormalization into the layer in front of it, weight encodings included.",
    none="the graph has no BatchNormalization",
    ulps=64.0,
)
def fold_batchnorm(look: ModelLook, node: NodeProto) -> Match:
    """An integer weight grid is carried exactly: a channel's scale is multiplied by the channel's factor."""
    graph, layer = look.graph, look.graph.maker(node.input[0])
    if attribute(node, "training_mode", 0) or len([name for name in node.output if name]) > 1:
        raise NoMatchError("it is in training mode")
    if layer is None or not has(layer, Trait.TAKES_BATCHNORM):
        raise NoMatchError("no Conv, ConvTranspose or Gemm feeds it")
    made, weight = layer.output[0], layer.input[1]
    if graph.only_reader(made) is None:
        raise NoMatchError(f"{made} is read elsewhere too")
    if layer.op_type == "ConvTranspose" and int(attribute(layer, "group", 1)) != 1:
        raise NoMatchError("the transposed convolution has groups")
    if layer.op_type == "Gemm" and (attribute(layer, "alpha", 1.0) != 1.0 or attribute(layer, "beta", 1.0) != 1.0):
        raise NoMatchError("the Gemm has factors of its own")
    needed = [*node.input[1:5], weight, *[name for name in layer.input[2:3] if name]]
    missing = [name for name in needed if name not in graph.stored]
    if missing:
        raise NoMatchError(f"{missing[0]} is not a constant")
    if len(graph.uses(weight)) > 1:
        raise NoMatchError(f"the weight {weight} is used elsewhere too")
    axis = int(layer.op_type == "ConvTranspose" or (layer.op_type == "Gemm" and not attribute(layer, "transB", 0)))

    def write(to: NodeSteps) -> None:
        norm, layer = to.node, to.graph.makers[made]
        stored = (constant_values(to.graph.stored[name]).astype(np.float64) for name in norm.input[1:5])
        gamma, beta, mean, variance = stored
        factor = gamma / np.sqrt(variance + float(attribute(norm, "epsilon", 1e-5)))
        values = constant_values(to.graph.stored[weight]).astype(np.float64)
        scaled = values * factor.reshape(_along(axis, values.ndim))
        to.graph.restore(weight, scaled.astype(np.float32))
        old = layer.input[2] if len(layer.input) > 2 else ""
        shift = constant_values(to.graph.stored[old]).astype(np.float64) if old else 0.0
        new = (shift * factor + (beta - mean * factor)).astype(np.float32)
        bias = to.graph.store(f"{layer.name or made}.bias", new)
        layer.input[:] = [*layer.input[:2], bias]
        layer.output[0] = norm.output[0]
        to.changes(bias)
        to.drop(bias, *norm.input[1:5], made)
        entry = None if to.encodings is None else to.encodings.get(weight)
        if entry is not None:
            to.put(_scaled(entry, factor, axis))

    why = f"{label(node)} scales the channels of {label(layer)}"
    return Match(why=why, write=write, nodes=(label(layer), label(node)), tensors=(made,))


def _along(axis: int, rank: int) -> Sequence[int]:
    return tuple(-1 if at == axis else 1 for at in range(rank))


def _scaled(entry: Encoding, factor: Any, axis: int) -> Encoding:
    """The entry of a weight whose channels are multiplied.

    A negative factor mirrors the grid, which only moves the zero point of an asymmetric one.
    """
    value: Any = entry.value
    if isinstance(value, Float):
        return entry
    if isinstance(value, Lpbq):
        size = np.abs(factor).reshape(_along(axis, value.channel_scale.ndim))
        return replace(entry, value=replace(value, channel_scale=value.channel_scale * size))
    if not isinstance(value, Affine):
        return replace(entry, value=replace(value, scale=value.scale.reshape(-1) * np.abs(factor), axis=axis))
    shape = _along(axis, value.scale.ndim) if value.block_size is not None else (-1,)
    scale = np.asarray(value.scale * np.abs(factor).reshape(shape))
    zero = np.broadcast_to(value.zero_point, scale.shape)
    symmetric = np.logical_and(value.signed, zero == 0)
    mirrored = np.where(symmetric, zero, value.lowest + value.highest - zero)
    zero = np.where(np.broadcast_to(factor.reshape(shape), scale.shape) < 0, mirrored, zero)
    changed = replace(value, scale=scale, zero_point=np.asarray(zero, np.float64), axis=axis)
    return replace(entry, value=changed)

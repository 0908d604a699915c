"""Fuses the layer normalization that exporters write in single operators below operator set 17 into one operator.

It matches ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon)`` over the last axis with an optional factor and shift, and
nothing that is only close to it. Weights are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy, copy_of, view_of
from deploykit.model.nodes import attribute, changed_operators, label, opset_of, raise_opset
from deploykit.model.shape_inference import infer
from deploykit.model.weights import element_type
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_OPSET = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """One normalization: ``inner`` are the tensors that vanish, ``size`` is the length of the last axis."""

    source: str
    output: str
    label: str
    epsilon: float
    gamma: str
    beta: str
    size: int
    inner: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    graph: GraphCopy
    shapes: dict[str, tuple[int, ...]]

    def numbers(self, name: str) -> list[float] | None:
        """The values of a stored tensor of at most a few numbers, None for anything else."""
        tensor = self.graph.stored.get(self.graph.origin(name))
        values = self.graph.array(name) if tensor is not None and np.prod(tensor.dims) <= 8 else None
        return None if values is None else [float(value) for value in values.reshape(-1)]


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Known shapes of float32 tensors; -1 stands for an open dimension."""
    typed = ((name, shape) for name, (dtype, shape) in infer(model).types.items() if dtype == "float")
    return {name: tuple(d if isinstance(d, int) else -1 for d in shape) for name, shape in typed if shape is not None}


def _match(model: ModelProto) -> MatchResult:
    if not any(node.op_type == "Sqrt" for node in model.graph.node):
        return MatchResult(reason="the graph has no Sqrt")
    reader = _Reader(graph=view_of(model), shapes=_shapes(model))
    sites, refusals = list[Site](), list[Refusal]()
    for root, variance in _candidates(reader.graph):
        try:
            found = _norm(reader, root, variance)
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(root),), reason=str(error)))
            continue
        why = f"the layer normalization of {found.source} over its last {found.size} values"
        sites.append(Site(nodes=(found.label,), tensors=found.inner, why=why, data=found))
    if sites and (cannot := _cannot_raise(model)):
        refusals += [Refusal(nodes=site.nodes, reason=cannot) for site in sites]
        sites = []
    reason = "" if sites or refusals else "no Sqrt belongs to a normalization"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


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
    if opset_of(model) >= _OPSET or not changed_operators(model, _OPSET):
        return ""
    try:
        raise_opset(copy_of(model), _OPSET)
    except InputError as error:
        return f"LayerNormalization needs operator set {_OPSET}: {error.what}, {error.why}"
    return ""


def _norm(reader: _Reader, root: NodeProto, variance: NodeProto) -> _Norm:
    plus, square = reader.graph.makers[root.input[0]], reader.graph.makers[variance.input[0]]
    epsilon = _epsilon(reader, [name for name in plus.input if name != variance.output[0]])
    centred = _squared(reader, square)
    source, mean = _centred(reader, centred)
    size = _last_axis(reader, source, (mean, variance))
    div = reader.graph.only_reader(root.output[0])
    if div is None or div.op_type != "Div" or div.input[1] != root.output[0]:
        raise NoMatchError("its result does not only divide")
    numerator = reader.graph.maker(div.input[0], "Sub")
    if numerator is None or list(numerator.input) != [source, mean.output[0]]:
        raise NoMatchError("what it divides is not x minus its mean")
    core = [mean, centred, numerator, square, variance, plus, root, div]
    scale, gamma = _operand(reader, div, "Mul", size)
    shift, beta = _operand(reader, scale or div, "Add", size)
    chain = [*core, *(node for node in (scale, shift) if node is not None)]
    _check_readers(reader, chain)
    made = [node.output[0] for node in chain]
    return _Norm(
        source=source,
        output=made[-1],
        label=label(chain[-1]),
        epsilon=epsilon,
        gamma=gamma,
        beta=beta,
        size=size,
        inner=tuple(dict.fromkeys(made[:-1])),
    )


def _epsilon(reader: _Reader, names: list[str]) -> float:
    values = reader.numbers(names[0]) if len(names) == 1 else None
    if values is None or len(values) != 1:
        raise NoMatchError("what is added to the variance is not one stored number")
    if values[0] < 0:
        raise NoMatchError(f"the number added to the variance is negative: {values[0]:g}")
    return values[0]


def _squared(reader: _Reader, node: NodeProto) -> NodeProto:
    """The Sub whose result the node squares."""
    by_itself = node.op_type == "Mul" and node.input[0] == node.input[1]
    if not by_itself and (node.op_type != "Pow" or reader.numbers(node.input[1]) != [2.0]):
        raise NoMatchError("the mean under the root is not one of squares")
    centred = reader.graph.maker(node.input[0], "Sub")
    if centred is None:
        raise NoMatchError("no mean is subtracted before squaring")
    return centred


def _centred(reader: _Reader, node: NodeProto) -> tuple[str, NodeProto]:
    """x and the ReduceMean, where the node is x minus its mean."""
    mean = reader.graph.maker(node.input[1], "ReduceMean")
    if mean is None or mean.input[0] != node.input[0]:
        raise NoMatchError("what is subtracted before squaring is not the mean of the same tensor")
    return node.input[0], mean


def _last_axis(reader: _Reader, source: str, means: tuple[NodeProto, NodeProto]) -> int:
    """The length of the last axis, over which both means go."""
    shape = reader.shapes.get(source)
    if not shape or shape[-1] < 1:
        raise NoMatchError(f"{source} is not float32, or the length of its last axis is unknown")
    for node in means:
        axes = reader.numbers(node.input[1]) if len(node.input) > 1 else attribute(node, "axes")
        if axes is None or len(axes) != 1 or int(axes[0]) not in (-1, len(shape) - 1):
            raise NoMatchError(f"{label(node)} is no mean over the last axis alone")
        if not attribute(node, "keepdims", 1):
            raise NoMatchError(f"{label(node)} drops the axis")
    return shape[-1]


def _operand(reader: _Reader, node: NodeProto, op_type: str, size: int) -> tuple[NodeProto | None, str]:
    """The factor or shift of the last axis that alone reads the node's result, and the stored tensor."""
    found = reader.graph.only_reader(node.output[0])
    if found is None or found.op_type != op_type or len(set(found.input)) != 2:
        return None, ""
    name = next(name for name in found.input if name != node.output[0])
    tensor = reader.graph.stored.get(name)
    if tensor is None or list(tensor.dims) != [size] or tensor.data_type != element_type("float"):
        return None, ""
    return found, name


def _check_readers(reader: _Reader, chain: list[NodeProto]) -> None:
    own = {id(node) for node in chain}
    for node in chain[:-1]:
        name = node.output[0]
        if name in reader.graph.outputs or any(id(found) not in own for found in reader.graph.readers(name)):
            raise NoMatchError(f"{name} is read elsewhere too")


def _apply(model: ModelProto, encodings: EncodingSet | None, found: MatchResult) -> Rewritten:
    copy = copy_of(model)
    graph = GraphCopy(raise_opset(copy, _OPSET) if found else copy, copy=False)
    touched: set[str] = set()
    gone: list[NodeProto] = []
    made: dict[int, list[NodeProto]] = {}
    for site in found.sites:
        norm: _Norm = site.data
        last = graph.makers[norm.output]
        gone += [last, *(graph.makers[name] for name in norm.inner)]
        gamma = norm.gamma
        if not gamma:  # the operator cannot do without a scale
            gamma = graph.store(f"{norm.output}_scale", np.ones(norm.size, np.float32))
            touched.add(gamma)
        made[graph.index_of(last)] = [_node(norm, gamma)]
    graph.replace_nodes(gone, made)
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), touched=frozenset(touched))


def _node(norm: _Norm, gamma: str) -> NodeProto:
    inputs = [norm.source, gamma, *([norm.beta] if norm.beta else [])]
    name = f"{norm.label.rpartition('/')[0] or norm.output}/LayerNormalization"
    return helper.make_node("LayerNormalization", inputs, [norm.output], name=name, axis=-1, epsilon=norm.epsilon)


transform = Transform(
    name="fuse-layernorm",
    summary="Fuse the layer normalization written in single operators into one LayerNormalization.",
    match=_match,
    apply=_apply,
    ulps=64.0,
)

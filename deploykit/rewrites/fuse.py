"""Rewrites that make one operator of several: GELU, HardSwish, LayerNormalization.

One folds a BatchNormalization into the layer in front of it. Scalar steps around a gate match a function where they
have its values at points, whatever their form; a normalization is matched by its exact form and nothing that is only
close to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto

from deploykit.encodings.new_grids import affine_per_channel
from deploykit.encodings.values import Affine, Float, Lpbq, on_axis
from deploykit.errors import InputError
from deploykit.findings.records import Doubles, replace
from deploykit.model.collect import facts_of
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, changed_operators, copy_of, label, operand, opset_of, raise_opset
from deploykit.model.operators import CONTRIBUTED, LAYERNORM_SINCE, Trait, has
from deploykit.model.patterns import find_blocks, written_layer_norms
from deploykit.model.weights import element_type, stored_values
from deploykit.rewrites.contract import Match, ModelLook, NearMiss, NodeSteps, NoMatchError, rewrite, rewrite_graph

__all__ = ()


# The points at which a function is compared, and the index of 4.0, where a gated function is far from zero.
_POINTS: Doubles = np.linspace(-6.0, 6.0, 241)
_AT = 200
# Tolerance of values, relative to the factor: constants of six digits pass, an approximation of the function does not.
_TOLERANCE = 1e-5

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _clip(node: NodeProto, x: Doubles, low: Doubles | None = None, high: Doubles | None = None) -> Doubles:
    least = attribute(node, "min", -math.inf) if low is None else low
    most = attribute(node, "max", math.inf) if high is None else high
    return np.asarray(np.minimum(np.maximum(x, least), most))


# Operators that work element by element, by their ONNX definitions.
_STEPS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "Clip": _clip,
    "Div": lambda _, a, b: a / b,
    "Erf": lambda _, x: _erf(x),
    "HardSigmoid": lambda n, x: np.clip(attribute(n, "alpha", 0.2) * x + attribute(n, "beta", 0.5), 0.0, 1.0),
    "Mul": lambda _, a, b: a * b,
    "Neg": lambda _, x: -x,
    "Pow": lambda _, a, b: a**b,
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Sigmoid": lambda _, x: 1.0 / (1.0 + np.exp(-x)),
    "Sub": lambda _, a, b: a - b,
    "Tanh": lambda _, x: np.tanh(x),
}


def _factor(graph: GraphCopy, nodes: Sequence[NodeProto], source: str, wanted: Doubles) -> float | None:
    """The positive factor f with which the nodes make f * ``wanted`` of ``source``.

    None where they make something else.
    """
    known = {source: _POINTS}
    with np.errstate(all="ignore"):
        for node in nodes:
            given = [known[n] if n in known else np.asarray(graph.scalar(n)) if n else None for n in node.input]
            known[node.output[0]] = np.asarray(_STEPS[node.op_type](node, *given), np.float64)
    values = known[nodes[-1].output[0]]
    factor = float(values[_AT] / wanted[_AT])
    if not np.isfinite(values).all() or factor <= 0.0 or np.abs(values - factor * wanted).max() > _TOLERANCE * factor:
        return None
    return 1.0 if abs(factor - 1.0) <= _TOLERANCE else float(np.float32(factor))


def _fused(
    look: ModelLook, gate: NodeProto, op_type: str, values: Doubles, *, since: int, domain: str = "", **attributes: Any
) -> Match:
    """The match of an operator around a gate: a part without a factor if there is one, else the shortest with a factor.

    ``since`` is the operator set that has the operator, ``domain`` a domain that has it before. Raises NoMatchError.
    """
    facts = facts_of(look)
    blocks = (block for block in find_blocks(facts) if gate.output[0] in block.inside)
    block = next((block for block in blocks if block.kind == op_type), None)
    if block is None:
        raise NoMatchError("its result goes into no function of one tensor that is read nowhere else")
    source, best = block.source, None
    steps = [look.makers[facts.nodes[index].outputs[0]] for index in block.nodes]
    scalars = [look.stored.get(look.origin(name)) for node in steps for name in node.input]
    # A scalar that is stored with more dimensions than x has may add some to the result.
    flat = all(tensor is None or len(tensor.dims) <= 1 for tensor in scalars)
    for end in range(steps.index(gate) + 1, len(steps)):
        made = steps[end].output[0]
        factor = _factor(look, steps[: end + 1], source, values)
        keeps_shape = flat or look.shape(made) == look.shape(source) is not None
        if factor is not None and keeps_shape and (best is None or factor == 1.0):
            best = end, factor
    if best is None:
        raise NoMatchError(f"nothing around it has the values of a {op_type}, whatever the factor")
    (end, factor), output = best, steps[best[0]].output[0]
    inner = tuple(step.output[0] for step in steps[:end])
    name = f"{label(gate).removesuffix(f'/{gate.op_type}')}/{op_type}"

    def write(to: NodeSteps) -> None:
        to.gone = [to.node, *(to.graph.makers[made] for made in inner)]
        # The operator of another domain stands in only where no other site needs a newer operator set anyway.
        where = "" if to.graph.opset >= since else domain
        if where and not opset_of(to.graph.model, where):
            to.graph.model.opset_import.add(domain=where, version=1)
        if factor == 1.0:
            to.end(op_type, [source], name=name, domain=where, **attributes)
            return
        plain = to.add(op_type, [source], f"{output}_plain", name=name, domain=where, **attributes)
        times = to.store(f"{output}_factor", factor)
        to.end("Mul", [plain, times], name=f"{name}_factor")
        entry = to.entry(output)
        if entry is not None and isinstance(entry.value, Affine):
            # The same integers, with another scale.
            to.put(entry, name=plain, value=replace(entry.value, scale=entry.value.scale / factor))
        to.needed |= {plain, times}

    times = "" if factor == 1.0 else f"{factor:g} times "
    why = f"{output} is {times}the {op_type} of {source}"
    return Match(why, write, output=output, tensors=inner, opset=0 if domain else since)


def _only_fused(
    look: ModelLook, gate: NodeProto, op_type: str, values: Doubles, *, since: int, **attributes: Any
) -> Match | None:
    """The match of ``_fused``; None for a gate in no such function, which is no near miss for a common operator."""
    try:
        found = _fused(look, gate, op_type, values, since=since, **attributes)
    except NoMatchError:
        return None
    changed = changed_operators(look.model, since) if opset_of(look.model) < since else ()
    if changed:
        raise NoMatchError(f"it needs operator set {since}, until which {', '.join(changed)} changed")
    return found


# GELU is an operator of ONNX since this set.
_GELU_SINCE = 20
_EXACT_GELU = np.asarray([0.5 * x * (1.0 + math.erf(x * 0.5**0.5)) for x in _POINTS])
_TANH_GELU = 0.5 * _POINTS * (1.0 + np.tanh((2.0 / math.pi) ** 0.5 * (_POINTS + 0.044715 * _POINTS**3)))
_HARDSWISH = _POINTS * np.clip(_POINTS / 6.0 + 0.5, 0.0, 1.0)


@rewrite(
    *("Erf", "Tanh"),
    none="no Erf or Tanh belongs to a Gelu",
    note="{} times what is written out became one Gelu",
    ulps=16.0,
)
def fuse_gelu(look: ModelLook, node: NodeProto) -> Match | None:
    """Fuse a GELU written out with Erf or Tanh into one Gelu operator, times a factor where it has one.

    Exact with Erf, approximated with Tanh. A near miss is worth a word only for Erf: hardly anything else has it.
    """
    if node.op_type == "Erf":
        return _fused(look, node, "Gelu", _EXACT_GELU, since=_GELU_SINCE, domain=CONTRIBUTED)
    # Compilers do not take the operator that com.microsoft has for this kind.
    return _only_fused(look, node, "Gelu", _TANH_GELU, since=_GELU_SINCE, approximate="tanh")


@rewrite(
    *("HardSigmoid", "Clip"),
    none="no HardSigmoid or Clip belongs to a HardSwish",
    note="{} times what is written out became one HardSwish",
    ulps=16.0,
)
def fuse_hardswish(look: ModelLook, node: NodeProto) -> Match | None:
    """Fuse a HardSwish written out with HardSigmoid or Clip into one operator, times a factor where it has one.

    Clips are everywhere, so that one that belongs to no HardSwish is no near miss.
    """
    return _only_fused(look, node, "HardSwish", _HARDSWISH, since=14)


@rewrite_graph(none="no Sqrt belongs to a normalization", ulps=64.0)
def fuse_layernorm(look: ModelLook) -> Iterator[Match | NearMiss]:
    """Fuse the layer normalization written in single operators into one LayerNormalization.

    ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon)`` over the last axis, with an optional factor and shift.
    """
    facts, sites, sqrts = facts_of(look), list[Match](), set[str]()
    for block in written_layer_norms(facts):
        nodes = [look.makers[facts.nodes[index].outputs[0]] for index in block.nodes]
        root = next((label(node) for node in nodes if node.op_type == "Sqrt"), label(nodes[-1]))
        sqrts.add(root)
        try:
            sites.append(_layernorm(look, nodes, block.source))
        except NoMatchError as error:
            yield NearMiss((root,), error.reason)
    for node in look.nodes:
        plus = look.maker(node.input[0], "Add") if node.op_type == "Sqrt" else None
        means = [] if plus is None else [look.maker(name, "ReduceMean") for name in plus.input]
        squared = [mean for mean in means if mean is not None and look.maker(mean.input[0], "Pow", "Mul")]
        if squared and label(node) not in sqrts:
            yield NearMiss((label(node),), "what is around it is no layer normalization, or is read elsewhere too")
    cannot = ""
    if sites and changed_operators(look.model, LAYERNORM_SINCE) and opset_of(look.model) < LAYERNORM_SINCE:
        try:
            raise_opset(copy_of(look.model), LAYERNORM_SINCE)
        except InputError as error:
            cannot = f"LayerNormalization needs operator set {LAYERNORM_SINCE}: {error.what}, {error.why}"
    yield from (NearMiss(site.nodes, cannot) if cannot else site for site in sites)


def _layernorm(look: ModelLook, core: Sequence[NodeProto], source: str) -> Match:
    """The match of a normalization that these nodes write out, with what scales and shifts it over the last axis."""
    shape = look.shape(source) if look.dtype(source) == "float" else None
    size = shape[-1] if shape else None
    if shape is None or not isinstance(size, int) or size < 1:
        raise NoMatchError(f"{source} is not float32, or the length of its last axis is unknown")
    for node in core:
        if node.op_type != "ReduceMean":
            continue
        if look.axes(node, len(shape)) != [len(shape) - 1] or not attribute(node, "keepdims", 1):
            raise NoMatchError(f"{label(node)} is no mean over the last axis alone that keeps it")
    added = [look.scalar(name) for node in core if node.op_type == "Add" for name in node.input]
    epsilon = max((value for value in added if value is not None), default=-1.0)
    if epsilon < 0:
        raise NoMatchError("what is added to the variance is not one stored number, or is negative")
    chain, parameters = list(core), {"Mul": "", "Add": ""}
    for op_type in parameters:
        found = look.only_reader(chain[-1].output[0], op_type)
        others = [] if found is None else [name for name in found.input if name != chain[-1].output[0]]
        tensor = look.stored.get(others[0]) if len(others) == 1 else None
        fits = tensor is not None and (list(tensor.dims), tensor.data_type) == ([size], element_type("float"))
        if found is not None and fits:
            chain.append(found)
            parameters[op_type] = others[0]
    last, inner = chain[-1].output[0], tuple(node.output[0] for node in chain[:-1])
    name = f"{label(chain[-1]).rpartition('/')[0] or last}/LayerNormalization"

    def write(to: NodeSteps) -> None:
        to.gone = [to.node, *(to.graph.makers[made] for made in inner)]
        factor = parameters["Mul"]
        if not factor:  # the operator cannot do without a scale
            factor = to.store(f"{last}_scale", np.ones(size, np.float32))
            to.needed.add(factor)
        inputs = [source, factor, *filter(None, [parameters["Add"]])]
        to.end("LayerNormalization", inputs, name=name, axis=-1, epsilon=epsilon)

    why = f"the layer normalization of {source} over its last {size} values"
    nodes = (label(chain[-1]),)
    return Match(why, write, output=last, nodes=nodes, tensors=inner, opset=LAYERNORM_SINCE)


@rewrite("BatchNormalization", none="the graph has no BatchNormalization", ulps=64.0)
def fold_batchnorm(look: ModelLook, node: NodeProto) -> Match:
    """Fold BatchNormalization into the layer in front of it, weight encodings included.

    An Add of a stored value per channel between them is folded too.

    A symmetric weight grid is carried exactly: a channel's scale is multiplied by the channel's factor.

    One grid for all channels that is not symmetric becomes a symmetric one for each: compilers take no other.
    """
    layer, added = look.maker(node.input[0]), ""
    if layer is not None and layer.op_type == "Add":  # PaddlePaddle adds the bias of a transposed convolution so
        added = next((name for name in layer.input if name in look.stored), "")
        layer = look.maker(next(name for name in (*layer.input, "") if name != added))
    if attribute(node, "training_mode", 0) or len([name for name in node.output if name]) > 1:
        raise NoMatchError("it is in training mode")
    if layer is None or not has(layer, Trait.TAKES_BATCHNORM):
        raise NoMatchError("no Conv, ConvTranspose or Gemm feeds it")
    made, weight = layer.output[0], layer.input[1]
    for name in (made, node.input[0]):
        if look.only_reader(name) is None:
            raise NoMatchError(f"{name} is read elsewhere too")
    if layer.op_type == "ConvTranspose" and int(attribute(layer, "group", 1)) != 1:
        raise NoMatchError("the transposed convolution has groups")
    if layer.op_type == "Gemm" and (attribute(layer, "alpha", 1.0) != 1.0 or attribute(layer, "beta", 1.0) != 1.0):
        raise NoMatchError("the Gemm has factors of its own")
    needed = [*node.input[1:5], weight, *[name for name in layer.input[2:3] if name]]
    missing = [name for name in needed if name not in look.stored]
    if missing:
        raise NoMatchError(f"{missing[0]} is not a constant")
    if len(look.uses(weight)) > 1:
        raise NoMatchError(f"the weight {weight} is used elsewhere too")
    axis = int(layer.op_type == "ConvTranspose" or (layer.op_type == "Gemm" and not attribute(layer, "transB", 0)))
    gamma, beta, mean, variance = (stored_values(look.stored[n]).astype(np.float64) for n in node.input[1:5])
    factor, old = gamma / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5))), operand(layer, 2)
    shift = stored_values(look.stored[old]).astype(np.float64) if old else 0.0
    if added:
        more, channels = stored_values(look.stored[added]), on_axis(factor, 1, len(look.stored[weight].dims))
        if np.broadcast(more, channels).shape != channels.shape:
            raise NoMatchError(f"{added} is not a value per channel")
        shift = shift + np.broadcast_to(more, channels.shape).ravel()
    new = (shift * factor + (beta - mean * factor)).astype(np.float32)
    moving, fixed = look.grid(layer.input[0]), look.grid(weight)
    if moving is not None and fixed is not None:
        # A device adds the bias to sums in steps of both scales; those of two 16-bit grids are too fine for some
        # biases.
        finest = moving.scale * fixed.scale * np.abs(factor)
        if (np.abs(new) > finest * 2**31).any():
            raise NoMatchError(f"a bias does not fit into 32 bits in steps of {layer.input[0]} times {weight}")

    def write(to: NodeSteps) -> None:
        norm, layer = to.node, to.graph.makers[made]
        to.gone = [norm, to.graph.makers[norm.input[0]]] if added else [norm]
        values = stored_values(to.graph.stored[weight]).astype(np.float64)
        scaled = values * on_axis(factor, axis, values.ndim)
        to.graph.restore(weight, scaled.astype(np.float32))
        bias = to.store(f"{layer.name or made}.bias", new)
        layer.input[:] = [*layer.input[:2], bias]
        layer.output[0] = norm.output[0]
        to.touched.add(bias)
        entry = to.entry(weight)
        if entry is not None:
            to.put(entry, value=_scaled(entry.value, factor, axis, scaled))

    why = f"{label(node)} scales the channels of {label(layer)}"
    why += "; its weights get a symmetric grid per channel" if _is_lopsided(look.grid(weight)) else ""
    return Match(why, write, nodes=(label(layer), label(node)), tensors=(made, node.input[0]))


def _is_lopsided(grid: Affine | None) -> bool:
    """True for a per-tensor grid whose zero lies more than half a step off the middle.

    A symmetric one may lie half a step off.
    """
    middle = 0 if grid is None else (grid.lowest + grid.highest + 1) / 2
    return grid is not None and grid.scale.size == 1 and abs(float(grid.zero_point.item()) - middle) > 0.5


def _scaled(value: Any, factor: Any, axis: int, scaled: Any) -> Any:
    """The encoding of a weight whose channels are multiplied by ``factor``; ``scaled`` are its new values.

    A negative factor mirrors the grid, which only moves the zero point of an asymmetric one. A lopsided grid for all
    channels becomes a symmetric one for each, as fine as its bits allow.
    """
    if isinstance(value, Float):
        return value
    if isinstance(value, Lpbq):
        size = on_axis(np.abs(factor), axis, value.channel_scale.ndim)
        return replace(value, channel_scale=value.channel_scale * size)
    if not isinstance(value, Affine):
        return replace(value, scale=value.scale.reshape(-1) * np.abs(factor), axis=axis)
    if _is_lopsided(value):
        return affine_per_channel(scaled, axis, value.bits)
    if value.block_size is not None:
        factor = on_axis(factor, axis, value.scale.ndim)
    scale = np.asarray(value.scale * np.abs(factor))
    zero = np.broadcast_to(value.zero_point, scale.shape)
    mirrored = np.where(np.logical_and(value.signed, zero == 0), zero, value.lowest + value.highest - zero)
    zero = np.where(np.broadcast_to(factor, scale.shape) < 0, mirrored, zero)
    return replace(value, scale=scale, zero_point=np.asarray(zero, np.float64), axis=axis)

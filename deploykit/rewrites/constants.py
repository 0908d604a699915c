"""Rewrites that make ranges small: huge stored values, quotients under a Log, the inverse of a Sigmoid.

On an integer grid a value of 1e30 leaves one step for everything else. Each rewrite states by how much an output may
change; the proof on data shows whether an assumed margin was enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from onnx import ModelProto, NodeProto

from deploykit.encodings.new_grids import affine_for_range, kind_of_entry
from deploykit.encodings.place import encoded_bounds, keep_entries
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings.records import Interval, Numbers
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, label, reached
from deploykit.model.operators import FLOATS, ROLES, Trait, data_outputs, is_standard, ops
from deploykit.model.ranges import ANYTHING, clip_bounds, graph_bounds, lazy_bounds
from deploykit.rewrites.contract import (
    Match,
    MatchResult,
    ModelLook,
    NearMiss,
    NodeSteps,
    NoMatchError,
    Rewritten,
    Site,
    Transform,
    regrid,
    rewrite,
    rewrite_graph,
)

__all__ = ()

_MASK_PASSES = {"Add", "Where", "Identity", "Cast", *ops(Trait.REARRANGES)}
_REAL = FLOATS | {""}  # or of a type that is not known
# Values below this are masked: no attention score is that low.
_MASKED = -1e3
# exp of less than minus this is zero in float32.
_ZERO_AFTER = 104.0
# Assumed spread of scores, and assumed size of a summand, whose range is not known or proves nothing.
_UNKNOWN_SPREAD = 100.0
_UNKNOWN_MARGIN = 18.0
# Stored values beyond this are examined: no ordinary weight or anchor is that large.
_HUGE = 1e3
_MOVING = ops(Trait.REARRANGES) | {"TopK", "Concat", "Where", "Add"}


class _Flow(Struct, kw_only=True):
    """The way of a constant: the tensors it passes, the tensors added to it, and those that a Where puts beside it.

    ``low`` and ``high`` are the saturation points of its last readers.
    """

    path: dict[str, None] = {}
    summands: dict[str, None] = {}
    beside: dict[str, None] = {}
    low: float = 0.0
    high: float = 0.0


# A function of a graph, the constant, a reader, the tensor that it reads and the flow: True where this is a last
# reader. It raises NoMatchError where the constant must not reach such a reader.
_Ends = Callable[[GraphCopy, str, "NodeProto", str, _Flow], bool]


def _shrinking(
    *,
    name: str,
    summary: str,
    none: str,
    reader: Callable[[NodeProto], bool],
    wanted: Callable[[Numbers], bool],
    ends: _Ends,
    shrink: Callable[[GraphCopy, str, _Flow, Mapping[str, Interval]], str],
) -> Transform:
    """A Transform that makes ``wanted`` constants with such a ``reader`` smaller; the nodes stay.

    ``shrink`` changes one constant, given the bounds of all tensors before, and returns a note about it.
    """

    def follow(graph: GraphCopy, start: str) -> _Flow:
        flow, todo = _Flow(), [start]
        while todo:
            name = todo.pop()
            if name in graph.outputs:
                raise NoMatchError(f"{name} is an output of the model", node=name)
            for node in graph.readers(name):
                if ends(graph, start, node, name, flow):
                    continue
                others = dict.fromkeys(other for other in node.input[node.op_type == "Where" :] if other != name)
                if node.op_type == "Add":
                    flow.summands.update(others)
                elif node.op_type == "Where":
                    flow.beside.update(others)
                fresh = [made for made in data_outputs(node, node.output) if made not in flow.path]
                flow.path.update(dict.fromkeys(fresh))
                todo += fresh
        return flow

    def match(graph: ModelLook) -> MatchResult:
        sites, near = list[Site](), list[NearMiss]()
        for start, tensor in graph.stored.items():
            if tensor.data_type != tensor.FLOAT or not any(map(reader, graph.readers(start))):
                continue
            value = graph.array(start)
            if value is None or not value.size or not wanted(value):
                continue
            try:
                flow = follow(graph, start)
            except NoMatchError as end:
                near.append(NearMiss((end.node,), f"{start}: {end.reason}"))
                continue
            nodes = tuple(map(label, graph.readers(start)))
            why = "what it reaches saturates, or makes zeros of it"
            sites.append(Site(nodes, tensors=(start, *flow.path), why=why, data=flow))
        return MatchResult(tuple(sites), refusals=tuple(near), reason="" if sites else none)

    def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
        """Shrink the constants. Bounds of tensors that they reach are proven, from the encodings where these exist."""
        graph = GraphCopy(model)
        passed = {name for site in matched.sites for name in site.tensors}
        known = {name: value for name, value in encoded_bounds(encodings).items() if name not in passed}
        before = graph_bounds(graph, known)
        notes = [shrink(graph, site.tensors[0], site.data, before) for site in matched.sites]
        after = graph_bounds(graph, known)
        return Rewritten(
            graph.model,
            keep_entries(encodings, graph),
            touched=frozenset(passed),
            ranges={name: after[name] for name in passed if all(math.isfinite(end) for end in after[name])},
            notes=tuple(notes),
        )

    return Transform(name, summary=summary, find=match, apply=apply, ulps=4.0)


def _ends_mask(graph: GraphCopy, start: str, node: NodeProto, name: str, _: _Flow) -> bool:
    """True for the Softmax that a mask ends in. Raises NoMatchError for a reader that a mask must not reach."""
    if node.op_type == "Softmax":
        axis, rank = attribute(node, "axis", -1), len(graph.shape(node.input[0]) or ())
        if axis not in (-1, rank - 1):
            raise NoMatchError(f"the Softmax works along axis {axis}, not the last", node=label(node))
        return True
    # What is not masked is a zero there, and zero times anything; a part of a whole would be a weight.
    scales = node.op_type == "Mul" and name == start and _are_whole(graph, node.input)
    moves = node.op_type in _MASK_PASSES and graph.dtype(node.output[0]) in _REAL
    if not (scales or moves) or (node.op_type == "Where" and node.input[0] == name):
        raise NoMatchError(
            f"it reaches {node.op_type}: only Add, Where, Softmax and what moves values may read a mask",
            node=label(node),
        )
    if node.op_type == "Add" and name == start:
        value: Any = graph.array(start)
        rows = value.reshape(-1, value.shape[-1]) if value.ndim else value.reshape(1, 1)
        if (rows < _MASKED).all(axis=1).any():
            raise NoMatchError("a row is masked wholly: its result depends on the mask's magnitude", node=label(node))
    return False


def _are_whole(graph: GraphCopy, names: Iterable[str]) -> bool:
    """True for whole numbers, such as one less a mask of integers that was cast."""

    def behind(name: str) -> Iterable[str]:
        node = graph.maker(name)
        return node.input if node and node.op_type in ("Sub", *_MASK_PASSES) and graph.dtype(name) in _REAL else ()

    def is_whole(name: str) -> bool:
        value = graph.array(name)
        if value is None:
            return graph.dtype(name) not in _REAL or any(behind(name))
        return not (value % 1).any()

    return all(map(is_whole, reached(names, behind)))


def _bound_mask(graph: GraphCopy, name: str, flow: _Flow, bounds: Mapping[str, Interval]) -> str:
    """Raise every masked value to the largest one that still gives zero; returns a note."""
    value: Any = graph.array(name)
    spread = 0.0
    for summand in flow.summands:
        low, high = bounds.get(summand, ANYTHING)
        spread += high - low if high - low < -_MASKED else _UNKNOWN_SPREAD
    beside = (bounds.get(other, ANYTHING)[0] for other in flow.beside)
    shown = value[value >= _MASKED]
    lowest = float(shown.min()) if shown.size else 0.0
    lowest = min([lowest, *(low if math.isfinite(low) else -_UNKNOWN_SPREAD for low in beside)])
    bound = np.float32(lowest - _ZERO_AFTER - spread)
    graph.restore(name, np.maximum(value, bound).astype(np.float32))
    return f"{name}: {float(value.min()):g} is now {float(bound):g}"


mask_constant = _shrinking(
    name="mask-constant",
    summary="Bounds attention masks of -inf and the like so that Softmax still gives exact zeros.",
    none="no stored value below -1e3 is a Softmax mask",
    reader=lambda node: node.op_type in ("Add", "Where", "Identity", "Mul", "Gather"),
    wanted=lambda value: bool(value.min() < _MASKED and value.max() < -_MASKED),
    ends=_ends_mask,
    shrink=_bound_mask,
)


def _ends_in_saturation(graph: GraphCopy, start: str, node: NodeProto, name: str, flow: _Flow) -> bool:
    """True for a reader that saturates; False for one that only moves or adds values.

    Raises NoMatchError for any other.
    """
    del start
    point, problem = _saturation(graph, node, name), ""
    if point is not None:
        flow.low, flow.high = max(flow.low, point[0]), max(flow.high, point[1])
        return True
    if node.op_type == "Softmax":
        problem = "it reaches a Softmax, which mask-constant looks after"
    elif node.op_type not in _MOVING or not is_standard(node):
        problem = f"it reaches {node.op_type}, which neither saturates nor only moves values"
    elif node.op_type == "Add" and list(node.input).count(name) > 1:
        problem = "it is added to itself"
    elif node.op_type == "TopK" and (graph.readers(node.output[1]) or node.output[1] in graph.outputs):
        problem = "TopK's indices are used: among clamped values the order may change"
    if problem:
        raise NoMatchError(problem, node=label(node))
    return False


def _saturation(graph: GraphCopy, node: NodeProto, name: str) -> Interval | None:
    """How far below and above zero the op's result no longer changes in float32, or None when it never stops."""
    if node.input[0] != name or not is_standard(node):
        return None
    if node.op_type == "Sigmoid":
        # It rounds to 1 from 17.4 on and to 0 below -104; ONNX Runtime's own kernel stops moving at +-18.
        return 104.0, 18.0
    if node.op_type == "Tanh":
        return 9.1, 9.1  # from here on it rounds to +-1
    if node.op_type == "Clip":
        floor, ceiling = clip_bounds(graph, node)
        return (max(-floor, 0.0), max(ceiling, 0.0)) if math.isfinite(floor) and math.isfinite(ceiling) else None
    if node.op_type == "HardSigmoid":
        alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
        return (max(beta / alpha, 0.0), max((1 - beta) / alpha, 0.0)) if alpha > 0 else None
    return None


def _clamp(graph: GraphCopy, name: str, flow: _Flow, bounds: Mapping[str, Interval]) -> str:
    """Clamp a constant such that with its summands it still lies beyond the saturation points; returns a note."""

    pulls = [bounds.get(other, ANYTHING) for other in flow.summands]
    below, above = (
        sum(max(end, 0.0) if math.isfinite(end) else _UNKNOWN_MARGIN for end in ends)
        for ends in ([high for _, high in pulls], [-low for low, _ in pulls])
    )
    value: Any = graph.array(name)
    clamped = np.clip(value, np.float32(-(flow.low + below)), np.float32(flow.high + above)).astype(np.float32)
    graph.restore(name, clamped)
    return f"{name}: values in [{value.min():g}, {value.max():g}] are now in [{clamped.min():g}, {clamped.max():g}]"


saturating_constant = _shrinking(
    name="saturating-constant",
    summary="Clamps stored values of 1e30 and the like that only saturate a Sigmoid, Tanh, Clip or HardSigmoid.",
    none="no stored value beyond 1e3 reaches only saturating ops",
    # A large operand of a Conv or MatMul is ordinary: it is not even looked at.
    reader=lambda node: node.op_type not in ROLES,
    wanted=lambda value: bool(np.abs(value).max() > _HUGE),
    ends=_ends_in_saturation,
    shrink=_clamp,
)


@rewrite_graph(none="no Log of a Div of two operands that are never negative", ulps=64.0)
def log_of_ratio(look: ModelLook) -> Iterator[Match | NearMiss]:
    """Writes Log(a / b) as Log(a) - Log(b), so that the huge quotient never exists.

    Ranges of +-12 in place of 1e5; equal where neither operand can be negative.
    """
    bounds_of = lazy_bounds(look)
    for log in look.nodes:
        ratio = look.maker(log.input[0], "Div") if log.op_type == "Log" else None
        if ratio is None:
            continue
        nodes, quotient, output = (label(ratio), label(log)), ratio.output[0], log.output[0]
        negative = [name for name in ratio.input if not bounds_of(name)[0] >= 0]
        if look.only_reader(quotient) is None:
            yield NearMiss(nodes, f"{quotient} is used elsewhere too")
        elif negative:
            why = f"{negative[0]} may be negative: the log of the ratio of two negative numbers exists"
            yield NearMiss(nodes, why)
        else:
            why, tensors = "both operands are never negative", (quotient, output)
            yield Match(why, _difference_of_logs, output=output, nodes=nodes, tensors=tensors)


def _difference_of_logs(to: NodeSteps) -> None:
    made, stem = to.made, label(to.node)
    ratio = to.graph.makers[to.source]
    to.gone = [to.node, ratio]
    parts = zip(ratio.input, ("dividend", "divisor"), strict=True)
    logs = [to.add("Log", [name], f"{made}_{part}", name=f"{stem}/{part}") for name, part in parts]
    to.end("Sub", logs, name=f"{stem}/difference")
    to.bounded.update((*logs, made))
    to.notes.append(f"{made}: Log(a / b) is now Log(a) - Log(b)")


@rewrite("Log", none="no Log of a product with a huge stored number", ulps=64.0)
def log_of_scaled(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes Log(K * x + c) with a huge K as Log(x + c / K) + log(K), so that no huge product exists.

    As in the front ends of speech models, which take the logarithm of a spectrum times 2^20.
    """
    plus = look.maker(node.input[0], "Add")
    names = [node.input[0]] if plus is None else list(plus.input)
    products = [made for name in names if (made := look.maker(name, "Mul")) is not None]
    others = [look.scalar(name) for name in names if not products or name != products[0].output[0]]
    if len(products) != 1 or any(value is None or value < 0 for value in others):
        return None
    operands = products[0].input
    factor, x = max((look.scalar(name) or 0.0, other) for name, other in (operands, tuple(operands)[::-1]))
    if factor <= _HUGE or not math.isfinite(factor):
        return None

    def write(to: NodeSteps) -> None:
        made, source = to.made, x
        if others:
            source = to.add("Add", [x, to.store(f"{made}_added", (others[0] or 0.0) / factor)], f"{made}_scaled")
        log = to.add("Log", [source], f"{made}_log", name=to.node.name)
        to.end("Add", [log, to.store(f"{made}_shift", math.log(factor))], name=f"{made}_shifted")
        to.bounded.update(step.output[0] for step in to.nodes)

    return Match(f"it takes the logarithm of {factor:g} times {x}", write)


@rewrite(*("Log", "Sub"), none="no inverse sigmoid over a Sigmoid", ulps=64.0)
def logit_of_sigmoid(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes the inverse sigmoid of a Sigmoid as a Clip of the Sigmoid's input.

    Log(Clip(s, eps) / Clip(1 - s, eps)) with s = Sigmoid(u) gives u back, cut at +-log(eps).

    In float32 the chain is the less exact of the two: near s = 1 it loses all but a few digits of 1 - s.
    """
    ratio = look.maker(node.input[0], "Div") if node.op_type == "Log" else None
    logs = [look.maker(name, "Log") for name in node.input] if node.op_type == "Sub" else []
    if ratio is not None:
        above, below = ratio.input
    elif len(logs) == 2 and logs[0] is not None and logs[1] is not None:  # as log-of-ratio leaves it
        above, below = logs[0].input[0], logs[1].input[0]
    else:
        return None
    base, low = _clipped(look, above)
    complement, high = _clipped(look, below)
    sub = look.maker(complement, "Sub")
    if sub is None or look.scalar(sub.input[0]) != 1.0:
        raise NoMatchError(f"{complement} is not 1 minus something")
    if sub.input[1] != base:
        raise NoMatchError(f"the ratio is of {base} and of 1 - {sub.input[1]}: not the same tensor")
    sigmoid = _sigmoid(look, base)
    logit, output, ends = sigmoid.input[0], node.output[0], (math.log(low), -math.log(high))

    def write(to: NodeSteps) -> None:
        name = f"{label(to.node)}/logit"
        if to.graph.opset < 11:
            to.end("Clip", [logit], name=name, min=ends[0], max=ends[1])
        else:
            bounds = to.store(f"{output}_lowest", ends[0]), to.store(f"{output}_highest", ends[1])
            to.end("Clip", [logit, *bounds], name=name)
        to.touched.add(output)
        to.ranges[output] = ends
        to.notes.append(f"{output}: now {logit} clipped to [{ends[0]:.6g}, {ends[1]:.6g}]")

    nodes = tuple(map(label, (sigmoid, sub, node)))
    return Match(f"it undoes the Sigmoid of {logit}", write, nodes=nodes, tensors=(logit, output))


def _clipped(graph: GraphCopy, name: str) -> tuple[str, float]:
    """The input of the Clip that makes a tensor, and the Clip's lower bound, which must lie between 0 and 1/2."""
    clip = graph.maker(name, "Clip")
    if clip is None:
        raise NoMatchError(f"{name} is not clipped away from zero")
    floor, ceiling = clip_bounds(graph, clip)
    if not 0 < floor < 0.5 or ceiling < 1:
        raise NoMatchError(f"{name} is clipped to [{floor:g}, {ceiling:g}], not to [eps, 1]")
    return clip.input[0], floor


def _sigmoid(graph: GraphCopy, name: str) -> NodeProto:
    """The Sigmoid behind a tensor, seen through Identity and through Clips that keep all of 0..1."""
    while True:
        node = graph.maker(name)
        if node is not None and node.op_type == "Sigmoid":
            return node
        bounds = clip_bounds(graph, node) if node is not None and node.op_type == "Clip" else (1.0, 0.0)
        if node is None or not (node.op_type == "Identity" or (bounds[0] <= 0 and bounds[1] >= 1)):
            raise NoMatchError(f"{name} is not a Sigmoid's output")
        name = node.input[0]


# The smallest range of a 16-bit Log that was seen to work: a kernel returned the lowest value everywhere below it.
LEAST_LOG_RANGE = 4.0
_WIDENED = 4.01


@regrid()
def log_range(look: ModelLook) -> dict[str, Affine]:
    """Widens 16-bit encodings of Log outputs to a range of at least 4.

    Grown downward; what a Log's output is only moved to gets the same grid.
    """
    wider = {}
    for node in look.nodes:
        name = node.output[0]
        value = look.grid(name) if node.op_type == "Log" and is_standard(node) else None
        if value is None or look.encodings is None or value.bits != 16:
            continue
        low, high = value.ends
        if high - low < LEAST_LOG_RANGE:
            wider[name] = affine_for_range(high - _WIDENED, high, kind_of_entry(name, look.encodings))
    return wider

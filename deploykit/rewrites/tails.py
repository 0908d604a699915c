"""Rewrites that move the end of a graph to the host: its post-processing, a last scale, the joining of outputs.

The device keeps the head; the host runs the tail in ONNX Runtime, in float. Head and tail together give the original
outputs bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np
from onnx import ModelProto, NodeProto

from deploykit.encodings.cut import crossing_tensors, cut_model
from deploykit.encodings.place import keep_entries
from deploykit.encodings.post_processing import NETWORK_OPS
from deploykit.encodings.values import EncodingSet
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import label
from deploykit.model.operators import ROLES, Trait, has, ops
from deploykit.model.ranges import lazy_bounds
from deploykit.model.values import nested_graphs
from deploykit.rewrites.contract import MatchResult, ModelLook, NearMiss, Rewritten, Site, named

__all__ = ()

_MOVES = ops(Trait.REARRANGES) | {"Cast", "Concat"}
# Ranges whose magnitudes differ by no more than this factor may share a grid.
_ALIKE = 4.0
# A constant scale within this factor of 1 is not worth an output.
_NOTABLE = 2.0


def _movable_end(graph: GraphCopy, allowed: Collection[str], start: Iterable[int] = ()) -> frozenset[int]:
    """Positions of nodes of allowed types, or in ``start``, whose every reader is such a node too."""
    given = frozenset(start)
    return _end(graph, lambda index, node: node.op_type in allowed or index in given)


def _end(graph: GraphCopy, belongs: Callable[[int, NodeProto], bool]) -> frozenset[int]:
    """Positions of nodes that belong to the end and are read by such nodes alone."""
    where = {id(node): index for index, node in enumerate(graph.nodes)}
    later = set[int]()
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.op_type == "Constant" or not belongs(index, node):
            continue
        if all(where[id(reader)] in later for name in node.output for reader in graph.readers(name)):
            later.add(index)
    return frozenset(later)


def _followers(graph: GraphCopy, chosen: Iterable[int], within: Iterable[int]) -> set[int]:
    """Positions of the chosen nodes, and of the nodes in ``within`` that they lead to."""
    below = set(chosen)
    reached = {name for index in below for name in graph.nodes[index].output}
    for index in sorted(within):
        if reached & set(graph.nodes[index].input):
            below.add(index)
            reached.update(graph.nodes[index].output)
    return below


def _cut(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Cut before the nodes at the positions in the one site's data.

    New float outputs without an entry count as touched.
    """
    head, tail = cut_model(model, matched.sites[0].data)
    kept = keep_entries(encodings, GraphCopy(head, copy=False))
    before = {item.name for item in model.graph.output}
    fresh = [item for item in head.graph.output if item.name not in before]
    open_ = {
        item.name
        for item in fresh
        if encodings is not None
        and item.type.tensor_type.elem_type in (0, 1)
        and item.name not in encodings
        and item.name not in encodings.floats
    }
    made = ", ".join(item.name for item in fresh)
    note = f"new outputs: {made}; the host computes " + ", ".join(item.name for item in tail.graph.output)
    return Rewritten(head, kept, touched=frozenset(open_), notes=(note,), tail=tail)


@partial(named, apply=_cut)
def cut_tail(graph: ModelLook) -> MatchResult:
    """Cuts the post-processing off into a model that the host runs.

    The largest end of the graph without an op that belongs to the network, if it is more than moves.
    """
    static = graph.static()

    def is_bias_add(node: NodeProto) -> bool:
        products = [name for name in node.input if graph.maker(name, "MatMul") is not None]
        return node.op_type == "Add" and bool(products) and any(name in static for name in node.input)

    def is_behind(_: int, node: NodeProto) -> bool:
        """A bias of a MatMul, and a clamp right behind an op of the network, fuse with it."""
        if has(node, Trait.CLAMPS, Trait.RECTIFIES):
            maker = graph.maker(node.input[0])
            return maker is None or not (maker.op_type in NETWORK_OPS or is_bias_add(maker))
        return node.op_type not in NETWORK_OPS and not is_bias_add(node)

    later = _end(graph, is_behind)
    work = [index for index in sorted(later) if graph.nodes[index].op_type not in _MOVES]
    if not work:
        return MatchResult(reason="behind the last op with weights there is nothing to compute")
    if not crossing_tensors(graph, later):
        return MatchResult(reason="no op with weights comes before: all of the graph would be cut off")
    return _cut_at(graph, work, later, f"{len(later)} nodes follow the last op with weights")


def _cut_at(
    graph: ModelLook,
    work: Iterable[int],
    later: frozenset[int],
    why: str,
    tensors: Iterable[str] | None = None,
    refusals: Iterable[NearMiss] = (),
) -> MatchResult:
    """The match that cuts the nodes at ``later`` off, where those at ``work`` compute.

    Its tensors are those that cross the cut unless others are named.
    """
    nodes = tuple(label(graph.nodes[index]) for index in work)
    named = crossing_tensors(graph, later) if tensors is None else tuple(dict.fromkeys(tensors))
    return MatchResult((Site(nodes, tensors=named, why=why, data=later),), refusals=tuple(refusals))


@partial(named, apply=_cut)
def loops_on_host(graph: ModelLook) -> MatchResult:
    """Leaves a Loop, an If, a Scan or a NonMaxSuppression behind the layers, and all that follows, to the host.

    Every node that runs another graph or decides a size, with all that it leads to; most layers must come before.
    """
    every = range(len(graph.nodes))
    chosen = [index for index in every if has(graph.nodes[index], Trait.CONTROL_FLOW, Trait.SIZED_BY_VALUES)]
    later = frozenset(_followers(graph, chosen, every))
    # A network inside of a body goes to the host as well.
    inside = [node for body in nested_graphs(graph.nodes) for node in body.node]
    behind = sum(node.op_type in ROLES for node in (*(graph.nodes[index] for index in later), *inside))
    before = sum(node.op_type in ROLES for node in (*graph.nodes, *inside)) - behind
    if not chosen or before < max(behind, 1):
        return MatchResult(
            reason="no layers, or fewer, come before it" if chosen else "no node runs another graph or decides a size"
        )
    return _cut_at(graph, chosen, later, f"{before} layers come before it")


@partial(named, apply=_cut)
def scale_last(graph: ModelLook) -> MatchResult:
    """Moves a last multiplication by the image size or a constant to the host.

    Every last Mul or Div by something that no weight computes, from which only moves lead to the outputs.
    """
    free = {*graph.inputs, *graph.stored}
    for node in graph.nodes:
        if node.op_type in _MOVES and all(name in free for name in node.input if name):
            free.update(node.output)
    scales, refusals = [], []
    for index in sorted(_movable_end(graph, _MOVES | {"Mul", "Div"})):
        node = graph.nodes[index]
        if node.op_type not in ("Mul", "Div"):
            continue
        problem = _no_scale(graph, node, free)
        if problem:
            refusals.append(NearMiss((label(node),), problem))
        else:
            scales.append(index)
    later = _movable_end(graph, _MOVES, scales) if scales else frozenset()
    scales = [index for index in scales if index in later]
    if not scales:
        return MatchResult(refusals=tuple(refusals), reason="no output ends in a multiplication by a scale")
    # Cut off the makers of ``free`` tensors too where only nodes behind the cut read these: they would compute for
    # nobody.
    where = {id(node): index for index, node in enumerate(graph.nodes)}
    grown = set(_followers(graph, scales, later))
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        readers = [where[id(reader)] for name in node.output for reader in graph.readers(name)]
        is_output = any(name in graph.outputs for name in node.output)
        if readers and not is_output and all(r in grown for r in readers) and free & set(node.output):
            grown.add(index)
    data = frozenset(grown)
    tensors = (graph.nodes[index].output[0] for index in scales)
    return _cut_at(graph, scales, data, "the last thing computed is a scale", tensors, refusals)


def _no_scale(graph: GraphCopy, node: NodeProto, free: set[str]) -> str:
    """Why a Mul or Div does not multiply by a scale; "" where it does."""
    scale = node.input[1] if node.op_type == "Div" or node.input[1] in free else node.input[0]
    data = node.input[0] if scale == node.input[1] else node.input[1]
    if scale not in free:
        return "both of its operands are computed from data"
    if data in free:
        return "it computes with inputs only"
    value = graph.array(scale)
    largest = float(np.abs(value).max()) if value is not None and value.size else math.inf
    return f"it scales by {largest:g} only" if 1 / _NOTABLE < largest < _NOTABLE else ""


@partial(named, apply=_cut)
def split_output(graph: ModelLook) -> MatchResult:
    """Gives every part of a concatenated output its own output and grid; the host joins them.

    All Concats that only moves separate from the outputs, unless their parts are known to be alike.
    """
    bounds_of = lazy_bounds(graph)
    ends = _movable_end(graph, _MOVES)
    chosen, refusals = [], []
    for index in sorted(ends):
        node = graph.nodes[index]
        if node.op_type != "Concat":
            continue
        magnitudes = [max(map(abs, bounds_of(name))) for name in node.input]
        known = all(map(math.isfinite, magnitudes))
        if len(set(node.input)) < 2 or (known and max(magnitudes) <= _ALIKE * min(magnitudes)):
            refusals.append(NearMiss((label(node),), "its parts have like ranges"))
        else:
            chosen.append(index)
    if not chosen:
        return MatchResult(refusals=tuple(refusals), reason="no output concatenates unlike ranges")
    later = _movable_end(graph, (), _followers(graph, chosen, ends))
    tensors = (name for index in chosen for name in graph.nodes[index].input)
    return _cut_at(graph, chosen, later, "parts of unlike ranges share an output", tensors, refusals)

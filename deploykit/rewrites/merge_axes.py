"""Writes Reshape, Transpose, Reshape of six or more dimensions with at most five: axes that move together are one.

Window partitions and pixel shuffles are such chains. Where merging is not enough the order is reached in two steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["Move", "moves", "transform"]

_MOST_AXES = 5
_MOST_SEARCHED = 7
"""Axes of a transposition for which every pair of steps is tried: 5040 at most."""

Move = tuple[tuple[int, ...], tuple[int, ...]]
"""One step: the shape that is moved, and the order of its axes."""


def match(model: ModelProto) -> MatchResult:
    """Every Reshape whose result of six or more dimensions is only transposed, then reshaped to at most five."""
    graph = view_of(model)
    types = infer(model).types
    sites, refusals = [], []
    for node in graph.nodes:
        if node.op_type != "Transpose" or len(types.get(node.input[0], ("", None))[1] or ()) <= _MOST_AXES:
            continue
        found = _chain(graph, node, {name: known[1] for name, known in types.items()})
        if isinstance(found, str):
            refusals.append(Refusal(nodes=(label(node),), reason=found))
        else:
            sites.append(found)
    reason = "" if sites else (refusals[0].reason if refusals else "nothing of six or more dimensions is transposed")
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _chain(graph: GraphCopy, node: NodeProto, shapes: dict[str, Shape]) -> Site | str:
    """The site around a Transpose, or why it is none."""
    before, after = graph.maker(node.input[0], "Reshape"), graph.only_reader(node.output[0])
    if before is None or graph.only_reader(node.input[0]) is None:
        return f"{node.input[0]} is not made by a Reshape for this Transpose alone"
    if after is None or after.op_type != "Reshape":
        return f"{node.output[0]} is not read by one Reshape alone"
    shape, last = _static(shapes.get(node.input[0])), _static(shapes.get(after.output[0]))
    if shape is None or last is None:
        return f"the shape of {node.input[0]} or of {after.output[0]} varies"
    if len(last) > _MOST_AXES:
        return f"{after.output[0]} has {len(last)} dimensions as well"
    steps = moves(shape, attribute(node, "perm", ()) or range(len(shape))[::-1])
    if steps is None:
        return f"the order cannot be reached in two steps of at most {_MOST_AXES} dimensions"
    nodes = (label(before), label(node), label(after))
    why = f"{len(shape)} dimensions move as {' then '.join(str(len(moved)) for moved, _ in steps)}"
    return Site(nodes=nodes, tensors=(node.input[0], node.output[0]), why=why, data=(steps, last))


def _static(shape: Shape | None) -> tuple[int, ...] | None:
    known = tuple(dim for dim in shape or () if isinstance(dim, int))
    return known if shape and len(known) == len(shape) and 0 not in known else None


def moves(shape: Sequence[int], order: Sequence[int]) -> tuple[Move, ...] | None:
    """One or two steps of at most five axes that transpose ``shape`` into ``order``; None where there are none."""
    if sorted(order) != list(range(len(shape))):
        return None  # what is declared of the tensor does not fit the node
    shape, order = _merged(shape, order)
    if len(shape) <= _MOST_AXES:
        return ((shape, order),)
    if len(shape) > _MOST_SEARCHED:
        return None
    best: tuple[Move, ...] | None = None
    for first in permutations(range(len(shape))):
        second = tuple(first.index(axis) for axis in order)
        pair = (_merged(shape, first), _merged([shape[axis] for axis in first], second))
        axes = [len(moved) for moved, _ in pair]
        if max(axes) <= _MOST_AXES and (best is None or sum(axes) < sum(len(moved) for moved, _ in best)):
            best = pair
    return best


def _merged(shape: Sequence[int], order: Sequence[int]) -> Move:
    """The same transposition without axes of one element, axes that stay beside each other being one."""
    kept = [axis for axis in order if shape[axis] != 1]
    ranks = {axis: rank for rank, axis in enumerate(sorted(kept))}
    groups: list[list[int]] = []
    for axis in kept:
        if groups and ranks[axis] == ranks[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    by_place = sorted(range(len(groups)), key=lambda number: groups[number][0])
    sizes = tuple(math.prod(shape[axis] for axis in groups[number]) for number in by_place)
    return sizes or (1,), tuple(by_place.index(number) for number in range(len(groups))) or (0,)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Give the chain its smaller shapes under the same names: no value changes, so entries stay as they are."""
    graph = GraphCopy(model)
    for site in matched.sites:
        encodings = _rewrite(graph, site, encodings)
    touched = {name for site in matched.sites for name in site.tensors}
    kept = [item for item in graph.model.graph.value_info if item.name not in touched]
    del graph.model.graph.value_info[:]
    graph.model.graph.value_info.extend(kept)
    graph.prune()
    note = f"{len(matched.sites)} transpositions of six or more dimensions need at most {_MOST_AXES}"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(graph: GraphCopy, site: Site, encodings: EncodingSet | None) -> EncodingSet | None:
    (first, *further), last = site.data
    given, turned = site.tensors
    move = graph.makers[turned]
    after = graph.readers(turned)[0]
    _reshape(graph, graph.makers[given], first[0])
    _reshape(graph, after, last)
    if not further:
        _order(move, first[1])
        return encodings
    ((shape, order),) = further
    between, again = graph.fresh(f"{given}_moved"), graph.fresh(f"{given}_again")
    sizes = graph.store(f"{again}_shape", np.asarray(shape, np.int64))
    move.input[0] = again
    _order(move, order)
    steps = [
        helper.make_node("Transpose", [given], [between], name=between, perm=first[1]),
        helper.make_node("Reshape", [between, sizes], [again], name=again),
    ]
    graph.replace_nodes([], {graph.index_of(move): steps})
    return _shared(encodings, given, (between, again))


def _reshape(graph: GraphCopy, node: NodeProto, shape: Sequence[int]) -> None:
    node.input[1] = graph.store(f"{node.output[0]}_shape", np.asarray(shape, np.int64))


def _order(node: NodeProto, order: Sequence[int]) -> None:
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("perm", list(order)))


def _shared(encodings: EncodingSet | None, source: str, names: Sequence[str]) -> EncodingSet | None:
    """The entry of a tensor for those that hold the same values in another order."""
    entry = None if encodings is None else encodings.get(source)
    if encodings is None or entry is None:
        return encodings
    copies = {name: replace(entry, name=name) for name in names}
    return replace(encodings, entries={**encodings.entries, **copies})


transform = Transform(
    name="merge-axes",
    summary="Writes Reshape, Transpose, Reshape of six or more dimensions with at most five.",
    match=match,
    apply=apply,
)

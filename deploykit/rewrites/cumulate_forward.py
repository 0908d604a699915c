"""Writes a CumSum that runs backwards, or leaves each value itself out, with one that does neither.

Backwards is a Gather with a stored list in front and behind; leaving out is a zero in front and one value less behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_SPECIAL = ("exclusive", "reverse")


def match(model: ModelProto) -> MatchResult:
    """Every CumSum with one of the two attributes set, along an axis that is known."""
    graph = view_of(model)
    nodes = [n for n in graph.nodes if n.op_type == "CumSum" and is_standard(n) and _words(n)]
    types = infer(model).types if nodes else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in nodes:
        try:
            along = _along(graph, node, types.get(node.input[0], ("", None))[1])
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=error.reason))
        else:
            why = f"it is {' and '.join(_words(node))}"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=along))
    reason = "" if sites or refusals else "no CumSum is exclusive or reversed"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _words(node: NodeProto) -> list[str]:
    return [name for name in _SPECIAL if attribute(node, name, 0)]


def _along(graph: GraphCopy, node: NodeProto, shape: Shape) -> tuple[int, int, int]:
    """(rank, axis, its size); a vector has one axis, whatever the input says."""
    if shape is None:
        raise NoMatchError(f"the shape of {node.input[0]} is not known")
    stored = np.asarray(0) if len(shape) == 1 else graph.array(node.input[1])
    if stored is None:
        raise NoMatchError(f"the axis {node.input[1]} is not stored")
    axis = int(stored.reshape(())) % len(shape)
    size = shape[axis]
    if not isinstance(size, int) or size < 1:
        raise NoMatchError(f"the size of axis {axis} is not known")
    return len(shape), axis, size


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Turn, shift, cumulate, and turn back."""
    graph = GraphCopy(model)
    for site in matched.sites:
        encodings = _rewrite(graph, graph.makers[site.tensors[0]], site.data, encodings)
    note = f"{len(matched.sites)} cumulative sums run forwards over all values"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(
    graph: GraphCopy, node: NodeProto, along: tuple[int, int, int], encodings: EncodingSet | None
) -> EncodingSet | None:
    (rank, axis, size), made, source = along, node.output[0], node.input[0]
    turns, shifts = (bool(attribute(node, name, 0)) for name in ("reverse", "exclusive"))
    steps = list[NodeProto]()
    given = source
    if turns:
        given = _turned(graph, steps, given, graph.fresh(f"{made}_turned"), (axis, size))
    if shifts:
        given = _shifted(graph, steps, given, made, (rank, axis, size))
    summed = graph.fresh(f"{made}_forward") if turns else made
    between = [step.output[0] for step in steps]
    place = graph.store(f"{made}_axis", np.asarray(axis, np.int64))
    steps.append(helper.make_node("CumSum", [given, place], [summed], name=node.name))
    if turns:
        _turned(graph, steps, summed, made, (axis, size))
    graph.replace_nodes([node], {graph.index_of(node): steps})
    encodings = share_entry(encodings, source, between)
    return share_entry(encodings, made, [summed]) if turns else encodings


def _turned(graph: GraphCopy, steps: list[NodeProto], source: str, made: str, along: tuple[int, int]) -> str:
    """The values along the axis from the last to the first."""
    axis, size = along
    order = graph.store(f"{made}_order", np.arange(size - 1, -1, -1, dtype=np.int64))
    steps.append(helper.make_node("Gather", [source, order], [made], name=f"{made}_turn", axis=axis))
    return made


def _shifted(graph: GraphCopy, steps: list[NodeProto], source: str, made: str, along: tuple[int, int, int]) -> str:
    """One zero in front, and the last value gone."""
    rank, axis, size = along
    longer, shifted = graph.fresh(f"{made}_longer"), graph.fresh(f"{made}_shifted")
    pads = graph.store(f"{longer}_pads", np.asarray([int(at == axis) for at in range(2 * rank)], np.int64))
    bounds = [graph.store(f"{shifted}_{word}", np.asarray([at], np.int64)) for word, at in _bounds(size, axis)]
    steps.append(helper.make_node("Pad", [source, pads], [longer], name=longer))
    steps.append(helper.make_node("Slice", [longer, *bounds], [shifted], name=shifted))
    return shifted


def _bounds(size: int, axis: int) -> tuple[tuple[str, int], ...]:
    return (("start", 0), ("end", size), ("axis", axis))


transform = Transform(
    name="cumulate-forward",
    summary="Writes a reversed or exclusive CumSum with one that is neither.",
    match=match,
    apply=apply,
    ulps=4.0,
)

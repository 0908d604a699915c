"""Repeats the smaller operand of an Add or Mul in front of a normalization itself, so that both have one shape.

A stored operand is stored repeated, a computed one goes through a Tile. No value changes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.model.collect import facts_seen
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.patterns import Repeated, repeated_before_norm
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["transform"]

_MOST_VALUES = 1 << 26
"""Values that a repeated constant may have: a position table for a few samples has far fewer."""


def match(model: ModelProto) -> MatchResult:
    """Every Add and Mul in front of a layer or RMS normalization that repeats one operand."""
    graph = view_of(model)
    sites, refusals = list[Site](), list[Refusal]()
    facts = facts_seen(graph)
    for found in repeated_before_norm(facts):
        nodes = (found.node.label,)
        if found.operand in graph.stored and math.prod(found.shape) > _MOST_VALUES:
            refusals.append(Refusal(nodes=nodes, reason=f"{found.operand} would be {math.prod(found.shape):,} values"))
        elif found.operand in graph.stored and graph.array(found.operand) is None:
            refusals.append(Refusal(nodes=nodes, reason=f"the values of {found.operand} were not read"))
        else:
            why = f"{found.operand} is repeated to {list(found.shape)}"
            sites.append(Site(nodes=nodes, tensors=(found.operand,), why=why, data=found))
    reason = "" if sites or refusals else "no Add or Mul in front of a normalization repeats an operand"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Give each such node an operand of the shape of its result."""
    graph = GraphCopy(model)
    touched: set[str] = set()
    for site in matched.sites:
        found: Repeated = site.data
        made = _repeated(graph, found)
        encodings, told = _same_grid(encodings, found.operand, made)
        if not told:
            touched.add(made)
    graph.prune()
    kept, note = keep_entries(encodings, graph), f"{len(matched.sites)} operands in front of norms are repeated"
    return Rewritten(model=graph.model, encodings=kept, touched=frozenset(touched), notes=(note,))


def _repeated(graph: GraphCopy, found: Repeated) -> str:
    """The name of the repeated operand, stored or computed, which the node now reads."""
    node = graph.makers[found.node.outputs[0]]
    value = graph.array(found.operand) if found.operand in graph.stored else None
    if value is not None:
        made = graph.store(f"{found.operand}_repeated", np.ascontiguousarray(np.broadcast_to(value, found.shape)))
    else:
        made = graph.fresh(f"{found.operand}_repeated")
    for position, name in enumerate(node.input):
        node.input[position] = made if name == found.operand else name
    if value is None:
        graph.replace_nodes([], {graph.index_of(node): _tiled(graph, found, made)})
    return made


def _tiled(graph: GraphCopy, found: Repeated, made: str) -> list[NodeProto]:
    """The computed operand brought to the rank of the result, and repeated. (An Expand is computed wrong as well.)"""

    full = (1,) * (len(found.shape) - len(found.given)) + found.given
    times = [wanted // given for wanted, given in zip(found.shape, full, strict=True)]
    repeats = graph.store(f"{made}_times", np.asarray(times, np.int64))
    if full == found.given:
        return [helper.make_node("Tile", [found.operand, repeats], [made], name=made)]
    raised, shape = graph.fresh(f"{made}_raised"), graph.store(f"{made}_shape", np.asarray(full, np.int64))
    return [
        helper.make_node("Reshape", [found.operand, shape], [raised], name=raised),
        helper.make_node("Tile", [raised, repeats], [made], name=made),
    ]


def _same_grid(encodings: EncodingSet | None, source: str, made: str) -> tuple[EncodingSet | None, bool]:
    """With the operand's per-tensor entry for the repeated one too; whether nothing is left to be found for it."""
    if encodings is None:
        return None, True
    entry = encodings.get(source)
    if source in encodings.float_tensors:
        return replace(encodings, float_tensors=encodings.float_tensors | {made}), True
    if entry is None or not isinstance(entry.value, Affine) or entry.value.granularity != "per-tensor":
        return encodings, entry is None
    return replace(encodings, entries={**encodings.entries, made: replace(entry, name=made)}), True


transform = Transform(
    name="expand-before-norm",
    summary="Repeat the smaller operand of an Add or Mul in front of a normalization, so that both have one shape.",
    match=match,
    apply=apply,
)

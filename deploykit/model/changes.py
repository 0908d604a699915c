"""The places where two graphs differ, each with the nodes before and after. It judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["GraphChange", "changes_between", "in_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChange:
    """One place: the nodes that are gone and those that stand there instead, each in the order of its graph."""

    before: tuple[NodeFact, ...]
    after: tuple[NodeFact, ...]

    def __str__(self) -> str:
        return in_words([node.op_type for node in self.before], [node.op_type for node in self.after])

    @property
    def where(self) -> str:
        """What a person finds the place by: the first node of what was there, or of what came."""
        return (self.before or self.after)[0].label

    def to_json(self) -> dict[str, Any]:
        """Types of operators before and after, and the names of what was there."""
        return {
            "before": [node.op_type for node in self.before],
            "after": [node.op_type for node in self.after],
            "nodes": [node.label for node in self.before],
        }


def in_words(before: Sequence[str], after: Sequence[str]) -> str:
    """A change by the types of its operators: ``Sigmoid, 2 Clip → Clip``."""
    old, new = (
        ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in Counter(kinds).items())
        for kinds in (before, after)
    )
    if sorted(before) == sorted(after):
        return f"{new} with other inputs or attributes"
    return f"{old or 'nothing'} → {new or 'nothing'}"


def changes_between(before: GraphFacts, after: GraphFacts) -> tuple[GraphChange, ...]:
    """The places where two graphs differ, in the order of the first; () for the same graph.

    A node is the same where type, inputs, outputs and plain attributes are. Changed nodes that share a computed tensor
    are one place.
    """
    kept = Counter(map(_identity, before.nodes)) & Counter(map(_identity, after.nodes))
    places: list[tuple[set[str], list[NodeFact], list[NodeFact]]] = []  # computed tensors, nodes before, nodes after
    for at, facts in ((1, before), (2, after)):
        same, computed = kept.copy(), {name for node in (*before.nodes, *after.nodes) for name in node.outputs if name}
        for node in facts.nodes:
            if same[_identity(node)] > 0:
                same[_identity(node)] -= 1
                continue
            place: Any = (computed & {*node.inputs, *node.outputs}, [], [])
            place[at].append(node)
            for other in [other for other in places if not other[0].isdisjoint(place[0])]:
                places.remove(other)
                place = (place[0] | other[0], other[1] + place[1], other[2] + place[2])
            places.append(place)
    changes = [
        GraphChange(
            before=tuple(sorted(gone, key=lambda node: node.index)),
            after=tuple(sorted(come, key=lambda node: node.index)),
        )
        for _, gone, come in places
    ]
    return tuple(sorted(changes, key=lambda change: (change.before or change.after)[0].index))


def _identity(node: NodeFact) -> tuple[object, ...]:
    return node.domain, node.op_type, node.inputs, node.outputs, repr(sorted(node.attributes.items()))

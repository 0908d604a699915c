"""The places where two graphs differ, each with the nodes before and after. It judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["Change", "changes_between", "in_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
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
    if sorted(before) == sorted(after):
        return f"{_kinds(after)} with other inputs or attributes"
    return f"{_kinds(before) or 'nothing'} → {_kinds(after) or 'nothing'}"


def _kinds(kinds: Sequence[str]) -> str:
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in Counter(kinds).items())


def changes_between(before: GraphFacts, after: GraphFacts) -> tuple[Change, ...]:
    """The places where two graphs differ, in the order of the first; () for the same graph.

    A node is the same where type, inputs, outputs and plain attributes are. Changed nodes that share a computed tensor
    are one place.
    """
    kept = Counter(map(_identity, before.nodes)) & Counter(map(_identity, after.nodes))
    gone, come = tuple(_besides(before.nodes, kept)), tuple(_besides(after.nodes, kept))
    places = _joined([*gone, *come], _computed(before) | _computed(after))
    count = len(gone)
    found = [
        Change(
            before=tuple(gone[index] for index in place if index < count),
            after=tuple(come[index - count] for index in place if index >= count),
        )
        for place in places
    ]
    return tuple(sorted(found, key=lambda change: (change.before or change.after)[0].index))


def _identity(node: NodeFact) -> tuple[object, ...]:
    return node.domain, node.op_type, node.inputs, node.outputs, repr(sorted(node.attributes.items()))


def _besides(nodes: Iterable[NodeFact], kept: Counter[tuple[object, ...]]) -> Iterator[NodeFact]:
    left = kept.copy()
    for node in nodes:
        if left[_identity(node)] > 0:
            left[_identity(node)] -= 1
        else:
            yield node


def _computed(facts: GraphFacts) -> set[str]:
    return {name for node in facts.nodes for name in node.outputs if name}


def _joined(nodes: list[NodeFact], computed: set[str]) -> list[list[int]]:
    """Indices of nodes in groups that share computed tensors; each group sorted."""
    leader = list(range(len(nodes)))

    def first(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    seen: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in computed.intersection((*node.inputs, *node.outputs)):
            other = first(seen.setdefault(name, index))
            here = first(index)
            leader[max(other, here)] = min(other, here)
    groups: dict[int, list[int]] = {}
    for index in range(len(nodes)):
        groups.setdefault(first(index), []).append(index)
    return list(groups.values())

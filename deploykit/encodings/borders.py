"""Where data changes between quantized and float at run time, and what a float set would cost or save if it grew.

An op that touches a float activation runs in float, since a tensor without an encoding can be nothing else. It
changes no set by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from deploykit.model.facts import GraphFacts, with_static

__all__ = ["Border", "Extension", "find_borders", "float_nodes", "suggest_extensions"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Border:
    """One conversion: ``tensor`` is quantized and ``node`` (a label) runs in float.

    ``direction`` is ``to-float`` where the node reads the tensor and ``to-quantized`` where it makes it.
    """

    node_index: int
    tensor: str
    node: str
    direction: str


def float_nodes(facts: GraphFacts, floats: Collection[str]) -> frozenset[int]:
    """Indices of the nodes that run in float: those that read or make a float activation."""
    return _running(with_static(facts), floats)


def _running(facts: GraphFacts, floats: Collection[str]) -> frozenset[int]:
    active = {name for name in floats if (fact := facts.tensors.get(name)) is not None and not fact.is_weight}
    idle = active.isdisjoint
    return frozenset(node.index for node in facts.nodes if not (idle(node.inputs) and idle(node.outputs)))


def find_borders(
    facts: GraphFacts, floats: Collection[str], *, ignored: Collection[str] = frozenset()
) -> tuple[Border, ...]:
    """Every quantized activation that a float node reads or makes, in graph order.

    ``ignored`` are tensors without a type of their own (inside fused pairs).
    """
    return _find(with_static(facts), floats, ignored)


def _find(facts: GraphFacts, floats: Collection[str], ignored: Collection[str]) -> tuple[Border, ...]:
    running = _running(facts, floats)
    found = []
    for index in sorted(running):
        node = facts.nodes[index]
        for names, direction in ((node.inputs, "to-float"), (node.outputs, "to-quantized")):
            found += [
                Border(node_index=index, tensor=name, node=node.label, direction=direction)
                for name in dict.fromkeys(names)
                if _is_quantized(facts, name, floats) and name not in ignored
            ]
    return tuple(found)


def _is_quantized(facts: GraphFacts, name: str, floats: Collection[str]) -> bool:
    fact = facts.tensors.get(name)
    if fact is None or fact.is_weight or name in floats:
        return False
    return fact.is_float or not fact.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Quantized activations that, made float as well, would remove borders.

    ``nodes`` are the ops that would then run in float and do not yet (labels); ``removed`` is the net number of borders
    that would go.
    """

    tensors: tuple[str, ...]
    nodes: tuple[str, ...]
    removed: int


def suggest_extensions(
    facts: GraphFacts, floats: Collection[str], *, ignored: Collection[str] = frozenset(), most_nodes: int = 32
) -> tuple[Extension, ...]:
    """Small quantized islands among float ops whose inclusion removes borders, best gain per op first.

    An island starts at a border and grows over the ops it turns float while these are at most ``most_nodes``; borders
    that it would put around itself are subtracted. Gains are measured one by one, not added up.
    """
    facts, base = with_static(facts), frozenset(floats)
    running = _running(facts, base)
    before = len(_find(facts, base, ignored))
    found = []
    for island in _islands(facts, base, running, ignored, most_nodes):
        grown = base | island
        removed = before - len(_find(facts, grown, ignored))
        if removed > 0:
            turned = sorted(_running(facts, grown) - running)
            labels = tuple(facts.nodes[index].label for index in turned)
            found.append(Extension(tensors=tuple(sorted(island)), nodes=labels, removed=removed))
    return tuple(sorted(found, key=lambda e: (-e.removed / (len(e.nodes) + 1), e.tensors)))


def _islands(
    facts: GraphFacts, floats: frozenset[str], running: frozenset[int], ignored: Collection[str], most: int
) -> list[frozenset[str]]:
    """Groups of quantized tensors around every border, one per step of their growth."""
    islands: dict[frozenset[str], None] = {}
    for start in dict.fromkeys(border.tensor for border in _find(facts, floats, ignored)):
        island, frontier, turned = {start}, {start}, set(running)
        while frontier:
            islands[frozenset(island)] = None
            nodes = {index for name in frontier for index in _touching(facts, name)} - turned
            turned |= nodes
            if len(turned) - len(running) > most:
                break
            names = {name for i in nodes for name in (*facts.nodes[i].inputs, *facts.nodes[i].outputs) if name}
            frontier = {name for name in names - island if _is_quantized(facts, name, floats)}
            island |= frontier
    return list(islands)


def _touching(facts: GraphFacts, tensor: str) -> tuple[int, ...]:
    fact = facts.tensors[tensor]
    return (*(() if fact.producer is None else (fact.producer,)), *fact.consumers)

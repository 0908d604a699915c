"""Where data changes between quantized and float at run time, and what a float set would cost or save if it grew.

An op that touches a float activation runs in float, since a tensor without an encoding can be nothing else. It
changes no set by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from deploykit.facts.graph import GraphFacts, NodeFact

__all__ = ["Border", "find_borders", "float_nodes"]


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
    return frozenset(node.index for node in facts.nodes if any(_active(facts, name, floats) for name in _names(node)))


def _names(node: NodeFact) -> tuple[str, ...]:
    return tuple(name for name in (*node.inputs, *node.outputs) if name)


def _active(facts: GraphFacts, name: str, floats: Collection[str]) -> bool:
    fact = facts.tensors.get(name)
    return name in floats and fact is not None and not fact.is_weight


def find_borders(
    facts: GraphFacts, floats: Collection[str], *, ignored: Collection[str] = frozenset()
) -> tuple[Border, ...]:
    """Every quantized activation that a float node reads or makes, in graph order.

    ``ignored`` are tensors without a type of their own (inside fused pairs).
    """
    running = float_nodes(facts, floats)
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

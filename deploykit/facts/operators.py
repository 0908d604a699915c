"""What kind of work an op does, as far as values and grids are concerned, and which ops a graph is made of.

It classifies by op type alone; where values or settings matter, other modules look closer.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from deploykit.facts.graph import GraphFacts, NodeFact
from deploykit.facts.movement import GRID_PRESERVING_OPS
from deploykit.facts.parameters import DEFAULT_DOMAINS
from deploykit.facts.settings import is_setting

__all__ = [
    "CONTROL_FLOW_OPS",
    "DATA_MOVEMENT_OPS",
    "Propagation",
    "control_flow_nodes",
    "float_tensors",
    "op_inventory",
    "propagation",
]

DATA_MOVEMENT_OPS = GRID_PRESERVING_OPS
"""Ops whose outputs hold only values of their first input."""

CONTROL_FLOW_OPS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Ops that run other graphs."""

_JOINS = frozenset({"Concat", "Max", "Min", "Scatter", "ScatterElements", "ScatterND", "Where"})
_CLAMPS = frozenset({"Clip", "Relu"})


class Propagation(StrEnum):
    """What becomes of the values of an op's inputs."""

    MOVES = "moves"
    JOINS = "joins"
    CLAMPS = "clamps"
    COMPUTES = "computes"


def propagation(node: NodeFact) -> Propagation:
    """``moves`` keeps values of one input, ``joins`` of several, ``clamps`` keeps or cuts, ``computes`` makes new ones."""
    if node.domain not in DEFAULT_DOMAINS:
        return Propagation.COMPUTES
    if node.op_type in DATA_MOVEMENT_OPS:
        return Propagation.MOVES
    if node.op_type in _JOINS:
        return Propagation.JOINS
    return Propagation.CLAMPS if node.op_type in _CLAMPS else Propagation.COMPUTES


def op_inventory(facts: GraphFacts) -> dict[str, int]:
    """How often each op type occurs in the main graph, most frequent first; other domains as ``domain.Type``."""
    counted = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in facts.nodes)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def control_flow_nodes(facts: GraphFacts) -> tuple[NodeFact, ...]:
    """The nodes that run other graphs, in graph order."""
    return tuple(node for node in facts.nodes if node.op_type in CONTROL_FLOW_OPS and node.domain in DEFAULT_DOMAINS)


def float_tensors(facts: GraphFacts) -> tuple[str, ...]:
    """The floating-point tensors that some node computes with or the graph gives out; settings are left out."""
    return tuple(
        fact.name
        for fact in facts.tensors.values()
        if fact.is_float
        and (fact.is_output or any(not is_setting(node, fact.name) for node in facts.consumers_of(fact.name)))
    )

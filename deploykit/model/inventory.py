"""Which nodes of a graph run other graphs or handle sequences, and which tensors it computes with in floating point.

It lists by op type and tensor type; it judges nothing.
"""

from __future__ import annotations

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.ops import Trait, has
from deploykit.model.settings import is_setting

__all__ = ["control_flow_nodes", "float_tensors", "sequence_nodes"]


def control_flow_nodes(facts: GraphFacts) -> tuple[NodeFact, ...]:
    """The nodes that run other graphs, in graph order."""
    return tuple(node for node in facts.nodes if has(node, Trait.CONTROL_FLOW))


def sequence_nodes(facts: GraphFacts) -> tuple[NodeFact, ...]:
    """The nodes that make, change or join sequences of tensors without running another graph, in graph order."""
    return tuple(node for node in facts.nodes if has(node, Trait.ON_SEQUENCES))


def float_tensors(facts: GraphFacts) -> tuple[str, ...]:
    """The floating-point tensors that some node computes with or the graph gives out; settings are left out."""
    return tuple(
        fact.name
        for fact in facts.tensors.values()
        if fact.is_float
        and (fact.is_output or any(not is_setting(node, fact.name) for node in facts.consumers_of(fact.name)))
    )

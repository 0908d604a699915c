"""Which tensors are computed from stored values only: tool chains compute them once, so they are constants in effect.

Exports share biases and scales through Identity, and compute shapes and grids from constants. Nothing is computed here.
"""

from __future__ import annotations

from dataclasses import replace

from deploykit.model.facts import GraphFacts, NodeFact, TensorRole
from deploykit.model.ops import Trait, has

__all__ = ["static_nodes", "static_tensors", "with_static"]


def static_tensors(facts: GraphFacts) -> frozenset[str]:
    """Stored tensors and everything that deterministic ops make of nothing but those; one pass over the nodes."""
    return facts.once("static tensors", lambda: _static_tensors(facts))


def _static_tensors(facts: GraphFacts) -> frozenset[str]:
    found = {name for name, fact in facts.tensors.items() if fact.is_weight}
    for node in facts.nodes:
        if _folds(node) and all(name in found for name in node.inputs if name):
            found.update(name for name in node.outputs if name)
    return frozenset(found)


def _folds(node: NodeFact) -> bool:
    """Bodies of control flow may read tensors from outside that are not among the node's inputs."""
    return not has(node, Trait.RANDOM, Trait.CONTROL_FLOW) and any(node.inputs)


def static_nodes(facts: GraphFacts) -> frozenset[int]:
    """Indices of Constant nodes and of nodes that make only static tensors."""
    known = static_tensors(facts)
    return frozenset(
        node.index for node in facts.nodes if node.outputs and all(name in known for name in node.outputs if name)
    )


def with_static(facts: GraphFacts) -> GraphFacts:
    """The same facts with static tensors in the role of constants; the facts themselves when there are none."""
    return facts.once("with static", lambda: _with_static(facts))


def _with_static(facts: GraphFacts) -> GraphFacts:
    computed = [name for name in static_tensors(facts) if not facts.tensors[name].is_weight]
    if not computed:
        return facts
    constants = {name: replace(facts.tensors[name], role=TensorRole.CONSTANT) for name in computed}
    return replace(facts, tensors={**facts.tensors, **constants})

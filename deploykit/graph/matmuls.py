"""Finds matrix products by what they multiply: two computed tensors, or a linear layer on data of rank 3.

It only looks; rewriting such places is the business of transforms.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploykit.graph.facts import GraphFacts, NodeFact
from deploykit.graph.ops import is_standard
from deploykit.graph.parameters import bias_after_matmul, stored_behind

__all__ = ["Linear3d", "dynamic_matmuls", "linear3d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear3d:
    """MatMul of rank-3 data with a stored matrix, and the Add of its bias where there is one."""

    matmul: NodeFact
    add: NodeFact | None
    data: str
    weight: str
    bias: str | None
    output: str


def dynamic_matmuls(facts: GraphFacts) -> tuple[NodeFact, ...]:
    """The MatMul nodes both of whose operands are computed, in graph order."""
    return tuple(
        node
        for node in _matmuls(facts)
        if all(stored_behind(facts, name) is None and name in facts.tensors for name in node.inputs)
    )


def linear3d(facts: GraphFacts) -> tuple[Linear3d, ...]:
    """Every linear layer on data of rank 3, in graph order; those of unknown rank are left out."""
    return tuple(found for node in _matmuls(facts) if (found := _linear3d(facts, node)) is not None)


def _matmuls(facts: GraphFacts) -> tuple[NodeFact, ...]:
    return tuple(
        node for node in facts.nodes if node.op_type == "MatMul" and is_standard(node) and len(node.inputs) == 2
    )


def _linear3d(facts: GraphFacts, node: NodeFact) -> Linear3d | None:
    data, weight = node.inputs[0], stored_behind(facts, node.inputs[1])
    if weight is None or facts.tensors[weight].rank != 2 or facts.tensors[data].rank != 3:
        return None
    bias = bias_after_matmul(facts, node)
    add = None if bias is None else facts.consumers_of(node.outputs[0])[0]
    output = (add or node).outputs[0]
    return Linear3d(matmul=node, add=add, data=data, weight=weight, bias=bias, output=output)

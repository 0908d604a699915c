"""Finds means and sums over several axes of which one has length 1, of a tensor that was turned before.

A pattern of a graph, nothing more: which compiler computes it wrong is known to the rules of its adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.ops import is_standard

__all__ = ["Reduction", "over_short_axes"]

_SUMS = frozenset({"ReduceMean", "ReduceSum"})
_PASSED = frozenset({"DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The node, the tensor it reduces, and that tensor's shape."""

    node: NodeFact
    source: str
    shape: tuple[int, ...]


def over_short_axes(facts: GraphFacts) -> Iterator[Reduction]:
    """Every ReduceMean and ReduceSum whose axes hold one of length 1 beside longer ones, behind a Transpose."""
    for node in facts.nodes:
        if node.op_type not in _SUMS or not is_standard(node):
            continue
        given, made = _static(facts, node.inputs[0]), _static(facts, node.outputs[0])
        if given is None or made is None:
            continue
        longer = _longer(given) - _longer(made)
        if 0 < longer < _axes(facts, node, len(given)) and _is_turned(facts, node.inputs[0]):
            yield Reduction(node=node, source=node.inputs[0], shape=given)


def _longer(shape: tuple[int, ...]) -> int:
    return sum(dim > 1 for dim in shape)


def _axes(facts: GraphFacts, node: NodeFact, rank: int) -> int:
    """How many axes are reduced; all where none is named."""
    named = node.attributes.get("axes")
    if named is None and len(node.inputs) > 1 and node.inputs[1]:
        counted = _static(facts, node.inputs[1])
        return counted[0] if counted else 0
    return rank if named is None else len(named)


def _is_turned(facts: GraphFacts, name: str) -> bool:
    node = facts.producer_of(name)
    while node is not None and node.op_type in _PASSED:
        node = facts.producer_of(node.inputs[0])
    return node is not None and node.op_type == "Transpose" and is_standard(node)


def _static(facts: GraphFacts, name: str) -> tuple[int, ...] | None:
    fact = facts.tensors.get(name)
    if fact is None or fact.shape is None:
        return None
    known = tuple(dim for dim in fact.shape if isinstance(dim, int))
    return known if len(known) == len(fact.shape) else None

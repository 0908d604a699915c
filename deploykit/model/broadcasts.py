"""Finds sums and products that repeat a smaller operand along an axis right in front of a normalization.

A pattern of a graph, nothing more: which compiler computes it wrong is known to the rules of its adapter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.fused_blocks import find_blocks
from deploykit.model.ops import is_standard

__all__ = ["Repeated", "repeated_before_norm"]

_RESHAPES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The node in front of the normalization, the operand of shape ``given`` that it repeats to ``shape``."""

    node: NodeFact
    operand: str
    given: tuple[int, ...]
    shape: tuple[int, ...]


def repeated_before_norm(facts: GraphFacts) -> Iterator[Repeated]:
    """Every Add or Mul of static shape that a layer or RMS normalization reads, one operator or written out.

    The operand has rows of its own for several positions: one row, or one column, for all of them is not meant.
    """
    sources = {node.inputs[0] for node in facts.nodes if node.op_type in _NORMS and node.inputs}
    sources |= {block.source for block in find_blocks(facts) if block.kind in _NORMS}
    sources = {_before_reshapes(facts, name) for name in sources}
    for node in facts.nodes:
        if node.op_type not in ("Add", "Mul") or not is_standard(node) or node.outputs[0] not in sources:
            continue
        shape = _static(facts, node.outputs[0])
        for name in dict.fromkeys(node.inputs):
            given = _static(facts, name)
            if shape and given and math.prod(given) < math.prod(shape) and given[-1] > 1 and math.prod(given[:-1]) > 1:
                yield Repeated(node=node, operand=name, given=given, shape=shape)


def _before_reshapes(facts: GraphFacts, name: str) -> str:
    """The tensor whose values another holds in another shape: a Reshape between sum and norm changes nothing here."""
    node = facts.producer_of(name)
    while node is not None and node.op_type in _RESHAPES and is_standard(node):
        name = node.inputs[0]
        node = facts.producer_of(name)
    return name


def _static(facts: GraphFacts, name: str) -> tuple[int, ...] | None:
    fact = facts.tensors.get(name)
    return _known(fact.shape) if fact is not None and fact.shape is not None else None


def _known(shape: Sequence[int | str | None]) -> tuple[int, ...] | None:
    known = tuple(dim for dim in shape if isinstance(dim, int))
    return known if len(known) == len(shape) else None

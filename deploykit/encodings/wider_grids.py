"""Gives the tensors of some nodes 16-bit grids over the ranges that their entries have, where they have fewer bits.

It chooses no nodes and finds no range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, has
from deploykit.model.parameters import parameter_uses

__all__ = ["range_of", "widen"]

_BITS = 16


def widen(facts: GraphFacts, encodings: EncodingSet, nodes: Iterable[int]) -> tuple[EncodingSet, tuple[str, ...]]:
    """The entries with wider ones for what these nodes compute with, and the names of those; weights stay.

    Nodes that only move values behind others that keep their grids keep them too: there is nothing to gain.
    """
    made: dict[str, Encoding] = {}
    params = parameter_uses(facts)
    for index in sorted(nodes):
        node = facts.nodes[index]
        if _only_moves(node, encodings, made):
            continue
        stored = [name for name in node.inputs if name and facts.tensors[name].is_weight and name not in params]
        for name in (*stored, *node.outputs):
            wider = _wider(encodings.get(name))
            if wider is not None:
                made[name] = wider
    return replace(encodings, entries={**encodings.entries, **made}), tuple(made)


def range_of(entry: Encoding | None) -> tuple[float, float] | None:
    """What a per-tensor integer entry holds; None for every other one."""
    if entry is None or not isinstance(entry.value, Affine) or entry.value.granularity != "per-tensor":
        return None
    return float(np.min(entry.value.minimum)), float(np.max(entry.value.maximum))


def _only_moves(node: NodeFact, encodings: EncodingSet, made: dict[str, Encoding]) -> bool:
    if any(name in made for name in node.inputs):
        return False
    return has(node, Trait.REARRANGES) or (node.op_type == "Concat" and _shares_grid(node, encodings))


def _shares_grid(node: NodeFact, encodings: EncodingSet) -> bool:
    return len({range_of(encodings.get(name)) for name in (*node.inputs, *node.outputs)}) == 1


def _wider(entry: Encoding | None) -> Encoding | None:
    ends = range_of(entry)
    if entry is None or ends is None or not isinstance(entry.value, Affine) or entry.value.bits >= _BITS:
        return None
    kind = GridKind(bits=_BITS, signed=entry.value.signed, symmetric=bool(entry.value.symmetric))
    return replace(entry, value=affine_for_range(*ends, kind))

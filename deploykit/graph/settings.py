"""Inputs that are read while a graph is built rather than computed with: shapes, indices, axes, bounds, ratios.

They have no type on a device and need no encoding. It looks at positions only, never at values.
"""

from __future__ import annotations

from collections.abc import Mapping

from deploykit.graph.facts import GraphFacts, NodeFact
from deploykit.graph.parameters import DEFAULT_DOMAINS

__all__ = ["is_setting", "setting_of"]

# Floating-point inputs only; integers are told apart by their type. (ONNX operator documentation)
_SETTINGS: Mapping[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "DequantizeLinear": frozenset({1, 2}),
    "Dropout": frozenset({1}),
    "NonMaxSuppression": frozenset({3, 4}),
    "Pad": frozenset({2}),
    "QuantizeLinear": frozenset({1, 2}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
}

_MOST_INPUTS = 5


def is_setting(node: NodeFact, name: str) -> bool:
    """True where ``node`` reads ``name`` as a setting only."""
    settings = _SETTINGS.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
    if settings is None or len(node.inputs) > _MOST_INPUTS:
        return False
    positions = {index for index, used in enumerate(node.inputs) if used == name}
    return bool(positions) and positions <= settings


def setting_of(facts: GraphFacts, name: str) -> NodeFact | None:
    """The first reader of a tensor that every reader takes as a setting, else None."""
    readers = facts.consumers_of(name)
    return readers[0] if readers and all(is_setting(node, name) for node in readers) else None

"""What an op does to the values it is given: moves, joins, clamps, or computes new ones.

It classifies by op type alone; where values or settings matter, other modules look closer.
"""

from __future__ import annotations

from enum import StrEnum

from deploykit.graph.facts import NodeFact
from deploykit.graph.parameters import DEFAULT_DOMAINS

__all__ = ["GRID_PRESERVING_OPS", "Propagation", "propagation"]

GRID_PRESERVING_OPS = frozenset(
    {"Col2Im", "Compress", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"}
    | {"Identity", "MaxPool", "MaxRoiPool", "NonZero", "Pad", "ReduceMax", "ReduceMin", "Reshape", "Slice"}
    | {"SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze"}
)
"""Ops whose output holds only values of their first input: quantizing before or after gives the same."""


_JOINS = frozenset({"Concat", "Max", "Min", "Scatter", "ScatterElements", "ScatterND", "Where"})
_CLAMPS = frozenset({"Clip", "Relu"})


class Propagation(StrEnum):
    """``moves`` keeps values of one input, ``joins`` of several, ``clamps`` keeps or cuts, ``computes`` the rest."""

    MOVES = "moves"
    JOINS = "joins"
    CLAMPS = "clamps"
    COMPUTES = "computes"


def propagation(node: NodeFact) -> Propagation:
    """What becomes of the values of a node's inputs."""
    if node.domain not in DEFAULT_DOMAINS:
        return Propagation.COMPUTES
    if node.op_type in GRID_PRESERVING_OPS:
        return Propagation.MOVES
    if node.op_type in _JOINS:
        return Propagation.JOINS
    return Propagation.CLAMPS if node.op_type in _CLAMPS else Propagation.COMPUTES

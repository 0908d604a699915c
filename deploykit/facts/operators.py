"""What an op does to the values it is given: moves, joins, clamps, or computes new ones.

It classifies by op type alone; where values or settings matter, other modules look closer.
"""

from __future__ import annotations

from enum import StrEnum

from deploykit.facts.graph import NodeFact
from deploykit.facts.movement import GRID_PRESERVING_OPS
from deploykit.facts.parameters import DEFAULT_DOMAINS

__all__ = ["DATA_MOVEMENT_OPS", "Propagation", "propagation"]

DATA_MOVEMENT_OPS = GRID_PRESERVING_OPS
"""Ops whose outputs hold only values of their first input."""

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
    if node.op_type in DATA_MOVEMENT_OPS:
        return Propagation.MOVES
    if node.op_type in _JOINS:
        return Propagation.JOINS
    return Propagation.CLAMPS if node.op_type in _CLAMPS else Propagation.COMPUTES

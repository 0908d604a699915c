"""What a manifest keeps of a decision beside its route: what was rejected, tried and changed. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import Situation
from deploykit.backend.plans import Plan

if TYPE_CHECKING:
    from deploykit.model.changes import GraphChange

__all__ = ["recorded_decision", "recorded_quantization"]

_MOST_CHANGES = 200
"""A model of a thousand blocks is changed in a thousand places; the first ones, and their number, say as much."""


def recorded_decision(plan: Plan[Any], changes: Sequence[GraphChange]) -> dict[str, Any]:
    """The published shape of ``decision``; at most 200 ``changes``, of ``changed_places``."""
    return {
        "assumed": plan.assumed,
        "rejected": [row.to_json() for row in plan.rejected],
        "alternatives": [row.to_json() for row in plan.alternatives],
        "candidates": [dict(row) for row in plan.candidates],
        "changed_places": len(changes),
        "changes": [change.to_json() for change in changes[:_MOST_CHANGES]],
    }


def recorded_quantization(situation: Situation) -> dict[str, Any] | None:
    """The quantizer's account, and the ladder where one was walked: also where it led to float16 and no encodings."""
    made = {} if situation.quantized is None else dict(situation.quantized.record)
    walked = {} if situation.ladder is None else {"ladder": dict(situation.ladder)}
    return {**made, **walked} or None

"""Holds the precision that was asked for by name against the encodings that were given; it chooses neither."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine, Lpbq
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet
    from deploykit.model.facts import GraphFacts

__all__ = ["refuse_other_precision"]

_WIDTHS = re.compile(r"w(\d+)a(\d+)")
_FLOATS = ("fp32", "fp16", "bf16")


def refuse_other_precision(asked: str | None, encodings: EncodingSet, facts: GraphFacts) -> None:
    """Raise UsageError where ``asked`` names widths, or a float type, that the encodings do not hold.

    Encodings say the precision of every tensor themselves; a name beside them that says something else would
    otherwise be left out of account without a word. Names that tell no widths are the backend's business.
    """
    activations, weights = _widths(encodings, facts)
    held = ", ".join(f"{bits}-bit {kind}" for kind, found in _kinds(activations, weights) for bits in sorted(found))
    widths = _WIDTHS.fullmatch(asked or "")
    differs = asked in _FLOATS and bool(activations | weights)
    if widths is not None:
        weight, activation = int(widths[1]), int(widths[2])
        differs = bool(activations and activation not in activations) or bool(weights and weight not in weights)
    if differs:
        raise UsageError(
            f"--precision {asked}: not what the encodings say",
            why=f"{encodings.source or 'they'} hold {held}",
            next="leave out --precision to package what they say, or --encodings to package the float model",
        )


def _kinds(activations: set[int], weights: set[int]) -> tuple[tuple[str, set[int]], ...]:
    return ("activations", activations), ("weights", weights)


def _widths(encodings: EncodingSet, facts: GraphFacts) -> tuple[set[int], set[int]]:
    """The widths of activations and of weights; 32 bits are biases, which no precision's name counts."""
    activations: set[int] = set()
    weights: set[int] = set()
    for entry in encodings:
        fact = facts.tensors.get(entry.name)
        if isinstance(entry.value, Affine | Lpbq) and entry.value.bits < 32 and fact is not None:
            (weights if fact.is_weight else activations).add(entry.value.bits)
    return activations, weights

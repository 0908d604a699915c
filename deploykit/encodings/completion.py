"""Completes encodings with every entry that follows from the others: int32 biases and copies over data movement.

The result is what AIMET's 2.0.0 export holds beyond its older files. Existing entries are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deploykit.encodings.biases import derive_biases
from deploykit.encodings.movement import ReadValues, copy_over_movement
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts

__all__ = ["Completed", "complete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The completed set; ``biases`` and ``copies`` name what was added, ``skipped`` why a bias has no entry."""

    encodings: EncodingSet
    biases: tuple[str, ...]
    copies: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)


def complete(
    encodings: EncodingSet, facts: GraphFacts, *, read_values: ReadValues, biases: bool = True, copies: bool = True
) -> Completed:
    """Placed encodings with int32 biases, then with copies over data movement; either can be left out.

    ``read_values`` gives the values of stored tensors; it is asked for norm biases and for scalars only.
    """
    derived = derive_biases(encodings, facts, read_values=read_values) if biases else None
    added = derived.entries if derived is not None else ()
    with_biases = replace(encodings, entries={**encodings.entries, **{entry.name: entry for entry in added}})
    moved = copy_over_movement(with_biases, facts, read_values=read_values) if copies else ()
    return Completed(
        encodings=replace(with_biases, entries={**with_biases.entries, **{entry.name: entry for entry in moved}}),
        biases=tuple(entry.name for entry in added),
        copies=tuple(entry.name for entry in moved),
        skipped=derived.skipped if derived is not None else {},
    )

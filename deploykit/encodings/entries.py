"""Small questions to a set of encodings beside a graph: what its entries can hold, which of them a graph still has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from deploykit.encodings.values import Affine, EncodingSet, Float, Float8, Lpbq
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import Interval

__all__ = ["encoded_bounds", "is_wide", "keep_entries", "needed_opset", "share_entry"]


def encoded_bounds(encodings: EncodingSet | None) -> dict[str, Interval]:
    """What the integer entries can hold, per tensor."""
    return {
        entry.name: (float(entry.value.minimum.min()), float(entry.value.maximum.max()))
        for entry in encodings or ()
        if isinstance(entry.value, Affine)
    }


def keep_entries(encodings: EncodingSet | None, graph: GraphCopy) -> EncodingSet | None:
    """The encodings without those of tensors that the graph no longer has."""
    if encodings is None:
        return None
    names = graph.tensor_names
    entries = {name: entry for name, entry in encodings.entries.items() if name in names}
    return replace(encodings, entries=entries, float_tensors=encodings.float_tensors & names)


def is_wide(value: Any) -> bool:
    """True for the types that the standard operators store from opset 21 on."""
    return isinstance(value, Affine) and value.bits in (4, 16)


def needed_opset(encodings: EncodingSet) -> int:
    """The least operator set that can store these encodings: 13, 19 for float8, 21 for 4 bits and blocks."""
    wanted = 13
    for entry in encodings:
        value = entry.value
        if isinstance(value, Lpbq) or (isinstance(value, Affine) and (value.block_size is not None or value.bits == 4)):
            wanted = max(wanted, 21)
        elif isinstance(value, Float8):
            wanted = max(wanted, 19)
    return wanted


def share_entry(encodings: EncodingSet | None, source: str, names: Iterable[str]) -> EncodingSet | None:
    """With what is said of ``source`` said of other tensors that hold nothing but its values.

    Float tensors stay float; an entry per channel or block is not passed on, since its axis may mean nothing there.
    """
    if encodings is None:
        return None
    if source in encodings.float_tensors:
        return replace(encodings, float_tensors=encodings.float_tensors | set(names))
    entry = encodings.get(source)
    whole = entry is not None and isinstance(entry.value, Affine) and entry.value.granularity == "per-tensor"
    if entry is None or not (whole or isinstance(entry.value, Float)):
        return encodings
    return replace(encodings, entries={**encodings.entries, **{name: replace(entry, name=name) for name in names}})

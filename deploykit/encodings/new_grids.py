"""Makes integer grids for ranges, and replaces grids by others of the same values or ranges.

It finds no ranges, which ``infer`` does, and chooses no nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.findings.records import Interval, Names, Numbers, Record, replace
from deploykit.model.facts import GraphFacts
from deploykit.model.operators import Trait, has
from deploykit.model.parameters import parameter_uses

__all__ = [
    "GridKind",
    "affine_for_range",
    "affine_per_channel",
    "entry_for_range",
    "kind_of_entry",
    "range_of",
    "symmetric_blocks",
    "widen",
    "widened",
]

_SMALLEST_SCALE = 2.0**-100


class GridKind(Record, kw_only=False):
    """The kind of a new integer entry: width, sign, and whether zero must lie in the middle."""

    bits: int
    signed: bool
    symmetric: bool = False


def affine_for_range(low: float, high: float, kind: GridKind) -> Affine:
    """The per-tensor grid of a kind that holds [low, high] and zero. Both ends must be finite."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = 1.0  # all zeros: any scale holds them, an ordinary one asks least of a kernel
    lowest = -(1 << (kind.bits - 1)) if kind.signed else 0
    steps = (1 << kind.bits) - 1
    if kind.symmetric:
        scale = max(max(-low, high) / ((1 << (kind.bits - 1)) - 1), _SMALLEST_SCALE)
        middle = 0 if kind.signed else 1 << (kind.bits - 1)
        zero = float(middle)
    else:
        scale = max((high - low) / steps, _SMALLEST_SCALE)
        zero = float(round(-low / scale) + lowest)
    return Affine(
        bits=kind.bits,
        signed=kind.signed,
        scale=np.asarray(scale, dtype=np.float64),
        zero_point=np.asarray(zero, dtype=np.float64),
        symmetric=kind.symmetric,
    )


def affine_per_channel(values: Numbers, axis: int, bits: int) -> Affine:
    """The symmetric grid along ``axis`` that covers the values of each channel, as fine as its bits allow."""
    peak = np.abs(values.astype(np.float64)).max(axis=tuple(at for at in range(values.ndim) if at != axis))
    scale = np.where(peak > 0, peak, 1.0) / ((1 << (bits - 1)) - 1)
    return Affine(bits=bits, signed=True, scale=scale, zero_point=np.zeros(scale.shape), symmetric=True, axis=axis)


def widened(value: Affine, bits: int) -> Affine:
    """A grid of more bits, of the same kind and for the same range."""
    return affine_for_range(*value.ends, GridKind(bits, signed=value.signed, symmetric=bool(value.symmetric)))


def kind_of_entry(name: str, encodings: EncodingSet) -> GridKind:
    """The kind of a tensor's integer entry, else the usual one.

    At least 16 bits where the tensor was meant to be float.
    """
    old = encodings.get(name)
    if old is not None and isinstance(old.value, Affine):
        value = old.value
        # A signed grid around zero stays one; an unsigned one whose file does not say is taken as asymmetric.
        return GridKind(
            value.bits,
            signed=value.signed,
            symmetric=bool(value.symmetric)
            or (value.signed and value.symmetric is None and not np.any(value.zero_point)),
        )
    was_float = name in encodings.float_tensors or (old is not None and isinstance(old.value, Float))
    # The kind that most per-tensor entries have; 16 bits unsigned when there is none.
    kinds = Counter(
        (e.value.bits, e.value.signed)
        for e in encodings
        if isinstance(e.value, Affine) and e.value.granularity == "per-tensor" and e.value.bits <= 16 and not e.is_param
    )
    bits, signed = kinds.most_common(1)[0][0] if kinds else (16, False)
    return GridKind(max(bits, 16 if was_float else 0), signed=signed)


def entry_for_range(name: str, encodings: EncodingSet, low: float, high: float) -> Encoding:
    """The entry of a tensor for a range, of the kind of the entry that it replaces."""
    old = encodings.get(name)
    value = affine_for_range(low, high, kind_of_entry(name, encodings))
    return Encoding(name, value, is_param=old.is_param if old else False)


_WIDE = 16


def widen(facts: GraphFacts, encodings: EncodingSet, nodes: Iterable[int]) -> tuple[EncodingSet, Names]:
    """The encodings with 16-bit entries for results of these nodes and constants that they read, and these names.

    Weights stay. A node that only moves values keeps its grid unless a node before it was widened: there is nothing to
    gain.
    """
    made = dict[str, Encoding]()
    params = parameter_uses(facts)
    for index in sorted(nodes):
        node = facts.nodes[index]
        if not any(name in made for name in node.inputs):
            grids = {range_of(encodings.get(name)) for name in (*node.inputs, *node.outputs)}
            if has(node, Trait.REARRANGES) or (node.op_type == "Concat" and len(grids) == 1):
                continue
        stored = [name for name in node.inputs if name and facts.tensors[name].is_weight and name not in params]
        for name in (*stored, *node.outputs):
            entry = encodings.get(name)
            if entry is not None and range_of(entry) and isinstance(entry.value, Affine) and entry.value.bits < _WIDE:
                made[name] = replace(entry, value=widened(entry.value, _WIDE))
    return encodings.with_entries(made.values()), tuple(made)


def with_wide_activations(encodings: EncodingSet) -> EncodingSet:
    """The encodings with every narrower activation on 16 bits over its entry's range.

    The same set where there is none.
    """
    kind = GridKind(_WIDE, signed=False)
    wide = [
        replace(entry, value=affine_for_range(*ends, kind))
        for entry in encodings
        if not entry.is_param and entry.integer_bits < _WIDE and (ends := range_of(entry))
    ]
    return encodings.with_entries(wide) if wide else encodings


def range_of(entry: Encoding | None) -> Interval | None:
    """The range that a per-tensor integer entry holds; None for any other entry."""
    if entry is None or not isinstance(entry.value, Affine) or entry.value.granularity != "per-tensor":
        return None
    return entry.value.ends


def symmetric_blocks(encodings: EncodingSet) -> tuple[EncodingSet, Names]:
    """The encodings with every asymmetric 4-bit per-block grid as a symmetric 8-bit one, and the tensors' names.

    A 4-bit step minus its zero point lies in -15 .. 15, which fits int8 with the same scale and zero point 0: the same
    numbers at twice the size.
    """
    changed = []
    for entry in encodings:
        value = entry.value
        if not isinstance(value, Affine) or value.block_size is None or value.bits != 4:
            continue
        if np.any(value.zero_point) and np.all(value.zero_point == np.rint(value.zero_point)):
            zero = np.zeros_like(value.zero_point)
            changed.append(replace(entry, value=replace(value, bits=8, signed=True, symmetric=True, zero_point=zero)))
    return encodings.with_entries(changed), tuple(entry.name for entry in changed)

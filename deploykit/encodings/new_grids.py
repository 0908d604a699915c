"""Makes integer grids for ranges: of the kind of the entry they replace, or of the kind that most entries have.

It knows no graph and finds no range: where one comes from is the business of ``inferring``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float

__all__ = ["GridKind", "affine_for_range", "entry_for_range", "kind_of_entry", "usual_grid"]

_SMALLEST_SCALE = 2.0**-100


@dataclass(frozen=True, slots=True, kw_only=True)
class GridKind:
    """What a new integer entry looks like: width, sign, and whether zero must lie in the middle."""

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
        zero = float(min(max(round(-low / scale), 0), steps) + lowest)
    return Affine(
        bits=kind.bits,
        signed=kind.signed,
        scale=np.asarray(scale, dtype=np.float64),
        zero_point=np.asarray(zero, dtype=np.float64),
        symmetric=kind.symmetric,
    )


def usual_grid(encodings: EncodingSet, *, least_bits: int = 0) -> GridKind:
    """The kind most per-tensor entries have, widened to ``least_bits``; 16 bits unsigned when there is none."""
    kinds = Counter(
        (e.value.bits, e.value.signed)
        for e in encodings
        if isinstance(e.value, Affine) and e.value.granularity == "per-tensor" and e.value.bits <= 16 and not e.is_param
    )
    bits, signed = kinds.most_common(1)[0][0] if kinds else (16, False)
    return GridKind(bits=max(bits, least_bits), signed=signed)


def kind_of_entry(name: str, encodings: EncodingSet) -> GridKind:
    """The kind of the entry that a tensor has, else the usual one: 16 bits where the tensor was meant to be float."""
    old = encodings.get(name)
    if old is not None and isinstance(old.value, Affine):
        value = old.value
        return GridKind(bits=value.bits, signed=value.signed, symmetric=_keeps_symmetry(value))
    was_float = name in encodings.float_tensors or (old is not None and isinstance(old.value, Float))
    return usual_grid(encodings, least_bits=16 if was_float else 0)


def entry_for_range(name: str, encodings: EncodingSet, low: float, high: float) -> Encoding:
    """The entry for a range, of the kind of the one that it replaces."""
    old = encodings.get(name)
    value = affine_for_range(low, high, kind_of_entry(name, encodings))
    return Encoding(name=name, value=value, is_param=old.is_param if old else False)


def _keeps_symmetry(value: Affine) -> bool:
    """A signed grid around zero stays one; an unsigned one whose file does not say is taken as asymmetric."""
    return bool(value.symmetric) or (value.signed and value.symmetric is None and not np.any(value.zero_point))

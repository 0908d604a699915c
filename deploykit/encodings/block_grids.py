"""Changes the form of per-block weight grids without changing a value: asymmetric 4-bit blocks as symmetric 8-bit ones.

A 4-bit step minus its zero point lies in -15 .. 15, which fits int8 with the same scale and zero point 0: the same
numbers at twice the size. It reads no weights.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from deploykit.encodings.values import Affine, EncodingSet

__all__ = ["symmetric_blocks"]


def symmetric_blocks(encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with every asymmetric 4-bit per-block grid as a symmetric 8-bit one, and the tensors' names."""
    entries, changed = dict(encodings.entries), list[str]()
    for name, entry in encodings.entries.items():
        value = entry.value
        if isinstance(value, Affine) and _is_asymmetric(value):
            zero = np.zeros_like(value.zero_point)
            entries[name] = replace(entry, value=replace(value, bits=8, signed=True, symmetric=True, zero_point=zero))
            changed.append(name)
    return replace(encodings, entries=entries), tuple(changed)


def _is_asymmetric(value: Affine) -> bool:
    whole = not np.any(value.zero_point != np.rint(value.zero_point))
    return value.block_size is not None and value.bits == 4 and whole and bool(np.any(value.zero_point))

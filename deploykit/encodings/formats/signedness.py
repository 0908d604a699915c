"""Restates integer grids as signed or unsigned ones with the same real values; nothing is rounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from deploykit.encodings.values import Affine, Encoding

__all__ = ["Signedness", "restated", "to_signed", "to_unsigned"]

Signedness: TypeAlias = Literal["as-is", "unsigned", "signed"]
"""What to do with activations: leave each as it is, or force all of them."""


def restated(entry: Encoding, signedness: Signedness) -> Encoding:
    """An activation's entry with the wanted signedness; parameters are never touched, as in AIMET."""
    if signedness == "as-is" or entry.is_param or not isinstance(entry.value, Affine):
        return entry
    change = to_unsigned if signedness == "unsigned" else to_signed
    return replace(entry, value=change(entry.value))


def to_unsigned(value: Affine) -> Affine:
    """The same grid counted from 0."""
    if not value.signed:
        return value
    return replace(value, signed=False, zero_point=np.asarray(value.zero_point + (1 << (value.bits - 1))))


def to_signed(value: Affine) -> Affine:
    """The same grid counted from the lowest negative number."""
    if value.signed:
        return value
    return replace(value, signed=True, zero_point=np.asarray(value.zero_point - (1 << (value.bits - 1))))

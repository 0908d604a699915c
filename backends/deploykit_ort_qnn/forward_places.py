"""The same kernel, given only places that count from the beginning of an axis. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit_ort_qnn.audit_units import Kernel

if TYPE_CHECKING:
    from deploykit_ort_qnn.atlas.sketch import Numbers

__all__ = ["counting_forward"]


def counting_forward(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """Of kernels that are given indices below zero the same without; of others nothing."""
    for kernel in kernels:
        if any(_counts_back(value) for sample in kernel.samples for value in sample.values()):
            forward = tuple({name: _forward(value) for name, value in sample.items()} for sample in kernel.samples)
            yield replace(kernel, key=f"{kernel.key} counting forward", samples=forward)


def _counts_back(values: Numbers) -> bool:
    return bool(np.issubdtype(values.dtype, np.integer) and np.any(values < 0))


def _forward(values: Numbers) -> Numbers:
    """As many places from the beginning of an axis as indices count from its end; anything else stays."""
    return np.where(values < 0, -1 - values, values) if _counts_back(values) else values

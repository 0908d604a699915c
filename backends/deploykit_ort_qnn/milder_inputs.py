"""The same kernel, spared what few models give it: whether it is right then, and only then not. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit_ort_qnn.audit_units import RUNNING, Kernel, within_grids
from deploykit_ort_qnn.rules.audit import BACKWARD, BEYOND

if TYPE_CHECKING:
    from deploykit_ort_qnn.bench.inputs import Numbers

__all__ = ["spared"]


def spared(kernels: Iterable[Kernel]) -> Iterator[tuple[str, Kernel]]:
    """Of kernels that are given what may alone show them to be wrong, what that is, and the same without it."""
    for kernel in kernels:
        if any(_counts_back(value) for sample in kernel.samples for value in sample.values()):
            forward = tuple({name: _forward(value) for name, value in sample.items()} for sample in kernel.samples)
            yield BACKWARD, replace(kernel, key=f"{kernel.key} counting forward", samples=forward)
        elif not {*RUNNING}.isdisjoint(kernel.operators):
            yield BEYOND, replace(within_grids(kernel, results=True), key=f"{kernel.key} within its grid")


def _counts_back(values: Numbers) -> bool:
    return bool(np.issubdtype(values.dtype, np.integer) and np.any(values < 0))


def _forward(values: Numbers) -> Numbers:
    """As many places from the beginning of an axis as indices count from its end; anything else stays."""
    return np.where(values < 0, -1 - values, values) if _counts_back(values) else values

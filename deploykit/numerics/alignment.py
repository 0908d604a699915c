"""Puts rows in the same order on both sides behind a TopK, where nearly equal scores may have changed places.

Without that every tensor behind a TopK looks wrong although only its order differs. Rows that only one side chose have
no partner and are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.facts.graph import GraphFacts, NodeFact

__all__ = ["Aligned", "align_rows", "choices_before", "indices_of"]

Numbers: TypeAlias = npt.NDArray[Any]

_LEAST_COMMON = 0.25
"""Two sides that share less than this of their choices are not the same rows in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Both tensors with common rows in the same order; ``lost`` is the share of rows without a partner."""

    left: Numbers
    right: Numbers
    lost: float


def choices_before(facts: GraphFacts, tensor: str) -> tuple[NodeFact, ...]:
    """The TopK nodes that a tensor depends on, the nearest first (a TopK's own outputs included)."""
    found, seen, layer = [], {tensor}, [tensor]
    while layer:
        following = []
        for name in layer:
            maker = facts.producer_of(name)
            if maker is None:
                continue
            if maker.op_type == "TopK" and maker not in found:
                found.append(maker)
            for other in maker.inputs:
                if other and other not in seen:
                    seen.add(other)
                    following.append(other)
        layer = following
    return tuple(found)


def align_rows(left: Numbers, right: Numbers, chosen_left: Numbers, chosen_right: Numbers) -> Iterator[Aligned]:
    """Every way to read the leading axes as the chosen rows: (batch, k, …) or (k, …).

    ``chosen_*`` are the indices that a TopK gave on each side, of shape (k,), (batch, k) or (batch, k, 1).
    """
    for first, second in _tables(chosen_left, chosen_right):
        batch, count = first.shape
        if left.shape != right.shape or left.size == 0:
            return
        if left.shape[:2] == (batch, count):
            shaped = left, right
        elif batch == 1 and left.shape[:1] == (count,):
            shaped = left[None], right[None]
        else:
            continue
        aligned = _align(*shaped, first, second)
        if aligned is not None:
            yield aligned


def _tables(first: Numbers, second: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """The indices as (batch, k), the chosen axis last or last but one."""
    if first.shape != second.shape:
        return
    if first.ndim == 1:
        yield first[None], second[None]
    elif first.ndim == 2:
        yield first, second
    elif first.ndim == 3:
        yield first[..., 0], second[..., 0]
        if first.shape[1] == 1:
            yield first[:, 0], second[:, 0]


def _align(left: Numbers, right: Numbers, first: Numbers, second: Numbers) -> Aligned | None:
    lefts, rights, kept = [], [], 0
    for row, (one, two) in enumerate(zip(first, second, strict=True)):
        _, at_left, at_right = np.intersect1d(one, two, return_indices=True)
        kept += at_left.size
        lefts.append(left[row][at_left])
        rights.append(right[row][at_right])
    if kept < _LEAST_COMMON * first.size:
        return None
    return Aligned(left=np.concatenate(lefts), right=np.concatenate(rights), lost=1 - kept / first.size)


def indices_of(values: Mapping[str, Numbers], node: NodeFact) -> Numbers | None:
    """What a TopK chose, if it was recorded."""
    return values.get(node.outputs[1]) if len(node.outputs) > 1 else None

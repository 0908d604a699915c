"""Puts rows in the same order on both sides behind a TopK, where nearly equal scores may have changed places.

Without that every tensor behind a TopK looks wrong although only its order differs. Rows that only one side chose have
no partner and are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.graph.facts import GraphFacts, NodeFact

__all__ = ["Aligned", "align_rows", "best_aligned", "choices_before", "orders"]

Numbers: TypeAlias = npt.NDArray[Any]
Order: TypeAlias = tuple[Numbers, Numbers]

_LOSS_DB = 60.0
_PICKS = frozenset({"Gather", "GatherElements", "GatherND"})
_INDEX_OPS = 64
_MOST_CHOICES = 6
"""How many ops are looked through for the origin of an index, and how many choices are tried: nobody nests more."""

_LEAST_COMMON = 0.5
"""Two sides that share less than this of their choices are not the same rows in another order: among few rows that are
picked well anything agrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Both tensors with common rows in the same order; ``lost`` is the share of rows without a partner.

    ``reordered`` is False for two tensors that were left as they are.
    """

    left: Numbers
    right: Numbers
    lost: float = 0.0
    reordered: bool = True


def choices_before(facts: GraphFacts, tensor: str) -> tuple[str, ...]:
    """The index tensors by which a tensor's rows were chosen, the nearest first.

    These are the indices of every TopK it depends on, and those that a Gather reads and that a TopK made: with many
    classes the chosen place is divided by their number before rows are gathered.
    """
    found: dict[str, None] = {}
    seen, layer = {tensor}, [tensor]
    while layer:
        following = []
        for name in layer:
            maker = facts.producer_of(name)
            if maker is None:
                continue
            found.update((choice, None) for choice in _choices(facts, maker))
            fresh = [other for other in maker.inputs if other and other not in seen]
            seen.update(fresh)
            following += fresh
        layer = following
    return tuple(found)


def _choices(facts: GraphFacts, node: NodeFact) -> Iterator[str]:
    if node.op_type == "TopK" and len(node.outputs) > 1 and node.outputs[1]:
        yield node.outputs[1]
    if node.op_type in _PICKS and len(node.inputs) > 1 and _from_topk(facts, node.inputs[1]):
        yield node.inputs[1]


def _from_topk(facts: GraphFacts, index: str) -> bool:
    """True when an index tensor comes from a TopK over a few ops on integers."""
    seen, todo = {index}, [index]
    while todo and len(seen) <= _INDEX_OPS:
        maker = facts.producer_of(todo.pop())
        if maker is None:
            continue
        if maker.op_type == "TopK":
            return True
        fresh = [name for name in maker.inputs if name and name not in seen]
        seen.update(fresh)
        todo += fresh
    return False


def best_aligned(
    name: str,
    left: Mapping[str, Numbers],
    right: Mapping[str, Numbers],
    choices: Sequence[str],
    agreement: Callable[[Numbers, Numbers], float],
) -> tuple[Aligned, float]:
    """A tensor as both sides show it, or in the order of the choices that agrees best, and how well (dB).

    Every row that is lost on the way must buy its part of ``_LOSS_DB``, so that a few well picked rows do not win.
    """
    best = Aligned(left=left[name], right=right[name], reordered=False)
    value = score = agreement(best.left, best.right)
    for first, second in orders(left, right, choices):
        for aligned in align_rows(left[name], right[name], first, second):
            found = agreement(aligned.left, aligned.right)
            if found - _LOSS_DB * aligned.lost > score:
                best, value, score = aligned, found, found - _LOSS_DB * aligned.lost
    return best, value


def orders(left: Mapping[str, Numbers], right: Mapping[str, Numbers], choices: Sequence[str]) -> Iterator[Order]:
    """Every choice that differs between the sides, and every pair of them seen through one another."""
    known = [(left[name], right[name]) for name in choices[:_MOST_CHOICES] if name in left and name in right]
    for position, (one, two) in enumerate(known):
        if not np.array_equal(one, two):
            yield one, two
        for far_one, far_two in known[position + 1 :]:
            near, far = _through(one, far_one), _through(two, far_two)
            if near is not None and far is not None and not np.array_equal(near, far):
                yield near, far


def _through(near: Numbers, far: Numbers) -> Numbers | None:
    """What rows of rows are rows of: the far choice at the places of the near one."""
    near, far = _table(near), _table(far)
    if near.shape[0] != far.shape[0] or not near.size or int(near.max()) >= far.shape[1] or int(near.min()) < 0:
        return None
    return np.take_along_axis(far, near.astype(np.int64), axis=1)


def _table(index: Numbers) -> Numbers:
    """An index tensor as (batch, k): of equal columns, as GatherElements wants them, one is enough."""
    if index.ndim < 2:
        return index.reshape(1, -1)
    flat = index.reshape(*index.shape[:2], -1)
    return flat[..., 0] if index.shape[1] > 1 or flat.shape[2] == 1 else flat[:, 0]


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
        _, at_left, at_right = np.intersect1d(_numbered(one), _numbered(two), return_indices=True)
        kept += at_left.size
        lefts.append(left[row][at_left])
        rights.append(right[row][at_right])
    if kept < _LEAST_COMMON * first.size:
        return None
    return Aligned(left=np.concatenate(lefts), right=np.concatenate(rights), lost=1 - kept / first.size)


def _numbered(chosen: Numbers) -> Numbers:
    """The chosen places made unique: a row may be chosen twice, for two classes."""
    order = np.argsort(chosen, kind="stable")
    ranked = chosen[order]
    starts = np.r_[True, ranked[1:] != ranked[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(ranked.size), 0))
    times = np.empty(chosen.size, dtype=np.int64)
    times[order] = np.arange(ranked.size) - first
    return chosen.astype(np.int64) * chosen.size + times

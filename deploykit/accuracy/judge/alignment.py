"""Puts rows in the same order on both sides where their order means nothing: behind TopK, NonMaxSuppression and alike.

Which rows they are is told by the indices that were chosen (``match_chosen``); where nobody can see those, rows are
matched by what they hold (``match_contents``). Rows that only one side has are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.rows import Chosen, Flat, Joined, Listed, Rows, span

__all__ = ["Aligned", "Pairs", "align", "match_chosen", "match_contents", "pair_costs", "row_numbers"]

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]
Pairs: TypeAlias = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Places on the left and on the right, of the same length; each place at most once."""

_MOST_ROWS = 2048
"""More rows than that are not matched by contents: the table of costs has a cell for every pair."""

_LEAST_COMMON = 0.5
"""Two sides that share less than this of their rows did not choose the same things: among few rows picked well anything
agrees, so they stay as they are."""

_ALIKE = 0.5
"""Partners found by contents lie within half a spread of one another, on average over the tables."""

_COLUMNS = 256
"""Of wider tables, such as masks, so many columns tell rows apart."""

_FARTHEST = 3.0
"""A difference of three times the usual spread is as bad as any: one odd column must not decide alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Both tensors with common rows in the same order; ``lost`` is the share of rows without a partner.

    ``reordered`` is False for two tensors that were left as they are, ``known`` when rows should have been matched and
    could not be, since no side or only one showed what was chosen.
    """

    left: Numbers
    right: Numbers
    lost: float = 0.0
    reordered: bool = False
    known: bool = True


def align(left: Numbers, right: Numbers, axes: Sequence[Rows | None], seen: tuple[Values, Values]) -> Aligned:
    """A tensor as both sides have it, every axis of chosen rows put in order.

    ``axes`` are those of ``RowSets``; ``seen`` are the values of each side, with the index tensors that were shown.
    """
    lost, moved, known = 0.0, False, True
    for axis, rows in enumerate(axes):
        if rows is None or left.ndim != len(axes) or right.ndim != len(axes):
            continue
        one = row_numbers(rows, left.shape[axis], seen[0])
        two = row_numbers(rows, right.shape[axis], seen[1])
        if one is None or two is None:
            known = False
            continue
        made = _along(left, right, axis, one, two)
        if made is None:
            known = False
            continue
        left, right, share, changed = made
        lost, moved = max(lost, share), moved or changed
    return Aligned(left=left, right=right, lost=lost, reordered=moved, known=known)


def _along(
    left: Numbers, right: Numbers, axis: int, one: Numbers, two: Numbers
) -> tuple[Numbers, Numbers, float, bool] | None:
    """One axis in order; with a choice per batch item, every item by itself and their rows behind one another."""
    batch = max(one.shape[0], two.shape[0])
    one, two = (np.broadcast_to(side, (batch, side.shape[1])) for side in (one, two))
    if batch == 1:
        first, second = match_chosen(one[0], two[0])
        changed = not np.array_equal(one, two)
        share = 1 - first.size / max(one.shape[1], two.shape[1], 1)
        if share > _LEAST_COMMON:
            return left, right, share, False
        return np.take(left, first, axis=axis), np.take(right, second, axis=axis), share, changed
    if axis == 0 or left.shape[0] != one.shape[0] or right.shape[0] != two.shape[0] or one.shape != two.shape:
        return None
    parts = [match_chosen(a, b) for a, b in zip(one, two, strict=True)]
    kept = sum(first.size for first, _ in parts)
    if kept < _LEAST_COMMON * one.size:
        return left, right, 1 - kept / max(one.size, 1), False
    lefts = [np.take(left[item], first, axis=axis - 1) for item, (first, _) in enumerate(parts)]
    rights = [np.take(right[item], second, axis=axis - 1) for item, (_, second) in enumerate(parts)]
    joined = np.concatenate(lefts, axis=axis - 1)[None], np.concatenate(rights, axis=axis - 1)[None]
    return (*joined, 1 - kept / max(one.size, 1), not np.array_equal(one, two))


def row_numbers(rows: Rows | None, length: int, values: Values) -> npt.NDArray[np.int64] | None:
    """What each row is, as numbers that mean the same on both sides; None where an index was not shown.

    The shape is (1, rows), or (batch, rows) where every item of a batch chose its own.
    """
    match rows:
        case None:
            return np.arange(length, dtype=np.int64)[None]
        case Chosen():
            return _chosen(rows, values)
        case Listed():
            return _listed(rows, values)
        case Flat():
            return _flat(rows, values)
        case Joined():
            return _joined(rows, values)


def _chosen(rows: Chosen, values: Values) -> npt.NDArray[np.int64] | None:
    if rows.index not in values:
        return None
    index = np.moveaxis(values[rows.index], rows.axis, -1).astype(np.int64)
    index = index.reshape(-1, index.shape[-1])
    if (index == index[:1]).all():  # one choice for the whole batch, or repeated for every column
        index = index[:1]
    inner = row_numbers(rows.of, rows.size, values)
    if inner is None or inner.shape[0] not in (1, index.shape[0]) or not index.size:
        return None
    if int(index.max()) >= inner.shape[1] or int(index.min()) < 0:
        return None
    return np.take_along_axis(np.broadcast_to(inner, (index.shape[0], inner.shape[1])), index, axis=1)


def _listed(rows: Listed, values: Values) -> npt.NDArray[np.int64] | None:
    if rows.index not in values:
        return None
    entries = np.moveaxis(values[rows.index], rows.axis, 0).astype(np.int64)
    number = np.zeros(entries.shape[0], np.int64)
    columns = entries.reshape(entries.shape[0], -1)
    for column in columns.T:
        number = number * (1 << (60 // max(columns.shape[1], 1))) + column
    return number[None]


def _flat(rows: Flat, values: Values) -> npt.NDArray[np.int64] | None:
    total: npt.NDArray[np.int64] = np.zeros((1, 1), np.int64)
    for part, length in rows.parts:
        numbers = row_numbers(part, length, values)
        if numbers is None:
            return None
        reach = span(part, length)
        if total.shape == (1, numbers.shape[0]) and numbers.shape[0] > 1:  # a batch that was merged with its rows
            total = (total.T * reach + numbers).reshape(1, -1)
            continue
        total = (total[:, :, None] * reach + numbers[:, None, :]).reshape(max(len(total), len(numbers)), -1)
    return total


def _joined(rows: Joined, values: Values) -> npt.NDArray[np.int64] | None:
    found: list[npt.NDArray[np.int64]] = []
    before = 0
    for part, length in rows.parts:
        numbers = row_numbers(part, length, values)
        if numbers is None or (found and len(numbers) != len(found[0])):
            return None
        found.append(numbers + before)
        before += span(part, length)
    return np.concatenate(found, axis=1)


def match_chosen(one: Numbers, two: Numbers) -> Pairs:
    """The places of the numbers that both sides have, in the order of the left side; repeated ones by turn."""
    _, first, second = np.intersect1d(_by_turn(one), _by_turn(two), return_indices=True)
    order = np.argsort(first, kind="stable")
    return first[order], second[order]


def _by_turn(numbers: Numbers) -> npt.NDArray[Any]:
    """Numbers made unique by how often they came before."""
    order = np.argsort(numbers, kind="stable")
    ranked = numbers[order]
    starts = np.r_[True, ranked[1:] != ranked[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(ranked.size), 0))
    turn = np.empty(numbers.size, dtype=np.int64)
    turn[order] = np.arange(ranked.size) - first
    pairs = np.empty(numbers.size, dtype=[("number", np.int64), ("turn", np.int64)])
    pairs["number"], pairs["turn"] = numbers, turn
    return pairs


def match_contents(left: Sequence[Numbers], right: Sequence[Numbers]) -> Pairs | None:
    """Rows of several tables, (rows, columns) each, matched by how alike they are.

    Every table counts the same; columns are measured by their spread on the left, whole numbers are equal or not. The
    closest two are paired first, each row once. None for too many rows, and where less than half find a partner.
    """
    counts = left[0].shape[0], right[0].shape[0]
    if max(counts) > _MOST_ROWS:
        return None
    costs = np.zeros(counts)
    for one, two in zip(left, right, strict=True):
        costs += _table_costs(one, two)
    pairs = pair_costs(costs, most=_ALIKE * len(left))
    return pairs if pairs[0].size >= _LEAST_COMMON * max(counts) else None


def _table_costs(one: Numbers, two: Numbers) -> npt.NDArray[np.float64]:
    whole = one.dtype.kind in "iub"
    first, second = (np.nan_to_num(np.asarray(table, np.float64), posinf=1e30, neginf=-1e30) for table in (one, two))
    costs = np.zeros((first.shape[0], second.shape[0]))
    every = -(-first.shape[1] // _COLUMNS)
    first, second = first[:, ::every], second[:, ::every]
    for a, b in zip(first.T, second.T, strict=True):
        spread = float(np.std(a)) or 1.0
        distance = np.abs(a[:, None] - b[None, :])
        costs += (distance != 0) if whole else np.minimum(distance / spread, _FARTHEST)
    return np.asarray(costs / max(first.shape[1], 1))


def pair_costs(costs: npt.NDArray[np.float64], *, most: float = np.inf) -> Pairs:
    """Pairs of rows and columns, the cheapest first, each once; none that costs more than ``most``."""
    free = np.ones(costs.shape[0], bool), np.ones(costs.shape[1], bool)
    partner = np.full(costs.shape[0], -1, np.intp)
    left_over = min(costs.shape)
    for cell in np.argsort(costs, axis=None, kind="stable"):
        row, column = divmod(int(cell), costs.shape[1])
        if not left_over or not costs[row, column] <= most:
            break
        if free[0][row] and free[1][column]:
            partner[row] = column
            left_over -= 1
            free[0][row] = free[1][column] = False
    first = np.flatnonzero(partner >= 0)
    return first, partner[first]

"""Rows behind a TopK or a NonMaxSuppression stand in an order that means nothing: it matches them by what they hold.

Which tensors are behind a choice is read from the graph; rows that only one side has are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.model.facts import GraphFacts

__all__ = ["ChosenRows", "Matched", "Pairs", "match_contents", "pair_costs"]

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]
Pairs: TypeAlias = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Places on the left and on the right, of the same length; each place at most once."""

_CHOOSERS = frozenset({"TopK", "NonMaxSuppression", "NonZero"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND", "Scatter"})
_MOST_ROWS = 2048  # the table of costs has a cell for every pair
_LEAST_COMMON = 0.5  # sides that share fewer rows did not choose the same things
_ALIKE = 0.5  # partners lie within half a spread of one another, on average over the tables
_USUAL = 0.3  # and half of them within so much, or rows were paired by chance
_ODD = (0.1, 4.0)  # a pair so far apart, and so many times as far as the usual pair, is none
_COLUMNS = 256  # of wider tables, such as masks, so many columns tell rows apart
_FARTHEST = 3.0  # a difference of three usual spreads is as bad as any: one odd column must not decide alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Both tensors with common rows in the same order; ``lost`` is the share of rows without a partner."""

    left: Numbers
    right: Numbers
    lost: float = 0.0
    reordered: bool = False


class ChosenRows:
    """Which tensors of a graph are behind a choice, and how many rows were chosen there."""

    def __init__(self, facts: GraphFacts) -> None:
        self._facts = facts
        self._behind: set[str] = set()
        self._lengths: set[int] = set()
        for node in facts.nodes if any(node.op_type in _CHOOSERS for node in facts.nodes) else ():
            # What is scattered back stands where the data says, in its natural order.
            read = node.inputs[:1] if node.op_type in _SCATTERS else node.inputs
            if node.op_type in _CHOOSERS or not self._behind.isdisjoint(read):
                self._behind.update(node.outputs)
            if node.op_type == "TopK":
                self._lengths.update(self._along(node.outputs[:1], int(node.attributes.get("axis", -1))))
            elif node.op_type == "Concat" and not self._behind.isdisjoint(node.inputs):
                axis = int(node.attributes.get("axis", 0))
                if self._lengths.intersection(self._along(node.inputs, axis)):
                    self._lengths.update(self._along(node.outputs, axis))

    def _along(self, names: Iterable[str], axis: int) -> Iterable[int]:
        for name in names:
            fact = self._facts.tensors.get(name)
            shape = None if fact is None else fact.shape
            if shape and -len(shape) <= axis < len(shape) and isinstance(shape[axis], int):
                yield int(shape[axis])  # type: ignore[arg-type]

    def is_behind(self, tensor: str) -> bool:
        """True when the order of a tensor's rows may mean nothing."""
        return tensor in self._behind

    def matched(self, tensor: str, left: Numbers, right: Numbers) -> Matched:
        """One tensor as both sides have it; as it is where nothing was chosen, or where sides are not alike.

        Far inside a graph noise is no fault yet: rows are matched that are alike by little.
        """
        return self.all_matched([tensor], {tensor: left}, {tensor: right}, strict=False)[tensor]

    def all_matched(
        self, tensors: Sequence[str], one: Values, two: Values, *, strict: bool = True
    ) -> dict[str, Matched]:
        """Several tensors of one sample; those with rows of one choice are matched together, by all that they hold."""
        axes = {name: self._axes(name, one[name], two[name]) for name in tensors}
        made = {}
        for name in tensors:
            if not axes[name]:
                made[name] = Matched(left=one[name], right=two[name])
            elif len(axes[name]) > 1:
                made[name] = _by_signature(one[name], two[name], axes[name], strict)
            else:
                lengths = {
                    n: (one[n].shape[axes[n][0]], two[n].shape[axes[n][0]]) for n in tensors if len(axes[n]) == 1
                }
                alike = [n for n in lengths if lengths[n] == lengths[name]]
                tables = [_tables(one[n], two[n], axes[n][0]) for n in alike]
                made[name] = _along_axis(one[name], two[name], axes[name][0], tables, strict)
        return made

    def _axes(self, name: str, left: Numbers, right: Numbers) -> tuple[int, ...]:
        """The axes along which rows were chosen."""
        if name not in self._behind or left.ndim != right.ndim or not left.size or not right.size:
            return ()
        fact = self._facts.tensors.get(name)
        shape = (fact.shape if fact is not None else None) or (None,) * left.ndim
        if len(shape) != left.ndim:
            shape = (None,) * left.ndim
        unlike = tuple(axis for axis in range(left.ndim) if left.shape[axis] != right.shape[axis])
        if unlike:
            return unlike if len(unlike) == 1 else ()
        chosen = tuple(a for a, length in enumerate(left.shape) if length > 1 and length in self._lengths)
        merged = tuple(
            a for a, n in enumerate(left.shape) if any(1 < k < n <= _MOST_ROWS and n % k == 0 for k in self._lengths)
        )
        unknown = tuple(a for a, dim in enumerate(shape) if not isinstance(dim, int) and left.shape[a] > 1)
        return chosen or unknown[:1] or merged[:1]


def _tables(left: Numbers, right: Numbers, axis: int) -> tuple[Numbers, Numbers]:
    """Both sides as (rows, columns)."""
    one, two = (np.moveaxis(side, axis, 0) for side in (left, right))
    return one.reshape(len(one), -1), two.reshape(len(two), -1)


def _along_axis(
    left: Numbers, right: Numbers, axis: int, tables: Sequence[tuple[Numbers, Numbers]], strict: bool
) -> Matched:
    """Rows of one axis matched; where every item of a batch chose for itself, each by itself."""
    fit = [(a, b) for a, b in tables if a.shape[1] == b.shape[1]]
    pairs = match_contents([a for a, _ in fit], [b for _, b in fit], strict=strict) if fit else None
    if pairs is not None:
        first, second = pairs
        return Matched(
            left=np.take(left, first, axis=axis),
            right=np.take(right, second, axis=axis),
            lost=1 - first.size / max(left.shape[axis], right.shape[axis]),
            reordered=not np.array_equal(first, second),
        )
    if axis == 0 or left.shape[0] < 2 or left.shape[0] != right.shape[0]:
        return Matched(left=left, right=right)
    items = [
        _along_axis(a[None], b[None], axis, [_tables(a[None], b[None], axis)], strict)
        for a, b in zip(left, right, strict=True)
    ]
    return Matched(
        left=np.concatenate([item.left for item in items], axis=axis),
        right=np.concatenate([item.right for item in items], axis=axis),
        lost=max(item.lost for item in items),
        reordered=any(item.reordered for item in items),
    )


def _by_signature(left: Numbers, right: Numbers, axes: Sequence[int], strict: bool) -> Matched:
    """Several axes of chosen rows, as an attention between them has: each row is known by its values, sorted."""
    lost, moved = 0.0, False
    orders: list[tuple[int, Pairs]] = []
    for axis in axes:
        sides = [left, right]
        for other in axes:
            sides = [np.sort(side, axis=other) for side in sides] if other != axis else sides
        one, two = _tables(sides[0], sides[1], axis)
        pairs = match_contents([one], [two], strict=strict)
        if pairs is not None:
            orders.append((axis, pairs))
            lost = max(lost, 1 - pairs[0].size / left.shape[axis])
            moved = moved or not np.array_equal(*pairs)
    for axis, (first, second) in orders:
        left, right = np.take(left, first, axis=axis), np.take(right, second, axis=axis)
    return Matched(left=left, right=right, lost=lost, reordered=moved)


def match_contents(left: Sequence[Numbers], right: Sequence[Numbers], *, strict: bool = True) -> Pairs | None:
    """Rows of several tables, (rows, columns) each, matched by how alike they are.

    Every table counts the same; columns are measured by their spread on the left, whole numbers are equal or not. The
    closest two are paired first, each row once. None for too many rows, and where less than half find a partner.
    ``strict`` asks that most pairs are near, and leaves out the odd one.
    """
    counts = left[0].shape[0], right[0].shape[0]
    if max(counts) > _MOST_ROWS:
        return None
    costs = np.zeros(counts)
    for one, two in zip(left, right, strict=True):
        whole, step = one.dtype.kind in "iub", -(-one.shape[1] // _COLUMNS)
        tables = (np.nan_to_num(np.asarray(side, np.float64), posinf=1e30, neginf=-1e30) for side in (one, two))
        columns, others = (table[:, ::step] for table in tables)
        for a, b in zip(columns.T, others.T, strict=True):
            distance = np.abs(a[:, None] - b[None, :])
            near = distance != 0 if whole else np.minimum(distance / (float(np.std(a)) or 1.0), _FARTHEST)
            costs += near / max(columns.shape[1], 1)
    costs /= len(left)
    first, second = pair_costs(costs, most=_ALIKE)
    usual = float(np.median(costs[first, second])) if first.size else 0.0
    if not strict:
        return (first, second) if first.size >= _LEAST_COMMON * max(counts) else None
    near = costs[first, second] <= _ODD[0] + _ODD[1] * usual
    first, second = first[near], second[near]
    return (first, second) if usual <= _USUAL and first.size >= _LEAST_COMMON * max(counts) else None


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

"""Matches rows behind a TopK or a NonMaxSuppression by what they hold, since their order means nothing.

Which tensors are behind a choice is read from the graph; rows that only one side has are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.findings.records import Arrays, Doubles, Numbers, Record, replace
from deploykit.model.facts import GraphFacts

__all__ = ["ChosenRows", "Matched"]

# Positions of rows on the left and on the right, of the same length; each position at most once.
_Pairs: TypeAlias = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]

_CHOOSERS = frozenset({"TopK", "NonMaxSuppression", "NonZero"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND", "Scatter"})
_MOST_ROWS = 2048  # the table of costs has a cell for every pair
_LEAST_COMMON = 0.5  # sides that share fewer rows did not choose the same things
_ALIKE = 0.5  # partners lie within half a spread of one another, on average over the tables
_USUAL = 0.3  # and half of them within so much, or rows were paired by chance
_ODD = (0.1, 4.0)  # a pair so far apart, and so many times as far as the usual pair, is no pair
_COLUMNS = 256  # of wider tables, such as masks, so many columns tell rows apart
_FARTHEST = 3.0  # a difference of three usual spreads is as bad as any: one odd column must not decide alone


class Matched(Record, kw_only=False):
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
            # Values that are scattered back stand where the data says, in their natural order.
            read = node.inputs[:1] if node.op_type in _SCATTERS else node.inputs
            if node.op_type in _CHOOSERS or not self._behind.isdisjoint(read):
                self._behind.update(node.outputs)
            if node.op_type == "TopK":
                self._lengths.update(self._along(node.outputs[0], node.axis(-1)))
            elif node.op_type == "Concat" and not self._behind.isdisjoint(node.inputs):
                axis = node.axis()
                if any(self._lengths & self._along(name, axis) for name in node.inputs):
                    self._lengths.update(self._along(node.outputs[0], axis))

    @classmethod
    def of(cls, facts: GraphFacts) -> ChosenRows:
        """The chosen rows of a graph, found once."""
        return facts.once("rows behind a choice", lambda: cls(facts))

    def _along(self, name: str, axis: int) -> set[int]:
        """The length of a tensor along one axis, where it is known."""
        return {dim for dim in (self._facts.tensor(name).shape or ())[axis:][:1] if isinstance(dim, int)}

    def is_behind(self, tensor: str) -> bool:
        """True when the order of a tensor's rows may mean nothing."""
        return tensor in self._behind

    def matched(self, tensor: str, left: Numbers, right: Numbers) -> Matched:
        """One tensor of both sides with matched rows.

        Unchanged where nothing was chosen, or where the sides are not alike. Far inside a graph noise is no fault yet,
        so rows that are little alike are matched too.
        """
        return self.all_matched([tensor], {tensor: left}, {tensor: right}, strict=False)[tensor]

    def all_matched(
        self, tensors: Sequence[str], one: Arrays, two: Arrays, *, strict: bool = True
    ) -> dict[str, Matched]:
        """Several tensors of one sample.

        Those with rows of one choice are matched together, by all that these rows hold.
        """
        axes = {name: self._axes(name, one[name], two[name]) for name in tensors}
        alone = [name for name in tensors if len(axes[name]) == 1]
        lengths = {name: tuple(side[name].shape[axes[name][0]] for side in (one, two)) for name in alone}
        pairs = {
            length: match_contents([_tables(one[n], two[n], axes[n][0]) for n in alone if lengths[n] == length], strict)
            for length in {*lengths.values()}
        }
        made = {}
        for name in tensors:
            left, right = one[name], two[name]
            if name in lengths:
                made[name] = _along_axis(left, right, axes[name][0], pairs[lengths[name]], strict)
            else:
                made[name] = _by_signature(left, right, axes[name], strict)
        return made

    def _axes(self, name: str, left: Numbers, right: Numbers) -> tuple[int, ...]:
        """The axes along which rows were chosen."""
        if name not in self._behind or left.ndim != right.ndim or not left.size or not right.size:
            return ()
        fact = self._facts.tensor(name)
        shape = fact.shape if fact.rank == left.ndim else None
        unlike = tuple(axis for axis in range(left.ndim) if left.shape[axis] != right.shape[axis])
        if unlike:
            return unlike if len(unlike) == 1 else ()
        chosen = tuple(a for a, length in enumerate(left.shape) if length > 1 and length in self._lengths)
        merged = tuple(
            a for a, n in enumerate(left.shape) if any(1 < k < n <= _MOST_ROWS and n % k == 0 for k in self._lengths)
        )
        dims = enumerate(shape or (None,) * left.ndim)
        unknown = tuple(a for a, dim in dims if not isinstance(dim, int) and left.shape[a] > 1)
        return chosen or unknown[:1] or merged[:1]


def _tables(left: Numbers, right: Numbers, axis: int) -> tuple[Numbers, Numbers]:
    """Both sides as (rows, columns)."""
    one, two = (np.moveaxis(side, axis, 0) for side in (left, right))
    return one.reshape(len(one), -1), two.reshape(len(two), -1)


def _along_axis(left: Numbers, right: Numbers, axis: int, pairs: _Pairs | None, strict: bool) -> Matched:
    """The rows of one axis in their pairs; where every item of a batch chose for itself, each item by itself."""
    if pairs is not None:
        first, second = pairs
        return Matched(
            np.take(left, first, axis=axis),
            np.take(right, second, axis=axis),
            lost=1 - first.size / max(left.shape[axis], right.shape[axis]),
            reordered=not np.array_equal(first, second),
        )
    if axis == 0 or left.shape[0] < 2 or left.shape[0] != right.shape[0]:
        return Matched(left, right)
    items = []
    for a, b in zip(left[:, None], right[:, None], strict=True):
        items.append(_along_axis(a, b, axis, match_contents([_tables(a, b, axis)], strict), strict))
    return Matched(
        np.concatenate([item.left for item in items], axis=axis),
        np.concatenate([item.right for item in items], axis=axis),
        lost=max(item.lost for item in items),
        reordered=any(item.reordered for item in items),
    )


def _by_signature(left: Numbers, right: Numbers, axes: Sequence[int], strict: bool) -> Matched:
    """Several axes of chosen rows, as an attention between them has; each row is recognized by its sorted values."""
    made = Matched(left, right)
    for axis in axes:
        sides = [left, right]
        for other in axes:
            sides = [np.sort(side, axis=other) for side in sides] if other != axis else sides
        pairs = match_contents([_tables(sides[0], sides[1], axis)], strict)
        if pairs is not None:
            found = _along_axis(made.left, made.right, axis, pairs, strict)
            lost, reordered = max(made.lost, found.lost), made.reordered or found.reordered
            made = replace(found, lost=lost, reordered=reordered)
    return made


def match_contents(tables: Sequence[tuple[Numbers, Numbers]], strict: bool = True) -> _Pairs | None:
    """Pairs of rows, matched by how alike they are in all tables; each table is (rows, columns) on both sides.

    Every table counts the same; columns are measured by their spread on the left, whole numbers are equal or not. The
    closest two are paired first, each row once. None for too many rows, and where less than half find a partner.
    ``strict`` asks that most pairs are near, and leaves out the odd one.
    """
    counts = tuple(map(len, tables[0]))
    tables = [(one, two) for one, two in tables if one.shape[1] == two.shape[1]]
    if max(counts) > _MOST_ROWS or not tables:
        return None
    costs = np.zeros(counts)
    for one, two in tables:
        whole, step = one.dtype.kind in "iub", -(-one.shape[1] // _COLUMNS)
        sides = (np.asarray(side[:, ::step], np.float64) for side in (one, two))
        columns, others = (np.nan_to_num(side, posinf=1e30, neginf=-1e30) for side in sides)
        for a, b in zip(columns.T, others.T, strict=True):
            distance = np.abs(a[:, None] - b[None, :])
            near = distance != 0 if whole else np.minimum(distance / (float(np.std(a)) or 1.0), _FARTHEST)
            costs += near / max(columns.shape[1], 1)
    costs /= len(tables)
    first, second = _cheapest(costs, _ALIKE)
    usual = float(np.median(costs[first, second])) if first.size else 0.0
    if not strict:
        return (first, second) if first.size >= _LEAST_COMMON * max(counts) else None
    near = costs[first, second] <= _ODD[0] + _ODD[1] * usual
    first, second = first[near], second[near]
    return (first, second) if usual <= _USUAL and first.size >= _LEAST_COMMON * max(counts) else None


def _cheapest(costs: Doubles, most: float) -> _Pairs:
    """Pairs of rows and columns, the cheapest first, each once; none that costs more than ``most``."""
    partner, taken = np.full(costs.shape[0], -1, np.intp), set[int]()
    for cell in np.argsort(costs, axis=None, kind="stable"):
        row, column = divmod(int(cell), costs.shape[1])
        if len(taken) == min(costs.shape) or costs[row, column] > most:
            break
        if partner[row] < 0 and column not in taken:
            partner[row] = column
            taken.add(column)
    first = np.flatnonzero(partner >= 0)
    return first, partner[first]

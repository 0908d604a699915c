"""Finds rows that one side has and the other lacks only because an earlier choice was close there.

A detector that first picks its queries among thousands of cells picks others where their scores are nearly equal; what
follows from such a query is then missing without being lost. It needs what both sides chose, and by which values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.alignment import row_numbers
from deploykit.accuracy.judge.rows import Chosen, Flat, Joined, Rows

__all__ = ["barely_chosen"]

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]

_CLOSE = 3.0
"""A score within so many times of what moves scores from one side to the other may end on either side of the cut."""

_MOST = 0.5
"""And within this share of the spread of the chosen scores: where everything moved, nothing is close."""

_LEAST_COMMON = 0.5
"""Sides that share fewer of an earlier choice's rows did not choose the same things."""


def barely_chosen(
    rows: Rows | None, one: Values, two: Values, values_of: Mapping[str, str]
) -> npt.NDArray[np.bool_] | None:
    """Per row of ``one``, True where an earlier choice took it barely and the other side did not; None where unknown.

    ``values_of`` names, for the index tensor of a choice, the tensor with the values that were chosen by.
    """
    if not isinstance(rows, Chosen) or rows.index not in one:
        return None
    count = one[rows.index].size
    found: npt.NDArray[np.bool_] = np.zeros(count, bool)
    known = False
    for earlier in _inside(rows.of):
        close = _close(earlier, one, two, values_of.get(earlier.index, ""))
        places = _places(rows, np.arange(count), earlier, one)
        if close is not None and places is not None and int(places.max(initial=0)) < close.size:
            found |= close[places]
            known = True
    return found if known else None


def _inside(rows: Rows | None) -> Iterator[Chosen]:
    if isinstance(rows, Chosen):
        yield rows
        yield from _inside(rows.of)
    elif isinstance(rows, Flat | Joined):
        for part, _ in rows.parts:
            yield from _inside(part)


def _close(chosen: Chosen, one: Values, two: Values, scores: str) -> npt.NDArray[np.bool_] | None:
    """Per row of an earlier choice of ``one``: not chosen by ``two``, and close to the cut."""
    if any(name not in side for side in (one, two) for name in (chosen.index, scores)):
        return None
    size = one[chosen.index].size
    left, right = (row_numbers(chosen, size, side) for side in (one, two))
    if left is None or right is None or len(left) != 1 or len(right) != 1 or one[scores].size != left.size:
        return None
    ours, theirs = one[scores].ravel().astype(np.float64), two[scores].ravel().astype(np.float64)
    _, first, second = np.intersect1d(left[0], right[0], return_indices=True)
    if first.size < _LEAST_COMMON * size or theirs.size != right.size:
        return None
    moved = float(np.sqrt(np.mean((ours[first] - theirs[second]) ** 2)))
    slack = min(_CLOSE * moved, _MOST * float(ours.std()))
    return np.asarray(~np.isin(left[0], right[0]) & (ours <= ours.min() + slack))


def _places(
    rows: Rows | None, at: npt.NDArray[np.int64], wanted: Chosen, values: Values
) -> npt.NDArray[np.int64] | None:
    """Where among the rows of an earlier choice the rows ``at`` come from."""
    if rows == wanted:
        return at
    if isinstance(rows, Chosen):
        if rows.index not in values or values[rows.index].size <= int(at.max(initial=0)):
            return None
        return _places(rows.of, values[rows.index].ravel()[at].astype(np.int64), wanted, values)
    if not isinstance(rows, Flat):
        return None
    stride = 1
    for part, length in reversed(rows.parts):
        found = _places(part, at // stride % length, wanted, values)
        if found is not None and part is not None:
            return found
        stride *= length
    return None

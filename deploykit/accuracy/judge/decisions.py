"""What is decided by outputs, side by side: classes, texts, words, areas of a picture, labels. Near ties are no loss.

Pure numpy over pairs of one output's samples, the reference on the left; it knows no limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.measures import Pair

__all__ = ["agreement", "classes_kept", "decisions_kept", "edits", "mean_overlap", "neighbours_kept", "texts_read"]

_Labels = npt.NDArray[np.intp]

_CLEAR = 0.1  # a class leads where it leads by this share of the spread; closer races may end either way
_NEAR = 0.05  # and a probability decides nothing within so much of a half
_RARE, _LEAST_RARE = 0.1, 20  # positive decisions are counted alone where they are rare, and enough to count


def agreement(pairs: Sequence[Pair]) -> tuple[int, int]:
    """How many elements are equal, and of how many."""
    equal = sum(int((np.asarray(one) == np.asarray(two)).sum()) for one, two in pairs)
    return equal, sum(one.size for one, _ in pairs)


def _chosen(one: npt.NDArray[Any], two: npt.NDArray[Any], axis: int) -> tuple[_Labels, _Labels]:
    """The leading class on both sides; in a near tie of the left one the right is taken to agree."""
    a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
    left, right = a.argmax(axis), b.argmax(axis)
    values = np.take_along_axis(a, np.expand_dims(right, axis), axis).squeeze(axis)
    near = a.max(axis) - values <= _CLEAR * float(np.std(a))
    return left, np.where(near, left, right)


def classes_kept(pairs: Sequence[Pair], axis: int, first: int = 1) -> tuple[int, int]:
    """How often the reference's class is among the ``first`` ones of the right side, and of how many times."""
    same = total = 0
    for one, two in pairs:
        left, right = _chosen(one, two, axis)
        hit = left == right
        if first > 1:
            ranked = np.argsort(-np.asarray(two, np.float64), axis=axis).take(range(min(first, two.shape[axis])), axis)
            hit |= (ranked == np.expand_dims(left, axis)).any(axis)
        same, total = same + int(hit.sum()), total + hit.size
    return same, total


def decisions_kept(pairs: Sequence[Pair]) -> tuple[int, int, str]:
    """How many probabilities lie on the same side of a half, of how many, and of what.

    Where few are above it, as notes of a melody among all that could sound, only those count that are on either side:
    the silent rest would hide what is lost.
    """
    same = both = either = wanted = total = 0
    for one, two in pairs:
        a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
        left = a > 0.5
        right = np.where(np.abs(a - 0.5) < _NEAR, left, b > 0.5)
        same, total, wanted = same + int((left == right).sum()), total + a.size, wanted + int(left.sum())
        both, either = both + int((left & right).sum()), either + int((left | right).sum())
    if either >= _LEAST_RARE and wanted < _RARE * total:
        return both, either, "positive decisions"
    return same, total, "decisions"


def texts_read(pairs: Sequence[Pair]) -> tuple[int, int, float]:
    """How many lines are read alike, of how many, and the share of letters to be edited; (samples, steps, letters).

    Steps that repeat are one letter, and the letter that is most frequent in all lines is CTC's blank.
    """
    lines = [
        (first, second)
        for one, two in pairs
        for first, second in zip(*(side.reshape(-1, one.shape[1]) for side in _chosen(one, two, 2)), strict=True)
    ]
    if not lines:
        return 0, 0, 0.0
    blank = int(np.bincount(np.concatenate([first for first, _ in lines])).argmax())
    read = [tuple(_letters(side, blank) for side in line) for line in lines]
    length = sum(len(one) for one, _ in read)
    changed = sum(edits(one, two) for one, two in read)
    return sum(one == two for one, two in read), len(read), changed / max(length, 1)


def _letters(steps: _Labels, blank: int) -> list[int]:
    starts = np.r_[True, steps[1:] != steps[:-1]] if steps.size else np.zeros(0, bool)
    return [int(letter) for letter in steps[starts] if letter != blank]


def edits(one: Sequence[int], two: Sequence[int]) -> int:
    """The fewest letters to insert, delete and replace (Levenshtein)."""
    row = list(range(len(two) + 1))
    for at, letter in enumerate(one, 1):
        before, row[0] = row[0], at
        for to, other in enumerate(two, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (letter != other))
    return row[-1]


def mean_overlap(pairs: Sequence[Pair], axis: int | None) -> float:
    """The mean over classes of intersection over union, pooled over samples; NaN where the reference shows nothing.

    Classes lead along ``axis``; None for a map of probabilities, of which what is above a half counts.
    """
    counts: dict[int, list[int]] = {}
    for one, two in pairs:
        if axis is None:
            a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
            left = (a > 0.5).astype(np.intp)
            right = np.where(np.abs(a - 0.5) < _NEAR, left, b > 0.5).astype(np.intp)
        else:
            left, right = _chosen(one, two, axis)
        for label in np.union1d(left, right).tolist():
            seen = counts.setdefault(label, [0, 0, 0])
            first, second = left == label, right == label
            for place, area in enumerate((first & second, first | second, first)):
                seen[place] += int(area.sum())
    if axis is None:
        counts.pop(0, None)
    shares = [common / either for common, either, wanted in counts.values() if wanted or common != either]
    return float(np.mean(shares)) if shares else math.nan


def neighbours_kept(pairs: Sequence[Pair]) -> tuple[int, int]:
    """How often a vector's nearest neighbour among the others is the same on both sides, and of how many vectors."""
    left, right = (
        np.concatenate([np.asarray(p[at], np.float64).reshape(-1, p[at].shape[-1]) for p in pairs]) for at in (0, 1)
    )
    if len(left) < 3:
        return 0, 0
    sides = []
    for side in (left, right):
        unit = side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12)
        near = unit @ unit.T
        np.fill_diagonal(near, -np.inf)
        sides.append(near)
    one, two = sides
    nearest = two.argmax(1)
    return int((one.max(1) - one[np.arange(len(one)), nearest] <= 1e-2).sum()), len(one)

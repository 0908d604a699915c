"""The boxes that an application keeps of one sample, as parts of the picture, and which of two sides are one thing.

It follows the usual steps after a detector, a least score and no second box over the same thing; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.detections import (
    OVERLAP,
    WORKING_SCORE,
    Detections,
    corners_of,
    overlaps,
    read_detections,
)
from deploykit.accuracy.judge.kinds import DetectionSet

__all__ = ["KeptBox", "boxes_beside", "kept_boxes", "overlap", "reads_corners"]

Values: TypeAlias = Mapping[str, npt.NDArray[Any]]
_Doubles: TypeAlias = npt.NDArray[np.float64]

_MOST = 40
_FRACTIONS = 1.5
"""Coordinates that stay below it are fractions of the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBox:
    """One detection: corners as fractions of the picture's width and height, score in 0..1, class number."""

    left: float
    top: float
    right: float
    bottom: float
    score: float
    label: int


def kept_boxes(
    group: DetectionSet, values: Values, feed: Values, size: tuple[int, int], *, corners: bool, nothing: int = -1
) -> tuple[KeptBox, ...]:
    """The boxes of at least the lower working score, best first, those over a better one of their class left out.

    ``size`` is the picture's width and height in pixels, ``nothing`` the class of rows without an
    object. () where the outputs hold no rows that fit together.
    """
    rows = read_detections(group, values)
    if rows is None or not rows.scores.size:
        return ()
    placed = corners_of(_fractions(rows, group, feed, size), are_corners=corners)
    kept: list[KeptBox] = []
    for row in np.argsort(-rows.scores, kind="stable"):
        if rows.scores[row] < WORKING_SCORE or len(kept) >= _MOST:
            break
        left, top, right, bottom = (float(value) for value in placed[row])
        box = KeptBox(
            left=left,
            top=top,
            right=right,
            bottom=bottom,
            score=float(rows.scores[row]),
            label=int(rows.labels[row]),
        )
        if box.label != nothing and all(other.label != box.label or overlap(other, box) < OVERLAP for other in kept):
            kept.append(box)
    return tuple(kept)


def reads_corners(group: DetectionSet, values: Values) -> bool:
    """True where the four numbers are two corners; else they are a centre and a size.

    Told by all rows: a second corner never lies before the first, a size seldom is larger than where its centre lies.
    """
    rows = read_detections(group, values)
    if rows is None or not rows.boxes.size:
        return True
    ordered = (rows.boxes[:, 2] >= rows.boxes[:, 0]) & (rows.boxes[:, 3] >= rows.boxes[:, 1])
    return bool(ordered.mean() > 0.98)


def _fractions(rows: Detections, group: DetectionSet, feed: Values, size: tuple[int, int]) -> _Doubles:
    """The boxes' numbers divided by the picture's width and height, where they are not fractions already."""
    width, height = (float(side) for side in size)
    if group.sizes and group.sizes in feed and feed[group.sizes].size:
        width = height = float(np.max(np.abs(feed[group.sizes]))) or 1.0
        if width <= _FRACTIONS:
            return rows.boxes
    elif float(np.abs(rows.boxes).max()) <= _FRACTIONS:
        return rows.boxes
    return np.asarray(rows.boxes / np.array([width, height, width, height]), np.float64)


def boxes_beside(one: Sequence[KeptBox], two: Sequence[KeptBox]) -> tuple[tuple[KeptBox | None, KeptBox | None], ...]:
    """Each box with the one of the other side that is of the same thing and class, None where there is none."""
    left = list(two)
    pairs: list[tuple[KeptBox | None, KeptBox | None]] = []
    for box in one:
        alike = [other for other in left if other.label == box.label and overlap(box, other) >= OVERLAP]
        partner = max(alike, key=lambda other: overlap(box, other), default=None)
        if partner is not None:
            left.remove(partner)
        pairs.append((box, partner))
    return (*pairs, *((None, other) for other in left))


def overlap(one: KeptBox, two: KeptBox) -> float:
    """Intersection over union, 0..1."""
    left, right = (np.array([[box.left, box.top, box.right, box.bottom]], np.float64) for box in (one, two))
    return float(overlaps(left, right)[0, 0])

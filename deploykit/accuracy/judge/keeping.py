"""Counts which detections are kept, as a count by hand does: one to one, the same class, boxes that overlap.

Nothing is forgiven here, near misses of the working score neither; limits are looked up elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.box_geometry import OVERLAP, areas, corners_of, overlaps
from deploykit.accuracy.judge.detections import WORKING_SCORES, Detections
from deploykit.accuracy.judge.kept_counts import KeptCount

__all__ = ["background_class", "count_kept"]

_MOSTLY = 0.5
"""Share of all rows: objects fill less of what a detector looks at."""

_FLAT = 0.02
"""Share of boxes without an area that a detector may have at the borders of its images."""

_MOST = 2048
"""Detections of one sample that are counted, the best ones."""

_Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """The detections of one side of one sample, best first."""

    boxes: _Doubles
    classes: npt.NDArray[np.int64]


def count_kept(pairs: Sequence[tuple[Detections, Detections]]) -> KeptCount | None:
    """Count over samples, each as the reference's detections and the candidate's.

    None where boxes of the reference have no area, read either way: then their form is not known, and no model would
    keep its own. Boxes are corners where all counted boxes of the reference could be, else centres and sizes. Taken for
    corners by mistake they are distorted alike on both sides and overlap less: the count is then too small.
    """
    score = WORKING_SCORES[0]
    nothing = background_class([one for one, _ in pairs], score)
    found = [(_used(one, score, nothing), _used(two, score, nothing)) for one, two in pairs]
    are_corners = all((one.boxes[:, :2] <= one.boxes[:, 2:]).all() for one, _ in found)
    sizes = np.concatenate([areas(corners_of(one.boxes, are_corners=are_corners)) for one, _ in found] or [np.zeros(0)])
    if (sizes <= 0).sum() > _FLAT * sizes.size:
        return None
    return KeptCount(
        wanted=tuple(one.classes.size for one, _ in found),
        made=tuple(two.classes.size for _, two in found),
        kept=tuple(_kept(one, two, are_corners) for one, two in found),
        score=score,
        overlap=OVERLAP,
    )


def background_class(sides: Sequence[Detections], score: float) -> int:
    """The class that stands for nothing, -1 for none: the first or the last, where most rows of the reference have it.

    Rows without an object would otherwise be kept detections, and hide the loss of real ones.
    """
    classes = max(side.classes for side in sides)
    rows = sum(side.scores.size for side in sides)
    if classes < 2 or not rows:
        return -1
    having = {
        end: sum(int((_is_used(side, score) & (side.labels == end)).sum()) for side in sides)
        for end in (0, classes - 1)
    }
    return next((end for end, count in having.items() if count > _MOSTLY * rows), -1)


def _is_used(side: Detections, score: float) -> npt.NDArray[np.bool_]:
    return np.asarray(side.scores >= score)


def _used(side: Detections, score: float, nothing: int) -> _Used:
    """What somebody would use, best first."""
    rows = np.flatnonzero(_is_used(side, score) & (side.labels != nothing))
    rows = rows[np.argsort(-side.scores[rows], kind="stable")][:_MOST]
    return _Used(boxes=side.boxes[rows], classes=side.labels[rows])


def _kept(one: _Used, two: _Used, are_corners: bool) -> int:
    """Pairs: each of the reference's, best first, takes what overlaps it most of its class and is still free."""
    if not one.classes.size or not two.classes.size:
        return 0
    left, right = (corners_of(side.boxes, are_corners=are_corners) for side in (one, two))
    shared = np.where(one.classes[:, None] == two.classes[None], overlaps(left, right), 0.0)
    kept = 0
    for row in shared:
        best = int(row.argmax())
        if row[best] >= OVERLAP:
            shared[:, best] = 0.0
            kept += 1
    return kept

"""Detections drawn on their samples, as values for a page: those of the model beside those of what is packaged.

It follows the usual steps after a detector (a least score, no second box over the same thing) and runs no model.
Pictures are small and few, so that the page stays below two megabytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deploykit.accuracy.judge.detections import background_class, corners_of, form_of, overlaps, read_detections
from deploykit.accuracy.judge.verdict import OVERLAP, WORKING_SCORE
from deploykit.report.sample_pictures import picture_in, png
from deploykit.system.aliases import Arrays, Json

if TYPE_CHECKING:
    from deploykit.accuracy.judge.kinds import DetectionSet
    from deploykit.backend.backend import Seen

__all__ = ["KeptBox", "boxes_beside", "draw_detections", "kept_boxes"]


_MOST_BOXES = 40
_MOST_PICTURES = 3
_LONGEST = 320
_ROOM = 900_000  # characters of all pictures together
_FRACTIONS = 1.5  # where nearly all coordinates stay below it, they are fractions of the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBox:
    """One detection: corners as fractions of the picture's width and height, score in 0..1, class number."""

    left: float
    top: float
    right: float
    bottom: float
    score: float
    label: int

    def overlap(self, other: KeptBox) -> float:
        """Intersection over union, 0..1."""
        sides = (np.array([[box.left, box.top, box.right, box.bottom]], np.float64) for box in (self, other))
        return float(overlaps(*sides)[0, 0])


def draw_detections(group: DetectionSet, before: Seen, after: Seen) -> Json | None:
    """The first samples that are pictures; None where there are none, or where neither side found anything.

    Both sides hold the outputs for the same samples in the same order; ``by`` gave those beside the model's as given.
    Each picture is a data URI with the boxes of both sides, which of them are one thing, and how many are not.
    """
    sides = [rows for values in before.outputs if (rows := read_detections(group, values)) is not None]
    nothing = background_class(sides, WORKING_SCORE) if sides else -1
    corners = form_of([side.best(side.scores >= WORKING_SCORE) for side in sides]) is not False

    def drawn() -> Iterator[Json]:
        room, count = _ROOM, 0
        for feed, *outputs in zip(before.feeds, before.outputs, after.outputs, strict=True):
            if (picture := picture_in(feed)) is None:
                continue
            data = base64.b64encode(png(picture.pixels, longest=_LONGEST)).decode("ascii")
            room, count = room - len(data), count + 1
            if room < 0 or count > _MOST_PICTURES:
                return
            left, right = (
                kept_boxes(group, values, feed, picture.size, corners=corners, nothing=nothing) for values in outputs
            )
            pairs = boxes_beside(left, right)
            yield {
                "uri": f"data:image/png;base64,{data}",
                "width": picture.size[0],
                "height": picture.size[1],
                "before": left,
                "after": right,
                "pairs": pairs,
                "differences": sum(None in pair for pair in pairs),
                "is_stretched": picture.is_stretched,
            }

    pictures = list(drawn())
    if not any(picture["before"] or picture["after"] for picture in pictures):
        return None
    return {"outputs": group.outputs, "by": after.by, "corners": corners, "pictures": pictures}


def kept_boxes(
    group: DetectionSet, values: Arrays, feed: Arrays, size: tuple[int, int], *, corners: bool, nothing: int = -1
) -> tuple[KeptBox, ...]:
    """The boxes of at least the lower working score, best first, those over a better one of their class left out.

    ``size`` is the picture's width and height in pixels, ``nothing`` the class of rows without an object. () where the
    outputs hold no rows that fit together.
    """
    rows = read_detections(group, values)
    if rows is None or not rows.scores.size:
        return ()
    # The network may have its own size of picture as an input; its boxes then are in that unit.
    width, height = (float(side) for side in size)
    largest = float(np.quantile(np.abs(rows.boxes), 0.98))  # a row or two of a detector lie anywhere
    if group.sizes and group.sizes in feed and feed[group.sizes].size:
        width = height = largest = float(np.max(np.abs(feed[group.sizes]))) or 1.0
    unit = np.ones(4) if largest <= _FRACTIONS else np.array([width, height, width, height])
    placed = corners_of(np.asarray(rows.boxes / unit, np.float64), are_corners=corners)
    kept: list[KeptBox] = []
    for row in np.argsort(-rows.scores, kind="stable"):
        if rows.scores[row] < WORKING_SCORE or len(kept) >= _MOST_BOXES:
            break
        left, top, right, bottom = (float(value) for value in placed[row])
        score, label = float(rows.scores[row]), int(rows.labels[row])
        box = KeptBox(left=left, top=top, right=right, bottom=bottom, score=score, label=label)
        if label != nothing and all(other.label != label or other.overlap(box) < OVERLAP for other in kept):
            kept.append(box)
    return tuple(kept)


def boxes_beside(one: Sequence[KeptBox], two: Sequence[KeptBox]) -> tuple[tuple[KeptBox | None, KeptBox | None], ...]:
    """Each box with the one of the other side that is of the same thing and class, None where there is none."""
    left = list(two)
    pairs: list[tuple[KeptBox | None, KeptBox | None]] = []
    for box in one:
        alike = [other for other in left if other.label == box.label and box.overlap(other) >= OVERLAP]
        partner = max(alike, key=box.overlap, default=None)
        if partner is not None:
            left.remove(partner)
        pairs.append((box, partner))
    return (*pairs, *((None, other) for other in left))

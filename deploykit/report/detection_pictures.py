"""Detections drawn on their samples, as values for a page: those of the model beside those of what is packaged.

Pictures are small and few, for the page stays below two megabytes. It runs no model.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.accuracy.judge.detections import WORKING_SCORE, background_class, read_detections
from deploykit.report.detection_boxes import KeptBox, boxes_beside, kept_boxes, overlap, reads_corners
from deploykit.report.sample_pictures import Picture, picture_in, png

if TYPE_CHECKING:
    from deploykit.accuracy.judge.kinds import DetectionSet
    from deploykit.backend.backend import Seen

__all__ = ["DetectionPicture", "DetectionPictures", "DrawnBox", "Pair", "draw_detections"]

_MOST_PICTURES = 3
_LONGEST = 320
_ROOM = 900_000
"""Characters of all pictures together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBox:
    """A box in percent of the picture: left, top, width, height; ``words`` are its class and score."""

    left: float
    top: float
    width: float
    height: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing as both sides see it, in words; ``overlap`` is intersection over union, None for a single side."""

    label: int
    before: str
    after: str
    overlap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionPicture:
    """One sample: the picture as a data URI, its boxes of both sides, and what belongs together."""

    uri: str
    width: int
    height: int
    before: tuple[DrawnBox, ...]
    after: tuple[DrawnBox, ...]
    pairs: tuple[Pair, ...]
    is_stretched: bool

    @property
    def differences(self) -> int:
        """How many boxes only one side has."""
        return sum(pair.overlap is None for pair in self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionPictures:
    """All pictures of one set of detections; ``by`` is who gave the boxes beside those of the model as given."""

    outputs: tuple[str, ...]
    by: str
    corners: bool
    pictures: tuple[DetectionPicture, ...]


def draw_detections(group: DetectionSet, before: Seen, after: Seen) -> DetectionPictures | None:
    """The first samples that are pictures; None where there are none, or where neither side found anything.

    Both sides hold the outputs for the same samples in the same order.
    """
    corners = bool(before.outputs) and reads_corners(group, before.outputs[0])
    sides = [rows for values in before.outputs if (rows := read_detections(group, values)) is not None]
    nothing = background_class(sides, WORKING_SCORE) if sides else -1
    drawn = tuple(_within(_drawn(group, before, after, corners, nothing)))
    if not any(picture.before or picture.after for picture in drawn):
        return None
    return DetectionPictures(outputs=group.outputs, by=after.by, corners=corners, pictures=drawn)


def _drawn(group: DetectionSet, before: Seen, after: Seen, corners: bool, nothing: int) -> Iterable[DetectionPicture]:
    for feed, one, two in zip(before.feeds, before.outputs, after.outputs, strict=True):
        picture = picture_in(feed)
        if picture is not None:
            left = kept_boxes(group, one, feed, picture.size, corners=corners, nothing=nothing)
            right = kept_boxes(group, two, feed, picture.size, corners=corners, nothing=nothing)
            yield _picture(picture, left, right)


def _within(pictures: Iterable[DetectionPicture]) -> Iterable[DetectionPicture]:
    room = _ROOM
    for count, picture in enumerate(pictures):
        room -= len(picture.uri)
        if count == _MOST_PICTURES or room < 0:
            return
        yield picture


def _picture(picture: Picture, before: Sequence[KeptBox], after: Sequence[KeptBox]) -> DetectionPicture:
    data = base64.b64encode(png(picture.pixels, longest=_LONGEST)).decode("ascii")
    width, height = picture.size
    return DetectionPicture(
        uri=f"data:image/png;base64,{data}",
        width=width,
        height=height,
        before=tuple(map(_box, before)),
        after=tuple(map(_box, after)),
        pairs=tuple(_pair(one, two) for one, two in boxes_beside(before, after)),
        is_stretched=picture.is_stretched,
    )


def _box(box: KeptBox) -> DrawnBox:
    return DrawnBox(
        left=round(100 * box.left, 2),
        top=round(100 * box.top, 2),
        width=round(100 * max(box.right - box.left, 0.0), 2),
        height=round(100 * max(box.bottom - box.top, 0.0), 2),
        words=f"class {box.label}, {box.score:.2f}",
    )


def _pair(one: KeptBox | None, two: KeptBox | None) -> Pair:
    known = one or two
    assert known is not None
    return Pair(
        label=known.label,
        before="–" if one is None else f"{one.score:.3f}",
        after="–" if two is None else f"{two.score:.3f}",
        overlap=overlap(one, two) if one is not None and two is not None else None,
    )

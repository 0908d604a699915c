"""Detections drawn on their samples, as values for a page: the model's beside those of the package.

An input is recognized as a picture by its values; as networks seldom take camera values, it is scaled to 0..255 for
display. The usual steps after a detector are applied (a least score, no second box on the same object). It runs no
model and reads no file. Pictures are small and few, so that the page stays below two megabytes.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from deploykit.accuracy.judge.detections import (
    background_class,
    corners_of,
    distinct,
    form_of,
    overlaps,
    read_detections,
)
from deploykit.accuracy.judge.verdict import OVERLAP, WORKING_SCORE
from deploykit.findings.records import Arrays, Json, Numbers, Record

if TYPE_CHECKING:
    from deploykit.accuracy.judge.kinds import DetectionSet
    from deploykit.backend.backend import Seen

__all__ = ["draw_detections", "picture_in"]

_Pixels: TypeAlias = Numbers

_LEAST_SIDE = 32
_LIKENESS = 0.5
"""The correlation of neighbouring pixels from which an array counts as a picture; for noise it is about 0."""
_CHANNELS = (1, 3)


class Picture(Record, eq=False):
    """``pixels`` are (height, width, channels) of uint8; ``is_stretched``
    is True if each channel was scaled for display.
    """

    input: str
    pixels: npt.NDArray[np.uint8]
    is_stretched: bool

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.pixels.shape[1], self.pixels.shape[0]


def picture_in(feed: Mapping[str, _Pixels]) -> Picture | None:
    """The first input that is one picture: (1, 1|3, H, W) or (1, H, W,
    1|3) with similar neighbouring pixels; else None.
    """
    for name, given in feed.items():
        if given.ndim != 4 or given.shape[0] != 1 or not np.issubdtype(given.dtype, np.number):
            continue
        channels_first, channels_last = given.shape[1] in _CHANNELS, given.shape[3] in _CHANNELS
        values = (given[0].transpose(1, 2, 0) if channels_first else given[0]).astype(np.float64)
        grey = values.mean(axis=2)
        if channels_first == channels_last or min(grey.shape) < _LEAST_SIDE or not np.isfinite(grey).all():
            continue
        if min(_likeness(grey[:, 1:], grey[:, :-1]), _likeness(grey[1:], grey[:-1])) < _LIKENESS:
            continue
        # 0..255 stays, 0..1 is multiplied, anything else is scaled from its least to its greatest value, per channel.
        low, high = float(values.min()), float(values.max())
        is_stretched = low < 0 or high > 255
        if is_stretched:
            least, most = values.min(axis=(0, 1)), values.max(axis=(0, 1))
            values = (values - least) / np.maximum(most - least, 1e-12) * 255
        elif high <= 1:
            values = values * 255
        return Picture(input=name, pixels=np.rint(values).astype(np.uint8), is_stretched=is_stretched)
    return None


def _likeness(one: _Pixels, two: _Pixels) -> float:
    spread = float(one.std() * two.std())
    return float(((one - one.mean()) * (two - two.mean())).mean()) / spread if spread > 0 else 0.0


def png(pixels: npt.NDArray[np.uint8], *, longest: int) -> bytes:
    """A PNG (ISO/IEC 15948) of (height, width, 1|3), reduced by a whole factor so that no side exceeds ``longest``."""
    factor = -(-max(pixels.shape[:2]) // longest)
    height, width = (side // factor for side in pixels.shape[:2])
    blocks = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    small = np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)
    rows = np.zeros((height, 1 + width * small.shape[2]), np.uint8)
    # Each row is its difference from the one above (filter 2): neighbours are similar, which compresses well.
    above = np.vstack([np.zeros((1, *small.shape[1:]), np.uint8), small[:-1]])
    rows[:, 0] = 2
    rows[:, 1:] = (small - above).reshape(height, -1)
    color = 0 if small.shape[2] == 1 else 2
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes())),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
        for kind, body in parts
    )


_MOST_BOXES = 40
_MOST_PICTURES = 3
_LONGEST = 320
_ROOM = 900_000  # the most characters of all pictures together
_FRACTIONS = 1.5  # if nearly all coordinates are below this, they are fractions of the picture


class KeptBox(Record):
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
    """The drawn samples that are pictures; None if there are none, or if neither side found anything.

    Both sides hold outputs for the same samples in the same order; ``by`` names the source of the second side. Each
    picture is a data URI with the boxes of both sides, their pairs, and the number of boxes without a partner.
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

    ``size`` is the picture's width and height in pixels, ``nothing`` the class of rows without an object. () if the
    outputs hold no rows that fit together.
    """
    rows = read_detections(group, values)
    if rows is None or not rows.scores.size:
        return ()
    # The network may have the picture's size as an input; its boxes are in that unit then.
    width, height = (float(side) for side in size)
    largest = float(np.quantile(np.abs(rows.boxes), 0.98))  # a few rows of a detector may be anywhere
    if group.sizes and group.sizes in feed and feed[group.sizes].size:
        width = height = largest = float(np.max(np.abs(feed[group.sizes]))) or 1.0
    unit = np.ones(4) if largest <= _FRACTIONS else np.array([width, height, width, height])
    placed = corners_of(np.asarray(rows.boxes / unit, np.float64), are_corners=corners)
    found = replace(rows, boxes=placed).best((rows.scores >= WORKING_SCORE) & (rows.labels != nothing))
    left = distinct(found, are_corners=True).at(slice(_MOST_BOXES))
    return tuple(
        KeptBox(left=x, top=y, right=right, bottom=bottom, score=score, label=label)
        for (x, y, right, bottom), score, label in zip(
            left.boxes.tolist(), left.scores, left.labels.tolist(), strict=True
        )
    )


def boxes_beside(one: Sequence[KeptBox], two: Sequence[KeptBox]) -> tuple[tuple[KeptBox | None, KeptBox | None], ...]:
    """Pairs of a box with the other side's box on the same object and class, None if there is no such box."""
    left = list(two)
    pairs = list[tuple[KeptBox | None, KeptBox | None]]()
    for box in one:
        alike = [other for other in left if other.label == box.label and box.overlap(other) >= OVERLAP]
        partner = max(alike, key=box.overlap, default=None)
        if partner is not None:
            left.remove(partner)
        pairs.append((box, partner))
    return (*pairs, *((None, other) for other in left))

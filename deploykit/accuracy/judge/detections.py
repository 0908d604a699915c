"""Compares detections as detections: how far matched boxes lie apart in pixels, what was lost and what was invented.

Layouts are brought into rows of four coordinates, one score and one label; the corners' convention does not matter for
an error in pixels. It measures; limits are looked up elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.alignment import Pairs, pair_costs
from deploykit.accuracy.judge.detection_sets import DetectionSet
from deploykit.accuracy.judge.kinds import OutputKind, Piece

__all__ = ["WORKING_SCORES", "DetectionError", "Detections", "compare_detections", "image_side", "read_detections"]

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]
_Doubles: TypeAlias = npt.NDArray[np.float64]
_Mask: TypeAlias = npt.NDArray[np.bool_]

WORKING_SCORES = (0.25, 0.5)
"""The scores from which applications usually take a detection."""

_BEST = 100
"""So many of the highest scores are compared where none reaches a working score."""

_NORMALIZED = 1.5
"""Boxes that stay below it are fractions of the image; a little over 1 reaches across the border."""

_REACH = 4.0
"""A partner may lie this many times the tolerance away: then it is the same detection, badly placed."""

_MOST_ROWS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """Rows of one sample: boxes (n, 4), scores (n,) in 0..1, labels (n,) and how clear each label is (n,).

    ``classes`` is how many each row has scores for, 1 where labels are given.
    """

    boxes: _Doubles
    scores: _Doubles
    labels: npt.NDArray[np.int64]
    margins: _Doubles
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionError:
    """Sums over one sample; ``compared`` are the reference's detections that count, ``paired`` those with a partner.

    ``box`` is in pixels and ``score`` a difference, both summed over pairs; ``agree`` of ``labelled`` pairs have the
    same label. ``lost``, ``invented`` and ``wanted`` are counts per working score.
    """

    compared: int
    paired: int
    box: float
    score: float
    agree: int
    labelled: int
    lost: Mapping[float, int]
    invented: Mapping[float, int]
    wanted: Mapping[float, int]


def read_detections(group: DetectionSet, values: Values) -> Detections | None:
    """The rows that a sample's outputs hold; None where their shapes do not fit together."""
    boxes = _columns(group.boxes, values[group.boxes.output], 4)
    if boxes is None:
        return None
    count = boxes.shape[0]
    table = _score_table(group.scores, values[group.scores.output], count)
    if table is None or table.shape[0] != count:
        return None
    if group.objectness is not None:
        certain = _columns(group.objectness, values[group.objectness.output], 1)
        table = table * certain if certain is not None else table
    table = np.nan_to_num(table)
    ranked = np.sort(table, axis=1)
    margins = ranked[:, -1] - ranked[:, -2] if table.shape[1] > 1 else np.ones(count)
    labels = table.argmax(1)
    if group.labels is not None:
        given = _columns(group.labels, values[group.labels.output], 1)
        if given is None or given.shape[0] != count:
            return None
        labels, margins = np.rint(np.nan_to_num(given[:, 0])), np.ones(count)
    return Detections(
        boxes=np.nan_to_num(boxes),
        scores=ranked[:, -1],
        labels=labels.astype(np.int64),
        margins=margins,
        classes=table.shape[1],
    )


def _columns(piece: Piece, array: Numbers, width: int) -> _Doubles | None:
    """A piece as rows of ``width`` numbers."""
    values = np.asarray(array, np.float64)
    if piece.axis is not None:
        if values.ndim <= piece.axis or values.shape[piece.axis] < piece.stop:
            return None
        taken = np.take(values, range(piece.start, piece.stop), axis=piece.axis)
        return np.moveaxis(taken, piece.axis, -1).reshape(-1, width) if taken.size % width == 0 else None
    if width > 1 and values.shape[-1] != width and values.ndim == 3 and values.shape[1] == width:
        values = np.moveaxis(values, 1, -1)
    return values.reshape(-1, width) if values.shape[-1:] == (width,) or width == 1 else None


def _score_table(piece: Piece, array: Numbers, count: int) -> _Doubles | None:
    """Scores per row and class, in 0..1: logits through a sigmoid, which keeps their order."""
    values = np.asarray(array, np.float64)
    if piece.axis is not None:
        table = _columns(piece, array, piece.width)
    elif values.size == count:
        table = values.reshape(count, 1)
    elif count and values.size % count == 0 and values.ndim >= 2:
        by_class = values.ndim == 3 and values.shape[-1] == count and values.shape[1] != count
        table = (np.moveaxis(values, 1, -1) if by_class else values).reshape(count, -1)
    else:
        table = values.reshape(0, 1) if not count else None
    if table is None or not table.size or piece.kind is OutputKind.SCORES:
        return table
    return np.asarray(1 / (1 + np.exp(-np.clip(table, -60, 60))))


def image_side(
    group: DetectionSet, boxes: Numbers, feed: Values, shapes: Sequence[tuple[int, ...]]
) -> tuple[float, float]:
    """The longer side of the image that boxes speak of, and what their numbers are multiplied by to be pixels.

    ``boxes`` are the reference's. It is the size that the graph multiplies by, else the input's height and width.
    """
    inputs = max((max(shape[-2:]) for shape in shapes if len(shape) == 4 and shape[1] <= 4), default=0)
    inputs = inputs or max((max(shape[1:3]) for shape in shapes if len(shape) == 4), default=640)
    if group.sizes and group.sizes in feed:
        asked = float(np.max(np.abs(feed[group.sizes]))) if feed[group.sizes].size else 0.0
        return (asked, 1.0) if asked > _NORMALIZED else (float(inputs), float(inputs))
    largest = float(np.abs(boxes).max()) if boxes.size else 0.0
    return (float(inputs), 1.0) if largest > _NORMALIZED else (float(inputs), float(inputs))


def compare_detections(
    one: Detections,
    two: Detections,
    pairs: Pairs | None,
    *,
    scale: float,
    tolerance: float,
    score_tolerance: float,
    barely: tuple[_Mask | None, _Mask | None] = (None, None),
) -> DetectionError:
    """What differs. ``pairs`` are rows known to be the same; without them, or beyond them, rows are matched by place.

    ``scale`` turns the boxes' numbers into pixels, ``tolerance`` is the error in pixels that is still right. ``barely``
    are, per side, rows that the other could not have, since an earlier choice was close: they are not missing.
    """
    places = _partners(one, two, pairs, scale, _REACH * tolerance)
    counted = _counted(one.scores)
    first = counted[places[counted] >= 0]
    second = places[first]
    clear = one.margins[first] > score_tolerance
    lost = {score: _missing(one, two, places, score, score_tolerance, barely[0]) for score in WORKING_SCORES}
    back = np.full(two.scores.size, -1, np.intp)
    back[places[places >= 0]] = np.flatnonzero(places >= 0)
    return DetectionError(
        compared=counted.size,
        paired=first.size,
        box=float(np.abs(one.boxes[first] - two.boxes[second]).mean(axis=1).sum() * scale) if first.size else 0.0,
        score=float(np.abs(one.scores[first] - two.scores[second]).sum() / _height(one.scores)),
        agree=int((one.labels[first] == two.labels[second])[clear].sum()),
        labelled=int(clear.sum()),
        lost=lost,
        invented={score: _missing(two, one, back, score, score_tolerance, barely[1]) for score in WORKING_SCORES},
        wanted={score: int((one.scores >= score).sum()) for score in WORKING_SCORES},
    )


def _height(scores: _Doubles) -> float:
    """1, or less where all scores lie below the working ones: their differences are small then, and no less wrong."""
    top = float(scores.max()) if scores.size else 1.0
    return min(1.0, max(top, 1e-9) / WORKING_SCORES[0])


def _counted(scores: _Doubles) -> npt.NDArray[np.intp]:
    """The rows that somebody would use: from the lowest working score on, else the best ones."""
    used = np.flatnonzero(scores >= WORKING_SCORES[0])
    return used if used.size else np.argsort(-scores, kind="stable")[:_BEST]


def _partners(
    one: Detections, two: Detections, pairs: Pairs | None, scale: float, reach: float
) -> npt.NDArray[np.intp]:
    """Per row on the left its partner on the right, -1 for none."""
    places = np.full(one.scores.size, -1, np.intp)
    taken = np.zeros(two.scores.size, bool)
    if pairs is not None:
        places[pairs[0]] = pairs[1]
        taken[pairs[1]] = True
    left, right = _best(np.flatnonzero(places < 0), one.scores), _best(np.flatnonzero(~taken), two.scores)
    if left.size and right.size:
        costs = np.abs(one.boxes[left][:, None] - two.boxes[right][None]).mean(axis=2) * scale
        costs = np.where(costs <= reach, costs / reach, np.inf)
        costs += np.abs(one.scores[left][:, None] - two.scores[right][None])
        costs += one.labels[left][:, None] != two.labels[right][None]
        first, second = pair_costs(np.where(np.isfinite(costs), costs, np.inf), most=1e6)
        places[left[first]] = right[second]
    return places


def _best(rows: npt.NDArray[np.intp], scores: _Doubles) -> npt.NDArray[np.intp]:
    return rows[np.argsort(-scores[rows], kind="stable")[:_MOST_ROWS]]


def _missing(
    one: Detections,
    two: Detections,
    places: npt.NDArray[np.intp],
    score: float,
    slack: float,
    barely: _Mask | None,
) -> int:
    """Rows over a working score whose partner is none, has another clear label, or is clearly below it.

    A row that just fell out of a full list, since its score is about the list's last, is not missing.
    """
    last = float(two.scores.min()) if two.scores.size == one.scores.size else 0.0
    rows = np.flatnonzero(one.scores >= score + slack)
    partner = places[rows]
    without = (partner < 0) & (one.scores[rows] > last + slack)
    if barely is not None and barely.size == one.scores.size:
        without &= ~barely[rows]
    below = (partner >= 0) & (two.scores[partner] < score - slack) if two.scores.size else without
    other = (partner >= 0) & (one.margins[rows] > slack)
    if two.labels.size:
        other &= one.labels[rows] != two.labels[partner]
    return int((without | below | other).sum())

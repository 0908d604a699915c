"""Boxes that an application keeps: where they lie in the picture, which are one thing, in either convention."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.accuracy.judge.kinds import DetectionSet, OutputKind, Piece
from deploykit.report.detections import KeptBox, boxes_beside, kept_boxes

GROUP = DetectionSet(
    boxes=Piece(output="boxes", kind=OutputKind.BOXES), scores=Piece(output="scores", kind=OutputKind.SCORES)
)
CORNERS = np.array([[10, 20, 50, 60], [12, 20, 52, 60], [100, 20, 160, 100], [10, 20, 50, 60], [0, 0, 9, 9]], float)
SCORES = np.array([[0.9, 0.0], [0.8, 0.0], [0.1, 0.7], [0.0, 0.6], [0.2, 0.1]])
SIZE = (200, 100)


def kept(boxes: np.ndarray, *, corners: bool) -> tuple[KeptBox, ...]:
    values = {"boxes": boxes[None], "scores": SCORES[None]}
    return kept_boxes(GROUP, values, {}, SIZE, corners=corners)


@pytest.mark.parametrize("unit", [(1, 1), SIZE], ids=["pixels", "parts of the picture"])
@pytest.mark.parametrize("corners", [True, False])
def test_the_same_boxes_in_every_convention(corners: bool, unit: tuple[int, int]) -> None:
    boxes = CORNERS / [*unit, *unit]
    if not corners:
        boxes = np.hstack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]])
    found = kept(boxes, corners=corners)
    # The second lies over the first, of its class; the fourth too, of another; the last is below the working score.
    assert [(box.label, round(box.score, 2)) for box in found] == [(0, 0.9), (1, 0.7), (1, 0.6)]
    assert (found[0].left, found[0].top, found[0].right, found[0].bottom) == pytest.approx((0.05, 0.2, 0.25, 0.6))


def test_rows_of_the_background_are_no_boxes() -> None:
    values = {"boxes": CORNERS[None], "scores": SCORES[None]}
    found = kept_boxes(GROUP, values, {}, SIZE, corners=True, nothing=0)
    assert [(box.label, box.score) for box in found] == [(1, 0.7), (1, 0.6)]


def test_what_is_seen_by_one_side_only_stays_alone() -> None:
    here = KeptBox(left=0, top=0, right=0.5, bottom=0.5, score=0.9, label=0)
    near = KeptBox(left=0, top=0, right=0.5, bottom=0.4, score=0.8, label=0)
    other = KeptBox(left=0, top=0, right=0.5, bottom=0.5, score=0.8, label=1)
    assert here.overlap(near) == pytest.approx(0.8)
    assert boxes_beside([here], [near]) == ((here, near),)
    assert boxes_beside([here], [other]) == ((here, None), (None, other))
    assert boxes_beside([here, here], [near]) == ((here, near), (here, None)), "a box has one partner"


def test_rows_that_do_not_fit_together_give_no_boxes() -> None:
    values = {"boxes": CORNERS[None], "scores": SCORES[None, :3]}
    assert kept_boxes(GROUP, values, {}, SIZE, corners=True) == ()

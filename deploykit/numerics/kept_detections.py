"""Counts the detections of one side that another has too, as a user's own script would: near misses are misses.

``detection_judging`` asks whether two sides mean the same, and forgives a score just below the working one; here it is
gone. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.graph.facts import GraphFacts
from deploykit.numerics.alignment import pair_costs
from deploykit.numerics.detection_sets import detection_sets
from deploykit.numerics.detections import WORKING_SCORES, Detections, read_detections

__all__ = ["OVERLAP", "Kept", "count_kept"]

Values: TypeAlias = Mapping[str, npt.NDArray[Any]]
_Doubles: TypeAlias = npt.NDArray[np.float64]

OVERLAP = 0.5
"""The intersection over union from which two boxes are the same detection, as mAP at 0.5 counts."""

_MOST_ROWS = 2048
"""The highest scores of a sample are counted; of a model that lets everything through, these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How many of one side's detections at a working score the other has: same class, overlapping, each once."""

    kept: int
    every: int
    score: float

    @property
    def share(self) -> float:
        """1 where all are there."""
        return self.kept / self.every

    def __str__(self) -> str:
        return f"{self.kept} of {self.every} detections at {self.score:g} kept"


def count_kept(
    facts: GraphFacts,
    reference: Sequence[Values],
    candidate: Sequence[Values],
    *,
    score: float = WORKING_SCORES[0],
) -> Kept | None:
    """Count over samples, all sets of detections together; None where the graph or the reference has none."""
    kept = every = 0
    for group in detection_sets(facts):
        pairs = [
            (read_detections(group, one), read_detections(group, two))
            for one, two in zip(reference, candidate, strict=True)
            if set(group.outputs) <= one.keys() & two.keys()
        ]
        used = [(_above(one, score), None if two is None else _above(two, score)) for one, two in pairs if one]
        centred = not all(_are_corners(one.boxes) for one, _ in used)
        for one, two in used:
            every += one.scores.size
            kept += 0 if two is None else _matched(one, two, centred=centred)
    return Kept(kept=kept, every=every, score=score) if every else None


def _above(found: Detections, score: float) -> Detections:
    rows = np.flatnonzero(found.scores > score)
    rows = rows[np.argsort(-found.scores[rows], kind="stable")[:_MOST_ROWS]]
    return Detections(
        boxes=found.boxes[rows], scores=found.scores[rows], labels=found.labels[rows], margins=found.margins[rows]
    )


def _are_corners(boxes: _Doubles) -> bool:
    """True where the last two numbers never lie before the first two: sizes would, for a box far from the origin."""
    return bool((boxes[:, 2:] >= boxes[:, :2]).all())


def _matched(one: Detections, two: Detections, *, centred: bool) -> int:
    """Pairs of one class that overlap enough, the best overlaps first, each detection once."""
    if not one.scores.size or not two.scores.size:
        return 0
    overlap = _overlaps(_corners(one.boxes, centred=centred), _corners(two.boxes, centred=centred))
    overlap[one.labels[:, None] != two.labels[None]] = 0.0
    first, _ = pair_costs(-overlap, most=-OVERLAP)
    return int(first.size)


def _corners(boxes: _Doubles, *, centred: bool) -> _Doubles:
    if not centred:
        return boxes
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([middle - half, middle + half], axis=1)


def _overlaps(one: _Doubles, two: _Doubles) -> _Doubles:
    """Intersection over union of every pair; 0 for boxes without area."""
    low = np.maximum(one[:, None, :2], two[None, :, :2])
    high = np.minimum(one[:, None, 2:], two[None, :, 2:])
    both = np.clip(high - low, 0.0, None).prod(axis=2)
    areas = [np.clip(side[:, 2:] - side[:, :2], 0.0, None).prod(axis=1) for side in (one, two)]
    either = areas[0][:, None] + areas[1][None] - both
    shares: _Doubles = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return shares

"""Numbers about detections, pooled over samples and held against the table: boxes, scores, labels, lost, invented."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.alignment import Pairs
from deploykit.accuracy.judge.detection_sets import DetectionSet
from deploykit.accuracy.judge.detections import (
    WORKING_SCORES,
    DetectionError,
    compare_detections,
    image_side,
    read_detections,
)
from deploykit.accuracy.judge.kinds import OutputKind
from deploykit.accuracy.judge.thresholds import Measure
from deploykit.accuracy.judge.verdicts import Context, JudgedNumber

__all__ = ["Sides", "judge_detections"]

Values: TypeAlias = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """One sample of both sides, the rows known to be the same, and per side those that were barely chosen."""

    one: Values
    two: Values
    pairs: Pairs | None
    barely: tuple[npt.NDArray[np.bool_] | None, npt.NDArray[np.bool_] | None] = (None, None)


def judge_detections(
    context: Context,
    group: DetectionSet,
    samples: Sequence[Sides],
    feeds: Sequence[Values],
    shapes: Sequence[tuple[int, ...]],
) -> Iterator[JudgedNumber]:
    """The numbers of one set of detections. ``samples`` are both sides and the rows known to be the same.

    ``shapes`` are those of the graph's inputs, for boxes in 0..1.
    """
    errors, side = [], 640.0
    for place, sides in enumerate(samples):
        left, right = read_detections(group, sides.one), read_detections(group, sides.two)
        if left is None or right is None:
            yield context.number(_name(group), OutputKind.DETECTIONS, Measure.ROWS, math.nan, where="unlike shapes")
            return
        side, scale = image_side(group, left.boxes, feeds[place] if feeds else {}, shapes)
        errors.append(
            compare_detections(
                left,
                right,
                sides.pairs,
                scale=scale,
                barely=sides.barely,
                tolerance=context.limit(Measure.BOX_ERROR, side).value,
                score_tolerance=context.limit(Measure.SCORE_ERROR).value,
            )
        )
    yield from _pooled(context, group, errors, side)


def _name(group: DetectionSet) -> str:
    return "+".join(group.outputs)


def _pooled(
    context: Context, group: DetectionSet, errors: Sequence[DetectionError], side: float
) -> Iterator[JudgedNumber]:
    name, kind = _name(group), OutputKind.DETECTIONS
    compared, paired = sum(error.compared for error in errors), sum(error.paired for error in errors)
    if compared:
        yield context.number(name, kind, Measure.ROWS, paired / compared, where="with a partner")
    if paired:
        yield context.number(name, kind, Measure.BOX_ERROR, sum(error.box for error in errors) / paired, side=side)
        yield context.number(name, kind, Measure.SCORE_ERROR, sum(error.score for error in errors) / paired)
    labelled = sum(error.labelled for error in errors)
    if labelled:
        agree = sum(error.agree for error in errors) / labelled
        yield context.number(name, kind, Measure.AGREEMENT, agree, where="labels")
    for score in WORKING_SCORES:
        wanted = sum(error.wanted[score] for error in errors)
        lost, invented = (sum(getattr(error, what)[score] for error in errors) for what in ("lost", "invented"))
        if wanted:
            yield context.number(name, kind, Measure.LOST, lost / wanted, where=f"at {score}")
        if wanted or invented:
            yield context.number(name, kind, Measure.INVENTED, invented / max(wanted, 1), where=f"at {score}")

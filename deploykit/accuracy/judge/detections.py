"""Detections: reads rows of boxes, scores and labels from any layout, and finds those that two sides share.

It measures; limits are looked up elsewhere. Boxes are corners, or centres and sizes: ``form_of`` tells by the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.kinds import STRIDES, DetectionSet, OutputKind, Piece
from deploykit.accuracy.judge.rows import ChosenRows
from deploykit.accuracy.judge.verdict import OVERLAP, WORKING_SCORE, Context, JudgedNumber, KeptCount, Measure
from deploykit.findings.records import Arrays, Doubles, Numbers, Record, replace
from deploykit.model.facts import GraphFacts

__all__ = ["Detections", "background_class", "corners_of", "count_kept", "distinct", "form_of", "judge_detections"]
__all__ += ["overlaps", "read_both", "read_detections"]

_Pairs: TypeAlias = "Sequence[tuple[Detections, Detections]]"

_BEST = 100  # so many of the highest scores are looked at where none reaches a working score
_NORMALIZED = 1.5  # boxes that stay below it are fractions of the image; a little over 1 reaches across the border
_MOST = 1024  # detections of one sample that are counted, the best ones
_MOSTLY = 0.5  # share of all rows: objects fill less of what a detector looks at
_TIES = 0.05  # from so many near ties on (untrained weights) the plain count says nothing
_FAR_APART, _FAR_LOG = 1e5, 10.0  # no box is as large as e to the 10th cells
_LARGEST_LOG = 6.0  # e to the 6th are 400 cells of 8 pixels, more than any picture has
_FLAT = 0.02  # share of boxes without an area that a detector may have at the borders of its images
_REPEATED = 0.5  # a detector that looks at every cell gives each object several times, one with queries hardly ever
_BOX, _OF_ROWS = 4, ("boxes", "scores", "labels", "margins")
_VARIANCES = np.asarray([0.1, 0.1, 0.2, 0.2])  # of places and sizes, as SSD has them (Liu et al. 2016)
_MOST_MOVES = 0.9  # editorial: a tenth of the rows may be noise


class Detections(Record):
    """Rows of one sample: boxes (n, 4), scores (n,) in 0..1, labels (n,) and how clear each label is (n,).

    ``classes`` is how many each row has scores for, 1 where labels are given.
    """

    boxes: Doubles
    scores: Doubles
    labels: npt.NDArray[np.int64]
    margins: Doubles
    classes: int

    def at(self, rows: Numbers | slice) -> Detections:
        """The rows at these positions, in this order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _OF_ROWS})

    def best(self, rows: npt.NDArray[np.bool_]) -> Detections:
        """The rows in a mask with the highest scores, best first, ``_MOST`` at most."""
        found = np.flatnonzero(rows)
        return self.at(found[np.argsort(-self.scores[found], kind="stable")][:_MOST])


def read_detections(group: DetectionSet, values: Arrays) -> Detections | None:
    """The rows that a sample's outputs hold; None where their shapes do not fit together."""
    levels = [found for one in (group, *group.coarser) if (found := _read_level(one, values)) is not None]
    if len(levels) <= len(group.coarser):
        return None
    if group.boxes.width <= _BOX:
        return levels[0]
    # Of each cell the distances to four sides, each the mean of a few that are weighed.
    every = replace(levels[0], **{name: np.concatenate([getattr(one, name) for one in levels]) for name in _OF_ROWS})
    cells = _cells(len(every.boxes), group.picture)
    middles, sides = cells[:, :2] + cells[:, 2:] / 2, every.boxes * cells[:, 2:] * (-1, -1, 1, 1)
    return replace(every, boxes=np.tile(middles, 2) + sides)


def _read_level(group: DetectionSet, values: Arrays) -> Detections | None:
    boxes = _columns(group.boxes, values[group.boxes.output], max(group.boxes.width, _BOX))
    if boxes is None:
        return None
    count = boxes.shape[0]
    if group.boxes.width > _BOX:
        shares = np.exp(np.clip(boxes, -60, 60)).reshape(count, _BOX, -1)
        boxes = shares @ np.arange(shares.shape[2]) / shares.sum(2)
    table = _score_table(group.scores, values[group.scores.output], count)
    if table is None or table.shape[0] != count:
        return None
    if group.objectness is not None:
        certain = _columns(group.objectness, values[group.objectness.output], 1)
        table = table * certain if certain is not None else table
    table = np.nan_to_num(table)
    ranked, labels = np.sort(table, axis=1), table.argmax(1)
    margins = ranked[:, -1] - ranked[:, -2] if table.shape[1] > 1 else np.ones(count)
    if group.labels is not None:
        given = _columns(group.labels, values[group.labels.output], 1)
        if given is None or given.shape[0] != count:
            return None
        labels, margins = np.rint(np.nan_to_num(given[:, 0])), np.ones(count)
    boxes, scores, labels = np.nan_to_num(boxes), ranked[:, -1], labels.astype(np.int64)
    return Detections(boxes=boxes, scores=scores, labels=labels, margins=margins, classes=table.shape[1])


def read_both(
    group: DetectionSet,
    samples: Sequence[tuple[Arrays, Arrays]],
    *,
    in_order: bool,
    label: str,
) -> _Pairs:
    """The rows of both sides of each sample; [] where the shapes of any sample do not fit together.

    Boxes without an area in rows that mean the same on both sides (``in_order``) are taken for a head's output before
    it is decoded: the place within a cell, and logarithms of sizes. On made-up inputs (``label``) they are not: a
    picture size that nobody gave makes decoded boxes without an area.
    """
    read = [(read_detections(group, one), read_detections(group, two)) for one, two in samples]
    known = [(one, two) for one, two in read if one is not None and two is not None]
    if len(known) < len(read):
        return []
    best = [one.best(one.scores >= WORKING_SCORE) for one, _ in known]
    if not in_order or label in ("derived", "arbitrary") or form_of(best) is not None:
        return known
    # Offsets within a cell and logarithms of sizes are small; boxes in pixels of a network without sense are not.
    if np.mean(np.concatenate([np.abs(side.boxes).ravel() for side in best]) > _LARGEST_LOG) > _FLAT:
        return known
    counts = {len(side.boxes) for pair in known for side in pair} - {0}
    has_anchors = all(_cells(count, group.picture)[0, 2] == 1 for count in counts)
    moves = np.concatenate([np.abs(side.boxes[:, :2]).ravel() for side in best])
    # No anchor is farther from its object than it is large: such places and sizes are in parts of the anchor, as in
    # SSD.
    units = _VARIANCES if has_anchors and np.quantile(moves, _MOST_MOVES) > 1 else np.ones(_BOX)
    return [(_of_cells(one, units, group.picture), _of_cells(two, units, group.picture)) for one, two in known]


def _cells(count: int, sides: Sequence[int]) -> Doubles:
    """The place and the size of each row's cell in pixels, (n, 3), where maps of the usual strides have so many cells.

    Elsewhere every row lies far from the others, so that it meets only its own.
    """
    every = list[Numbers]()
    for stride in STRIDES if sides else ():
        down, right = (np.arange(-(-side // stride)) for side in sides)
        every.append(stride * np.stack([*np.meshgrid(right, down), np.ones((down.size, right.size))], 2).reshape(-1, 3))
        if sum(map(len, every)) == count:
            return np.concatenate(every, dtype=np.float64)
    apart = np.arange(count)[:, None] * _FAR_APART
    return np.concatenate([apart, apart, np.ones((count, 1))], axis=1)


def _of_cells(side: Detections, units: Doubles, picture: Sequence[int]) -> Detections:
    """Boxes as centres and sizes in pixels, from boxes in ``units`` of each row's own cell."""
    cells, boxes = _cells(len(side.boxes), picture), side.boxes * units
    places = boxes[:, :2] * cells[:, 2:] + cells[:, :2]
    sizes = np.exp(np.clip(boxes[:, 2:], -_FAR_LOG, _FAR_LOG)) * cells[:, 2:]
    return replace(side, boxes=np.concatenate([places, sizes], axis=1))


def _columns(piece: Piece, array: Numbers, width: int) -> Doubles | None:
    """The values of a piece as rows of ``width`` numbers; None where they do not fit."""
    values = np.asarray(array, np.float64)
    if piece.axis is not None:
        if values.ndim <= piece.axis or values.shape[piece.axis] < piece.stop:
            return None
        taken = np.take(values, range(piece.start, piece.stop), axis=piece.axis)
        return np.moveaxis(taken, piece.axis, -1).reshape(-1, width) if taken.size % width == 0 else None
    if width > 1 and values.shape[-1] != width and values.ndim == 3 and values.shape[1] == width:
        values = np.moveaxis(values, 1, -1)
    return values.reshape(-1, width) if values.shape[-1:] == (width,) or width == 1 else None


def _score_table(piece: Piece, array: Numbers, count: int) -> Doubles | None:
    """Scores per row and class, in 0..1: logits through a sigmoid, which keeps their order."""
    values = np.asarray(array, np.float64)
    table = None
    if piece.axis is not None:
        table = _columns(piece, array, piece.width)
    elif values.size == count:
        table = values.reshape(count, 1)
    elif count and values.size % count == 0 and values.ndim >= 2:
        by_class = values.ndim == 3 and values.shape[-1] == count and values.shape[1] != count
        table = (np.moveaxis(values, 1, -1) if by_class else values).reshape(count, -1)
    if table is None or not table.size or piece.kind is OutputKind.SCORES:
        return table
    return np.asarray(1 / (1 + np.exp(-np.clip(table, -60, 60))))


def corners_of(boxes: Doubles, *, are_corners: bool) -> Doubles:
    """Boxes (n, 4) as left, top, right, bottom; they are given so, or as centres and sizes."""
    if are_corners:
        return boxes
    centres, halves = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centres - halves, centres + halves], axis=1)


def overlaps(one: Doubles, two: Doubles) -> Doubles:
    """Intersection over union, 0..1, of every box on the left with every one on the right; both are corners."""
    low = np.maximum(one[:, None, :2], two[None, :, :2])
    common = np.clip(np.minimum(one[:, None, 2:], two[None, :, 2:]) - low, 0.0, None).prod(axis=2)
    union = _areas(one)[:, None] + _areas(two)[None] - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def _areas(boxes: Doubles) -> Doubles:
    """The areas of boxes given as corners; 0 where the second corner does not lie behind the first."""
    return np.asarray(np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None).prod(axis=1))


def background_class(sides: Sequence[Detections], score: float) -> int:
    """The class that stands for no object, -1 for none: the first or last, where most rows of the reference have it.

    Such rows would otherwise be kept detections, and hide the loss of real ones.
    """
    classes, rows = max(side.classes for side in sides), sum(side.scores.size for side in sides)
    for end in (0, classes - 1) if classes >= 2 and rows else ():
        if sum(int(((side.scores >= score) & (side.labels == end)).sum()) for side in sides) > _MOSTLY * rows:
            return end
    return -1


def count_kept(pairs: _Pairs, *, alone: bool = False) -> KeptCount | None:
    """Count the detections of both sides of each sample, and the pairs of both, as one does by hand.

    Pairs are one to one, of the same class, with boxes that overlap; nothing is forgiven. None where boxes of the
    reference have no area, read either way: then their form is not known, and no model would keep its own. Boxes are
    read as corners where all counted ones of the reference could be corners; boxes that are not are distorted alike on
    both sides. With ``alone`` only the best of overlapping boxes count.
    """
    found, are_corners = _used(pairs, WORKING_SCORE, alone=alone)
    if are_corners is None:
        return None
    return KeptCount(
        wanted=tuple(one.scores.size for one, _ in found),
        made=tuple(two.scores.size for _, two in found),
        kept=tuple(int((_partners(one, two, are_corners) >= 0).sum()) for one, two in found),
    )


def _used(pairs: _Pairs, least: float, *, alone: bool) -> tuple[_Pairs, bool | None]:
    """The detections of both sides that an application would use, best first, and the form of the reference's boxes."""
    nothing = background_class([one for one, _ in pairs], least)

    def used(side: Detections) -> Detections:
        return side.best((side.scores >= least) & (side.labels != nothing))

    found = [(used(one), used(two)) for one, two in pairs]
    form = form_of([one for one, _ in found])
    if alone and form is not None:
        found = [(distinct(one, are_corners=form), distinct(two, are_corners=form)) for one, two in found]
    return found, form


def distinct(side: Detections, *, are_corners: bool) -> Detections:
    """The rows that overlap no better row of their class; rows must stand best first."""
    corners, kept = corners_of(side.boxes, are_corners=are_corners), list[int]()
    repeats = (overlaps(corners, corners) >= OVERLAP) & (side.labels[:, None] == side.labels)
    for row in range(len(corners)):
        if not repeats[row, kept].any():
            kept.append(row)
    return side.at(np.asarray(kept, np.intp))


def form_of(sides: Sequence[Detections]) -> bool | None:
    """True for corners, False for centres and sizes, None where both give boxes without an area."""
    corners = all(bool((side.boxes[:, :2] <= side.boxes[:, 2:]).all()) for side in sides)
    sizes = np.concatenate([_areas(corners_of(side.boxes, are_corners=corners)) for side in sides] or [np.zeros(0)])
    return None if (sizes <= 0).sum() > _FLAT * sizes.size else corners


def _partners(one: Detections, two: Detections, are_corners: bool, slack: float = 0.0) -> npt.NDArray[np.intp]:
    """For each row of the left side, best first, the free row of its class that overlaps it most; -1 for none.

    With ``slack`` a row whose label leads by less may meet any label.
    """
    partner = np.full(one.scores.size, -1, np.intp)
    if not partner.size or not two.scores.size:
        return partner
    left, right = (corners_of(side.boxes, are_corners=are_corners) for side in (one, two))
    alike = (one.labels[:, None] == two.labels[None]) | (one.margins < slack)[:, None]
    shared = np.where(alike, overlaps(left, right), 0.0)
    for number, row in enumerate(shared):
        best = int(row.argmax())
        if row[best] >= OVERLAP:
            shared[:, best] = 0.0
            partner[number] = best
    return partner


def judge_detections(
    context: Context,
    facts: GraphFacts,
    group: DetectionSet,
    samples: Sequence[tuple[Arrays, Arrays]],
    feeds: Sequence[Arrays],
) -> tuple[list[JudgedNumber], KeptCount | None]:
    """The numbers of one set of detections, pooled over samples, and the strict count of those that are kept.

    The numbers are the share that is kept, near misses of the score and near ties of labels forgiven, and how far boxes
    (in pixels) and scores of kept rows are off; rows that mean the same on both sides are compared place by place.
    Where such rows give most objects several times, boxes over better ones are dropped on both sides, as an application
    does; scores are then those of the rows that are left.
    """
    name, kind = "+".join(group.outputs[:3]) + "+…" * (len(group.outputs) > 3), OutputKind.DETECTIONS
    in_order = not ChosenRows.of(facts).is_behind(group.boxes.output)
    pairs = read_both(group, samples, in_order=in_order, label=context.label)
    if not pairs:
        return [context.number(name, kind, Measure.ROWS, float("nan"), where="unlike shapes")], None
    every, some = count_kept(pairs), count_kept(pairs, alone=True) if in_order else None
    alone = every is not None and some is not None and sum(some.wanted) < (1 - _REPEATED) * sum(every.wanted)
    count, numbers = some if alone else every, list[JudgedNumber]()
    # Where all scores lie below the working ones (untrained weights), the best rows stand for detections.
    ranked = np.sort(np.concatenate([one.scores for one, _ in pairs]))[::-1]
    top, least = float(ranked[0]) if ranked.size else 0.0, WORKING_SCORE
    if top < WORKING_SCORE:
        least = float(ranked[: _BEST * len(pairs)].min(initial=1.0))
    slack = context.limit(Measure.SCORE_ERROR).value * min(1.0, top / WORKING_SCORE)
    sure, _ = _used(pairs, least + slack, alone=alone)
    loose, are_corners = _used(pairs, least - slack, alone=alone)
    both = [(one, two) for (one, _), (_, two) in zip(sure, loose, strict=True)]
    wanted, made = (sum(pair[at].scores.size for pair in sure) for at in (0, 1))
    if are_corners is not None:
        partners = [_partners(one, two, are_corners, slack) for one, two in both]
        lost = sum(int((found < 0).sum()) for found in partners)
        # Whatever has its box and score still, and no partner of its class, has lost its label.
        renamed = sum(int((_partners(*pair, are_corners, math.inf) >= 0).sum()) for pair in both) - wanted + lost
        back = [_partners(two, one, are_corners, slack) for (_, two), (one, _) in zip(sure, loose, strict=True)]
        new = sum(int((found < 0).sum()) for found in back)
        known = zip(both, partners, strict=True)
        both = [(one.at(found >= 0), two.at(found[found >= 0])) for (one, two), found in known]
        value = min(1 - lost / max(wanted, 1), 1 - new / max(made, 1))
        words, strict = "", value
        if count is not None and any(count.wanted):
            kept, strict = sum(count.kept), count.share
            words = f"{kept} of {sum(count.wanted)} detections kept at score {WORKING_SCORE:.3g}"
            words += f"{' once overlapping boxes are dropped' * alone}, {sum(count.made) - kept} new"
            if strict < value - _TIES:
                words = f"{1 - lost / max(wanted, 1):.1%} of the detections kept, {new} new, near ties forgiven"
                strict = value
            words += f", labels of {renamed} boxes differ" if 2 * renamed > lost else ""
        if wanted + made:
            numbers.append(
                context.number(name, kind, Measure.KEPT, value, items=max(wanted, made), words=words, plainly=strict)
            )
    same = both
    if in_order and all(one.scores.size == two.scores.size for one, two in pairs):
        same = [(one.at(one.scores >= least), two.at(one.scores >= least)) for one, two in pairs]
    elif are_corners is None:
        return numbers, count
    sizes = [_image_side(group, one.boxes, feeds[at] if feeds else {}) for at, (one, _) in enumerate(pairs)]
    off = [np.abs(one.boxes - two.boxes).mean(axis=1) * size[1] for (one, two), size in zip(same, sizes, strict=True)]
    apart = [np.abs(one.scores - two.scores) for one, two in (both if alone else same)]
    if sum(map(len, off)):
        height = max(min(1.0, top / WORKING_SCORE), 1e-9)
        boxes, scores = (float(np.concatenate(found).sum()) / max(sum(map(len, found)), 1) for found in (off, apart))
        limit = context.limit(Measure.BOX_ERROR, side=sizes[-1][0])
        numbers.append(context.number(name, kind, Measure.BOX_ERROR, boxes, limit=limit))
        keys = ("alone",) if alone else ()
        numbers.append(context.number(name, kind, Measure.SCORE_ERROR, scores / height, *keys))
    return numbers, count


def _image_side(group: DetectionSet, boxes: Numbers, feed: Arrays) -> tuple[float, float]:
    """The longer side of the image in pixels, and the factor that turns the numbers of boxes into pixels.

    ``boxes`` are the reference's. The side is the size that the graph multiplies by, else the input's height and width.
    """
    side, largest = float(max(group.picture, default=640)), float(np.abs(boxes).max(initial=0.0))
    if group.sizes in feed:
        largest = float(np.abs(feed[group.sizes]).max(initial=0.0))
        side = largest if largest > _NORMALIZED else side
    return side, 1.0 if largest > _NORMALIZED else side

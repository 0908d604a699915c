"""The one judge: holds what a model gives on samples against the float model: yes, no or not judged.

Everybody who compares outputs asks it. ``OutputJudge`` knows a graph's outputs and compares runs of it; ``Judge`` has
the reference run as well. Whether a package does as well as its quantization is ``Verdict.beside``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.detections import count_kept, judge_detections, read_both
from deploykit.accuracy.judge.kinds import OutputKind, Piece, Task, detection_sets, pieces_of
from deploykit.accuracy.judge.measures import (
    Pair,
    agreement,
    classes_kept,
    decisions_kept,
    gain_error,
    mean_cosine,
    mean_overlap,
    neighbours_kept,
    overall_db,
    relative_error,
    signal_in,
    texts_read,
    worst_sample,
    worst_slice,
)
from deploykit.accuracy.judge.rows import ChosenRows, Matched
from deploykit.accuracy.judge.verdict import (
    Against,
    Context,
    JudgedNumber,
    KeptCount,
    Measure,
    Oddity,
    Thresholds,
    Verdict,
    decide,
)
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Judge", "Numbers", "OutputJudge"]

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]

# A probability that is off by less is the same in practice: classes that never occur may round to nothing.
_PROBABILITY_TOLERANCE = 0.05
# Noise of a tenth of the signal: a single decision that differs is no sign of anything then.
_CLEAN_DB = 20.0
# Tasks with a measure of their own: there decibels are told, and decide only that a sample is not broken.
_SIGNALS = (Task.SIGNAL, Task.REGRESSION, Task.IMAGE, Task.CLASSES)


class Judge:
    """One model's outputs on samples, and what they are held against: the model's own (``reference``: known already).

    Plain feeds come from nowhere in particular: their label is ``arbitrary`` unless it is given, and then nothing is
    judged. Of samples only those that vary are judged on. ``against`` says what the model is; ``same_graph`` that the
    very graph is judged that was given, of which more is asked.
    """

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        samples: Sequence[Feed] | Samples,
        *,
        label: str = "arbitrary",
        reference: Sequence[Values] | None = None,
        **asked: Any,
    ) -> None:
        self.names = tuple(item.name for item in model.graph.output)
        self.feeds: Sequence[Feed] = samples.varied if isinstance(samples, Samples) else samples
        self._judge = OutputJudge(facts, label=samples.label if isinstance(samples, Samples) else label, **asked)
        self.reference = Session(model).runs(self.feeds) if reference is None else reference

    def judge(self, run: Callable[[Feed], Values]) -> Verdict:
        """Run every sample and compare; what ``run`` returns must hold the outputs."""
        return self.compare([run(feed) for feed in self.feeds])

    def compare(self, outputs: Sequence[Values]) -> Verdict:
        """``judge`` for what was run already, one mapping per sample."""
        return self._judge.compare(self.reference, outputs, self.feeds)


class OutputJudge:
    """Knows what a graph's outputs are, and compares two sets of them, however they were made."""

    def __init__(
        self,
        facts: GraphFacts,
        *,
        label: str,
        against: Against = Against.FLOAT,
        same_graph: bool = False,
        bits: int = 0,
        thresholds: Thresholds | None = None,
    ) -> None:
        self._facts = facts
        self._rows = ChosenRows(facts)
        self._sets = detection_sets(facts)
        self._pieces = {name: pieces_of(facts, name) for name in facts.outputs}
        self._context = Context(
            label=label, count=0, against=against, bits=bits, thresholds=thresholds, same_graph=same_graph
        )

    def compare(self, reference: Sequence[Values], outputs: Sequence[Values], feeds: Sequence[Values] = ()) -> Verdict:
        """The verdict on one mapping of outputs per sample.

        An output that a sample lacks on either side is not compared. ``feeds`` are needed only for the sizes of images.
        """
        context = replace(self._context, count=len(reference))
        oddities, broken = list[Oddity](), ""
        for name in self._facts.outputs:
            pairs = [
                (one[name], two[name])
                for one, two in zip(reference, outputs, strict=True)
                if {name} <= one.keys() & two.keys()
            ]
            oddities += self._oddity(name, [(_unexpected(one, two), two) for one, two in pairs])
            values = [np.asarray(one[name], np.float64) for one in reference if name in one]
            # An output that is NaN in the reference already: there is nothing to hold the other side against.
            for found in self._oddity(name, [(np.isnan(one), one) for one in values]):
                broken = broken or f"not judged: {found.operator} gives {found.count} NaN in the reference already"
        both = [_comparable(one, two) for one, two in zip(reference, outputs, strict=True)]
        known = [name for name in self._facts.outputs if all(name in one and name in two for one, two in both)]
        samples = [self._rows.all_matched(known, one, two) for one, two in both]
        matched = {name: [sample[name] for sample in samples] for name in known}
        groups = [group for group in self._sets if all(name in known for name in group.outputs)]
        shapes = [self._facts.tensors[name].shape or () for name in self._facts.inputs]
        static = [tuple(dim for dim in shape if isinstance(dim, int)) for shape in shapes]
        numbers: list[JudgedNumber] = []
        counts: list[KeptCount] = []
        for group in groups:
            in_order = not self._rows.is_behind(group.boxes.output)
            rows = read_both(group, both, in_order=in_order, label=context.label)
            count = count_kept(rows)
            counts += [] if count is None else [count]
            numbers += judge_detections(context, group, rows, count, feeds, static, in_order=in_order)
        for name in known:
            covering = any(name in group.outputs for group in groups)
            made = self._numbers(context, name, matched[name], loses_rows=not covering)
            numbers += [replace(n, note="judged as detections", words="") for n in made] if covering else made
        right, reason = decide(numbers, oddities if context.label != "arbitrary" else (), broken)
        return Verdict(
            right=right,
            reason=reason,
            numbers=tuple(numbers),
            oddities=tuple(oddities),
            overall_db=overall_db([pair for name in known for pair in _pairs(matched[name])]),
            sqnr_db={name: overall_db(_pairs(pairs)) for name, pairs in matched.items()},
            lost=max((item.lost for pairs in matched.values() for item in pairs), default=0.0),
            detections=min(counts, key=lambda count: count.surely, default=None),
            broken=broken,
        )

    def _numbers(
        self, context: Context, output: str, matched: Sequence[Matched], *, loses_rows: bool
    ) -> Iterator[JudgedNumber]:
        pieces = self._pieces[output]
        kind = pieces[0].kind
        unlike = next((item for item in matched if item.left.shape != item.right.shape), None)
        if unlike is not None:
            where = f"shape {unlike.right.shape} instead of {unlike.left.shape}"
            yield context.number(output, kind, Measure.ROWS, math.nan, where=where)
            return
        lost = max((item.lost for item in matched), default=0.0)
        if lost and loses_rows:
            yield context.number(output, kind, Measure.ROWS, 1 - lost)
        for piece in pieces:
            pairs = [(item.left, item.right) for item in matched]
            if piece.axis is not None:
                at = (*(slice(None),) * piece.axis, slice(piece.start, piece.stop))
                pairs = [(a[at], b[at]) if a.ndim > len(at) - 1 else (a, b) for a, b in pairs]
            if any(one.size for one, _ in pairs):
                yield from _piece_numbers(context, piece, pairs)

    def _oddity(self, name: str, seen: Sequence[tuple[npt.NDArray[np.bool_], Numbers]]) -> Iterator[Oddity]:
        """One output's, from where values are bad and what they are."""
        count = sum(int(bad.sum()) for bad, _ in seen)
        if not count:
            return
        maker = self._facts.producer_of(name)
        first = next(np.asarray(values, np.float64)[bad] for bad, values in seen if bad.any())
        what = "NaN" if np.isnan(first).any() else "infinity"
        yield Oddity(output=name, operator=maker.label if maker else name, what=what, count=count)


def _piece_numbers(context: Context, piece: Piece, pairs: Sequence[Pair]) -> Iterator[JudgedNumber]:
    """What the task measures, decibels, and what looks for damage, of one kind of values."""

    def number(measure: Measure, value: float, *keys: str, **more: Any) -> JudgedNumber:
        return context.number(piece.output, piece.kind, measure, value, *keys, part=str(piece), **more)

    if piece.task is Task.LABELS or piece.kind is OutputKind.LABELS:
        same, total = agreement(pairs)
        yield number(Measure.AGREEMENT, same / total, items=total, words=f"{same} of {total} labels equal")
        return
    db = overall_db(pairs)
    if not signal_in(pairs):
        left, right = map(np.nan_to_num, _both_sides(pairs))
        near = bool(np.all(np.abs(left - right) <= 2 * math.ldexp(float(np.abs(left).max()), -11)))  # of float16
        note = "not judged: no signal, the reference hardly varies" + ("" if near else ", and the values differ")
        yield number(Measure.SQNR, db, note=note)
        return
    measured = list(_of_task(number, piece, pairs))
    too_few = db >= _CLEAN_DB and any(n.is_open for n in measured)
    yield from (
        replace(n, note="one of few differs: decibels decide") if too_few and n.is_open else n for n in measured
    )
    # Without a Softmax nobody says that the values are classes: then decibels decide as well.
    told = bool(measured) and not too_few and not context.same_graph and piece.kind is not OutputKind.LOGITS
    asked = context.thresholds is not None and context.thresholds.min_sqnr is not None
    yield number(Measure.SQNR, db, note="the task's own measure decides" if told and not asked else "")
    yield number(Measure.GAIN, gain_error(pairs))
    tolerance = _PROBABILITY_TOLERANCE if piece.kind is OutputKind.SCORES else 0.0
    # One decision per sample: the sample in which it falls otherwise is counted already, as is the class it is of.
    counted = told and piece.task in (Task.CLASSES, Task.DECISIONS) and measured[0].items == len(pairs)
    note = "the task's own measure decides" if counted else ""
    alone = worst_sample(pairs, tolerance=tolerance)
    if alone is not None:
        keys = () if piece.task in _SIGNALS and piece.kind is not OutputKind.SCORES else ("task",)
        yield number(Measure.SAMPLE, alone[1], *keys, where=f"sample {alone[0]}", note=note)
    # A row of pixels in which there is next to nothing is no part of a picture's areas; a channel is one.
    areas = told and any(n.limit.measure is Measure.IOU for n in measured)
    axes = 1 if areas else None
    worst = None if piece.task is Task.EMBEDDING else worst_slice(pairs, tolerance=tolerance, axes=axes)
    if worst is not None:
        yield number(Measure.SLICE, worst.db, where=worst.where, note=note)


def _of_task(number: Callable[..., JudgedNumber], piece: Piece, pairs: Sequence[Pair]) -> Iterator[JudgedNumber]:
    """The measure that people of the trade use; nothing where they use decibels."""
    axis = piece.class_axis
    match piece.task:
        case Task.CLASSES | Task.TOKENS if axis is not None and all(one.shape[axis] > 1 for one, _ in pairs):
            same, total = classes_kept(pairs, axis)
            what = "words" if piece.task is Task.TOKENS else "classes"
            yield number(Measure.TOP_1, same / total, items=total, words=f"{same} of {total} {what} equal")
            if pairs[0][0].shape[axis] > 10:
                among, total = classes_kept(pairs, axis, 5)
                yield number(Measure.TOP_5, among / total, items=total)
        case Task.TEXT:
            same, total, changed = texts_read(pairs)
            words = f"{same} of {total} texts equal, {changed:.1%} of the letters differ"
            yield number(Measure.TEXT, same / total, items=total, words=words)
        case Task.SEGMENTATION | Task.MASK:
            overlap = mean_overlap(pairs, axis)
            if not math.isnan(overlap):
                yield number(Measure.IOU, overlap, words=f"mean overlap of areas {overlap:.1%}")
        case Task.DECISIONS:
            same, total, what = decisions_kept(pairs)
            yield number(Measure.AGREEMENT, same / total, items=total, words=f"{same} of {total} {what} equal")
        case Task.EMBEDDING:
            value, (same, total) = mean_cosine(pairs), neighbours_kept(pairs)
            near = f", nearest neighbour equal for {same} of {total}" if total else ""
            yield number(Measure.COSINE, value, words=f"cosine {value:.4f}{near}")
        case Task.IMAGE:
            # Peak signal to noise with the range that the reference has as the peak.
            left, right = _both_sides(pairs)
            both = np.isfinite(left) & np.isfinite(right)
            error = float(np.mean((left[both] - right[both]) ** 2)) if both.any() else 0.0
            peak = float(np.ptp(left[both])) if both.any() else 0.0
            value = 10 * math.log10(peak**2 / error) if error and peak else math.inf
            yield number(Measure.PSNR, value, words=f"PSNR {value:.1f} dB")
        case Task.REGRESSION:
            value = relative_error(pairs)
            yield number(Measure.ERROR, value, words=f"relative error {value:.2%}")


def _both_sides(pairs: Sequence[Pair]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    left, right = (np.concatenate([np.asarray(pair[at], np.float64).ravel() for pair in pairs]) for at in (0, 1))
    return left, right


def _unexpected(one: Numbers, two: Numbers) -> npt.NDArray[np.bool_]:
    """Where the right side is not finite although the left side is, or NaN beside an infinity; anywhere where shapes
    differ."""
    right = np.asarray(two, np.float64)
    if one.shape != two.shape:
        return np.asarray(~np.isfinite(right))
    left = np.asarray(one, np.float64)
    return np.asarray((~np.isfinite(right) & np.isfinite(left)) | (np.isnan(right) & np.isinf(left)))


def _comparable(one: Values, two: Values) -> tuple[Values, Values]:
    """Both sides with zeros where the left one is not finite: no number comes of what is no number."""
    odd = {name: ~np.isfinite(value) for name, value in one.items() if value.dtype.kind == "f" and name in two}
    odd = {name: where for name, where in odd.items() if where.any() and where.shape == two[name].shape}
    if not odd:
        return one, two

    def cleared(side: Values) -> Values:
        return {name: np.where(odd[name], 0, value) if name in odd else value for name, value in side.items()}

    return cleared(one), cleared(two)


def _pairs(matched: Sequence[Matched]) -> list[Pair]:
    return [(item.left, item.right) for item in matched if item.left.shape == item.right.shape]

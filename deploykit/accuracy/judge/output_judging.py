"""Judges two sets of outputs of one graph, however they were made: per output by its kind, and detections together.

It runs nothing. Rows behind a choice are matched first; what then differs is measured and held against the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.alignment import Aligned, Pairs, align, match_chosen, match_contents, row_numbers
from deploykit.accuracy.judge.detection_judging import Sides, judge_detections
from deploykit.accuracy.judge.detection_sets import DetectionSet, detection_sets
from deploykit.accuracy.judge.detections import read_detections
from deploykit.accuracy.judge.keeping import count_kept
from deploykit.accuracy.judge.kept_counts import KeptCount
from deploykit.accuracy.judge.kinds import OutputKind, Piece, pieces_of
from deploykit.accuracy.judge.measuring import (
    Pair,
    agreement,
    gain_error,
    has_signal,
    mean_cosine,
    overall_db,
    worst_sample,
    worst_slice,
)
from deploykit.accuracy.judge.near_choices import barely_chosen
from deploykit.accuracy.judge.row_sets import RowSets
from deploykit.accuracy.judge.thresholds import Against, Measure, Thresholds
from deploykit.accuracy.judge.verdicts import NOT_JUDGED, Context, JudgedNumber, Oddity, Verdict
from deploykit.model.facts import GraphFacts

__all__ = ["OutputJudge"]

Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]
Mask: TypeAlias = npt.NDArray[np.bool_]

_PROBABILITY_TOLERANCE = 0.05
"""A probability that is off by less is the same in practice: classes that never occur may round to nothing."""

_CLEAR = 0.1
"""A class counts as chosen where it leads by this share of the spread; closer races may end either way."""


class OutputJudge:
    """Knows a graph's outputs; ``choices`` are the inner tensors that tell which rows were chosen.

    ``same_graph`` says that the reference is the same graph on another machine, of which more is asked; by default that
    is so where the reference is the quantized model.
    """

    def __init__(
        self,
        facts: GraphFacts,
        *,
        label: str,
        against: Against = Against.FLOAT,
        bits: int = 0,
        thresholds: Thresholds | None = None,
        same_graph: bool | None = None,
    ) -> None:
        self._facts = facts
        self._rows = RowSets(facts)
        self._sets = detection_sets(facts)
        self._pieces = {name: pieces_of(facts, name) for name in facts.outputs}
        self._context = Context(
            label=label,
            count=0,
            against=against,
            bits=bits,
            thresholds=thresholds,
            same_graph=against is Against.QUANTIZED if same_graph is None else same_graph,
        )
        choices = dict.fromkeys(choice for name in facts.outputs for choice in self._rows.choices_of(name))
        self._values_of = dict(_chosen_by(facts, choices))
        self.choices = (*choices, *self._values_of.values())

    def compare(self, reference: Sequence[Values], outputs: Sequence[Values], feeds: Sequence[Values] = ()) -> Verdict:
        """The verdict on one mapping of outputs per sample; both sides may hold the choices as well.

        An output that a sample lacks on either side is not compared. ``feeds`` are needed only for the sizes of images.
        """
        context = replace(self._context, count=len(reference))
        oddities = tuple(self._oddities(reference, outputs))
        broken = self._broken(reference)
        both = [_comparable(one, two) for one, two in zip(reference, outputs, strict=True)]
        samples = [_Sample(self._facts, self._rows, one, two) for one, two in both]
        known = [name for name in self._facts.outputs if all(name in one and name in two for one, two in both)]
        matched = {name: [sample.aligned(name) for sample in samples] for name in known}
        as_detections = [group for group in self._sets if all(name in known for name in group.outputs)]
        numbers = [
            number
            for name in known
            for number in self._numbers(context, name, matched[name], _covering(as_detections, name))
        ]
        for group in as_detections:
            numbers += self._detections(context, group, samples, feeds)
        totals = {name: overall_db(_pairs(pairs)) for name, pairs in matched.items()}
        right, reason = _decide(context, numbers, oddities, broken)
        return Verdict(
            right=right,
            reason=reason,
            numbers=tuple(numbers),
            oddities=oddities,
            overall_db=overall_db([pair for name in known for pair in _pairs(matched[name])]),
            sqnr_db=totals,
            lost=max((item.lost for pairs in matched.values() for item in pairs), default=0.0),
            detections=_least_kept(as_detections, both),
        )

    def _numbers(
        self, context: Context, output: str, matched: Sequence[Aligned], group: DetectionSet | None
    ) -> Iterator[JudgedNumber]:
        pieces = self._pieces[output]
        unlike = next((a for a in matched if a.left.shape != a.right.shape), None)
        if unlike is not None:
            where = f"shape {unlike.right.shape} instead of {unlike.left.shape}"
            note = "judged as detections" if group else ""
            yield context.number(output, pieces[0].kind, Measure.ROWS, math.nan, where=where, note=note)
            return
        lost = max((item.lost for item in matched), default=0.0)
        if lost and group is None:
            yield context.number(output, pieces[0].kind, Measure.ROWS, 1 - lost)
        for piece in pieces:
            made = list(_judge_piece(context, piece, [_cut(piece, item) for item in matched]))
            yield from (replace(number, note="judged as detections") for number in made) if group else made

    def _detections(
        self, context: Context, group: DetectionSet, samples: Sequence[_Sample], feeds: Sequence[Values]
    ) -> Iterable[JudgedNumber]:
        known = [
            Sides(
                one=sample.reference,
                two=sample.candidate,
                pairs=sample.row_pairs(group.boxes),
                barely=sample.barely_chosen(group.boxes, self._values_of),
            )
            for sample in samples
        ]
        shapes = [self._facts.tensors[name].shape for name in self._facts.inputs]
        static = [tuple(d for d in shape if isinstance(d, int)) for shape in shapes if shape is not None]
        return judge_detections(context, group, known, feeds, static)

    def _oddities(self, reference: Sequence[Values], outputs: Sequence[Values]) -> Iterator[Oddity]:
        for name in self._facts.outputs:
            both = [
                (one[name], two[name])
                for one, two in zip(reference, outputs, strict=True)
                if {name} <= one.keys() & two.keys()
            ]
            yield from self._oddity(name, [(_unexpected(one, two), two) for one, two in both])

    def _broken(self, reference: Sequence[Values]) -> Oddity | None:
        """The first output that is NaN on the reference's side already: there is nothing to hold the other against."""
        for name in self._facts.outputs:
            values = [np.asarray(one[name], np.float64) for one in reference if name in one]
            found = next(self._oddity(name, [(np.isnan(one), one) for one in values]), None)
            if found is not None:
                return found
        return None

    def _oddity(self, name: str, seen: Sequence[tuple[npt.NDArray[np.bool_], Numbers]]) -> Iterator[Oddity]:
        """One output's, from where values are bad and what they are."""
        count = sum(int(bad.sum()) for bad, _ in seen)
        if not count:
            return
        maker = self._facts.producer_of(name)
        first = next(np.asarray(values, np.float64)[bad] for bad, values in seen if bad.any())
        what = "NaN" if np.isnan(first).any() else "infinity"
        yield Oddity(output=name, operator=maker.label if maker else name, what=what, count=count)


def _least_kept(groups: Sequence[DetectionSet], both: Sequence[tuple[Values, Values]]) -> KeptCount | None:
    """The strict count of the set of detections that keeps least; None without any, and where shapes do not fit."""
    counts = []
    for group in groups:
        read = [(read_detections(group, one), read_detections(group, two)) for one, two in both]
        known = [(one, two) for one, two in read if one is not None and two is not None]
        count = count_kept(known) if known and len(known) == len(read) else None
        counts += [] if count is None else [count]
    return min(counts, key=lambda count: count.surely, default=None)


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


class _Sample:
    """One sample of both sides, with its rows matched where they were chosen."""

    def __init__(self, facts: GraphFacts, rows: RowSets, reference: Values, candidate: Values) -> None:
        self.reference, self.candidate = reference, candidate
        self._facts, self._rows = facts, rows
        self._by_contents: dict[object, Pairs | None] = {}

    def aligned(self, output: str) -> Aligned:
        """Both sides of an output, rows matched by what was chosen, else by what all outputs of these rows hold."""
        axes = self._rows.axes(output)
        found = align(self.reference[output], self.candidate[output], axes, (self.reference, self.candidate))
        places = [place for place, rows in enumerate(axes) if rows is not None]
        if found.known or len(places) != 1:
            return found
        (axis,) = places
        pairs = self._contents(axes[axis])
        if pairs is None:
            return found
        first, second = pairs
        longest = max(found.left.shape[axis], found.right.shape[axis], 1)
        return Aligned(
            left=np.take(found.left, first, axis=axis),
            right=np.take(found.right, second, axis=axis),
            lost=1 - first.size / longest,
            reordered=not np.array_equal(first, second),
        )

    def row_pairs(self, piece: Piece) -> Pairs | None:
        """Which rows of a piece are the same on both sides where that is known: by choice, or never reordered."""
        axes = self._rows.axes(piece.output)
        rows = [(place, row) for place, row in enumerate(axes) if row is not None]
        if not rows:
            count = _row_count(self.reference[piece.output], piece)
            in_order = _row_count(self.candidate[piece.output], piece) == count
            if self._rows.is_behind(piece.output) or not in_order:
                return None
            return np.arange(count), np.arange(count)
        place, row = rows[0]
        one, two = (
            row_numbers(row, side[piece.output].shape[place], side) for side in (self.reference, self.candidate)
        )
        if one is None or two is None or len(one) != 1 or len(two) != 1 or len(rows) > 1:
            return None
        return match_chosen(one[0], two[0])

    def barely_chosen(self, piece: Piece, values_of: Mapping[str, str]) -> tuple[Mask | None, Mask | None]:
        """Per side, the rows of a piece that an earlier choice took barely and that the other side did not take."""
        row = next((row for row in self._rows.axes(piece.output) if row is not None), None)
        return (
            barely_chosen(row, self.reference, self.candidate, values_of),
            barely_chosen(row, self.candidate, self.reference, values_of),
        )

    def _contents(self, rows: object) -> Pairs | None:
        """Rows matched by everything that the outputs say about them."""
        if rows not in self._by_contents:
            tables = [self._tables(name, rows) for name in self._facts.outputs]
            kept = [pair for pair in tables if pair is not None]
            self._by_contents[rows] = match_contents([a for a, _ in kept], [b for _, b in kept]) if kept else None
        return self._by_contents[rows]

    def _tables(self, output: str, rows: object) -> tuple[Numbers, Numbers] | None:
        axes = self._rows.axes(output)
        if rows not in axes or output not in self.reference or output not in self.candidate:
            return None
        axis = axes.index(rows)
        one, two = (np.moveaxis(side[output], axis, 0) for side in (self.reference, self.candidate))
        if one.ndim != len(axes) or one.shape[1:] != two.shape[1:]:
            return None
        return one.reshape(len(one), -1), two.reshape(len(two), -1)


def _chosen_by(facts: GraphFacts, choices: Iterable[str]) -> Iterator[tuple[str, str]]:
    """For the places that a TopK gives, the values that it gives beside them."""
    for name in choices:
        maker = facts.producer_of(name)
        if maker is not None and maker.op_type == "TopK" and maker.outputs[0]:
            yield name, maker.outputs[0]


def _row_count(array: Numbers, piece: Piece) -> int:
    return array.size // array.shape[piece.axis] if piece.axis is not None and array.size else array.size // 4


def _covering(groups: Sequence[DetectionSet], output: str) -> DetectionSet | None:
    return next((group for group in groups if output in group.outputs), None)


def _pairs(matched: Iterable[Aligned]) -> list[Pair]:
    return [(item.left, item.right) for item in matched if item.left.shape == item.right.shape]


def _cut(piece: Piece, item: Aligned) -> Pair:
    if piece.axis is None or item.left.ndim <= piece.axis:
        return item.left, item.right
    kept = (slice(None),) * piece.axis + (slice(piece.start, piece.stop),)
    return item.left[kept], item.right[kept]


def _judge_piece(context: Context, piece: Piece, pairs: Sequence[Pair]) -> Iterator[JudgedNumber]:
    """The numbers of one kind of values."""
    where = str(piece)
    if not any(one.size for one, _ in pairs):
        return
    if piece.kind is OutputKind.LABELS:
        yield context.number(piece.output, piece.kind, Measure.AGREEMENT, agreement(pairs), where=where)
        return
    if not has_signal(pairs, context.bits):
        yield context.number(
            piece.output,
            piece.kind,
            Measure.SQNR,
            overall_db(pairs),
            where=where,
            note=_without_signal(pairs, context.bits),
        )
        return
    yield context.number(piece.output, piece.kind, Measure.SQNR, overall_db(pairs), where=where)
    yield context.number(piece.output, piece.kind, Measure.GAIN, gain_error(pairs), where=where)
    tolerance = _PROBABILITY_TOLERANCE if piece.kind is OutputKind.SCORES else 0.0
    alone = worst_sample(pairs, tolerance=tolerance)
    if alone is not None:
        place = ", ".join(filter(None, (where, f"sample {alone[0]}")))
        yield context.number(piece.output, piece.kind, Measure.SAMPLE, alone[1], where=place)
    if piece.kind is OutputKind.EMBEDDING:
        yield context.number(piece.output, piece.kind, Measure.COSINE, mean_cosine(pairs), where=where)
        return
    worst = worst_slice(pairs, context.bits, tolerance=tolerance)
    if worst is not None:
        place = ", ".join(filter(None, (where, worst.where)))
        yield context.number(piece.output, piece.kind, Measure.SLICE, worst.db, where=place)
    chosen = None if piece.class_axis is None else _same_class(pairs, piece.class_axis)
    if chosen is not None:
        yield context.number(piece.output, piece.kind, Measure.AGREEMENT, chosen, where=where)


def _without_signal(pairs: Sequence[Pair], bits: int) -> str:
    """Why a reference that does not vary is no ground for a verdict, and whether the other side has its value."""
    left = np.concatenate([np.asarray(one, np.float64).ravel() for one, _ in pairs])
    right = np.concatenate([np.asarray(two, np.float64).ravel() for _, two in pairs])
    step = 2 * math.ldexp(float(np.abs(np.nan_to_num(left)).max()), -(min(bits, 11) or 11))
    near = bool(np.all(np.abs(np.nan_to_num(left) - np.nan_to_num(right)) <= step))
    return "not judged: no signal, the reference hardly varies" + ("" if near else ", and the values differ")


def _same_class(pairs: Sequence[Pair], axis: int) -> float | None:
    """How often the same class leads where it leads clearly; None where it never does."""
    same = total = 0
    for one, two in pairs:
        if one.ndim <= axis or one.shape[axis] < 2:
            return None
        a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
        ranked = np.sort(a, axis=axis)
        lead = np.take(ranked, -1, axis=axis) - np.take(ranked, -2, axis=axis)
        clear = lead > _CLEAR * float(np.std(a)) + 1e-12
        same += int((a.argmax(axis) == b.argmax(axis))[clear].sum())
        total += int(clear.sum())
    return same / total if total else None


def _decide(
    context: Context, numbers: Sequence[JudgedNumber], oddities: Sequence[Oddity], broken: Oddity | None
) -> tuple[bool | None, str]:
    if context.label == "arbitrary":
        return None, NOT_JUDGED
    if oddities:
        odd = oddities[0]
        return (
            False,
            f"{odd.output}: {odd.count} values are {odd.what} behind {odd.operator}, the reference's are finite",
        )
    failures = [number for number in numbers if number.passes is False]
    if failures:
        return False, f"{failures[0].subject}: {failures[0]}"
    if broken is not None:
        return None, f"not judged: {broken.operator} gives {broken.count} NaN in the reference already"
    if not any(number.passes for number in numbers):
        notes = [number.note for number in numbers if number.note]
        return None, notes[0] if notes else "not judged: there is nothing to compare"
    return _unless_differing(numbers)


def _unless_differing(numbers: Sequence[JudgedNumber]) -> tuple[bool | None, str]:
    """An output that hardly varies and yet differs is no proof of an error, and stands against a yes."""
    doubtful = next((number for number in numbers if number.note.endswith("the values differ")), None)
    return (True, "") if doubtful is None else (None, f"{doubtful.output}: {doubtful.note}")

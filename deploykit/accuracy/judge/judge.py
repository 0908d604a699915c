"""The one judge: compares the outputs of an execution with those of the float model: yes, no or not judged.

Every comparison of outputs asks it: ``judge_outputs`` about two sets of them, ``Judge`` where the model is there to run
as well. ``Verdict.beside`` says whether a package does as well as its quantization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, repeat, starmap
from operator import is_
from typing import Any

import numpy as np
from onnx import ModelProto

from deploykit.accuracy.judge import measures
from deploykit.accuracy.judge.kinds import OutputKind, Piece, Reading, Task
from deploykit.accuracy.judge.measures import Pair
from deploykit.accuracy.judge.rows import ChosenRows, Matched
from deploykit.accuracy.judge.verdict import (
    ENOUGH,
    MOST,
    PROBABILITY_TOLERANCE,
    WORKING_SCORE,
    Context,
    JudgedNumber,
    KeptCount,
    Measure,
    Oddity,
    Verdict,
    at_least,
    decide,
)
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.simulate.sessions import Session, run_chain
from deploykit.encodings.cut import chain_models
from deploykit.findings.records import Arrays, Feeds, Numbers, replace
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts, channel_first

__all__ = ["Judge", "judge_outputs", "outputs_of"]

# dB. Noise is a tenth of the signal here: a single decision that differs is then no sign of a fault.
_CLEAN_DB = 20.0
_DECIDES = "the task's own measure decides"
_UNVARIED = "not judged: no signal, the reference hardly varies"
# How far a sum of shares may be from 1: each share is rounded to 8 bits.
_NEARLY = 0.02
# A share of what the values are: four steps of a grid of 8 bits that reaches from zero to it.
_ALIKE = 1 / 64
# Tasks judged in decibels of single samples. Elsewhere, and for scores, the task's own measure decides, and the
# decibels of a sample show only that it is not broken.
_SIGNALS = (Task.SIGNAL, Task.REGRESSION, Task.IMAGE)


class Judge:
    """One model on samples, and the outputs that others are compared with: its own (``reference``: known already).

    Plain feeds have the label ``arbitrary`` unless one is given, and then nothing is judged. Only samples that vary are
    used. ``asked`` are further fields of ``Context``. ``end`` is what the host runs behind the model: then its outputs
    are judged, not those where the model was cut.
    """

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        samples: Feeds | Samples,
        *,
        label: str = "arbitrary",
        reference: Sequence[Arrays] | None = None,
        end: ModelProto | None = None,
        **asked: Any,
    ) -> None:
        whole = model if end is None else chain_models(model, end)
        self.whole, self.names = whole, tuple(item.name for item in whole.graph.output)
        self.feeds: Feeds = samples.varied if isinstance(samples, Samples) else samples
        self._context = Context(samples.label if isinstance(samples, Samples) else label, **asked)
        self._facts = facts if end is None else replace(facts_of(whole), channel_last=facts.channel_last)
        self._end = None if end is None else Session(end)
        self._model, self._known = model, reference

    @cached_property
    def reference(self) -> Sequence[Arrays]:
        """The outputs that others are compared with; computed where nobody gave them."""
        return self._finished(Session(self._model).runs(self.feeds) if self._known is None else self._known)

    def compare(self, outputs: Sequence[Arrays]) -> Verdict:
        """The verdict on outputs, one mapping per sample with every output; they may be of the first samples only."""
        count, outputs = len(outputs), self._finished(outputs)
        return judge_outputs(self._facts, self._context, self.reference[:count], outputs, self.feeds[:count])

    def _finished(self, outputs: Sequence[Arrays]) -> Sequence[Arrays]:
        if self._end is None:
            return outputs
        return run_chain([self._end], [{**fed, **made} for fed, made in zip(self.feeds, outputs, strict=False)])


def outputs_of(model: ModelProto, feeds: Feeds, judge: Judge | None) -> Sequence[Arrays]:
    """The outputs of a model, from a judge of this very model if these are the first of its samples."""
    if judge and model is judge.whole and len(feeds) <= len(judge.feeds) and all(map(is_, feeds, judge.feeds)):
        return judge.reference[: len(feeds)]
    return Session(model).runs(feeds)


def judge_outputs(
    facts: GraphFacts,
    context: Context,
    reference: Sequence[Arrays],
    outputs: Sequence[Arrays],
    feeds: Sequence[Arrays] = (),
) -> Verdict:
    """The verdict on one mapping of outputs per sample, however they were made.

    An output that a sample lacks on either side is not compared. ``feeds`` are needed only for the sizes of images, and
    for what is padding.
    """
    context = replace(context, count=len(reference))
    # No texts; and the layout of the model as it was handed in says what an axis means.
    reference, outputs = (
        [
            {
                n: np.moveaxis(v, -1, 1) if n in facts.channel_last else v
                for n, v in _without_padding(facts, row, feed).items()
                if v.dtype.kind not in "OUS"
            }
            for row, feed in zip(rows, chain(feeds, repeat({})), strict=False)
        ]
        for rows in (reference, outputs)
    )
    facts = channel_first(facts) if facts.channel_last else facts
    oddities, broken = list[Oddity](), ""
    for name in facts.outputs:
        # Values that are not finite although the reference's are, or NaN beside an infinity; all of them where shapes
        # differ.
        odd = [
            (b, ~np.isfinite(b) & (a.shape != b.shape or np.isfinite(a) | np.isnan(b) & np.isinf(a)))
            for one, two in zip(reference, outputs, strict=True)
            if name in one and name in two
            for a, b in [(one[name], two[name])]
        ]
        oddities += _odd_values(facts, name, odd)
        # An output that is NaN in the reference already: there is nothing to hold the other side against.
        for seen in _odd_values(facts, name, [(one[name], np.isnan(one[name])) for one in reference if name in one]):
            broken = broken or f"not judged: {seen.operator} gives {seen.count} NaN in the reference already"
    both = [_comparable(one, two) for one, two in zip(reference, outputs, strict=True)]
    known = [name for name in facts.outputs if all(name in one and name in two for one, two in both)]
    samples = [ChosenRows.of(facts).all_matched(known, one, two) for one, two in both]
    matched = {name: [sample[name] for sample in samples] for name in known}
    pairs = {
        name: [(m.left, m.right) for m in found if m.left.shape == m.right.shape] for name, found in matched.items()
    }
    numbers, counts, covered = list[JudgedNumber](), list[KeptCount](), set[str]()
    reading = facts.once(Reading, lambda: Reading.of(facts))
    for group in reading.detections:
        if all(name in known for name in group.outputs):
            from deploykit.accuracy.judge.detections import judge_detections

            found, count = judge_detections(context, facts, group, both, feeds)
            counts += [] if count is None else [count]
            covered |= set(group.outputs) if found else set()
            numbers += found
    pieces = reading.pieces
    scores = next((pairs[n] for n in known if [piece.kind for piece in pieces[n]] == [OutputKind.SCORES]), [])
    for name in known:
        made = _output_numbers(context, pieces[name], matched[name], scores, loses_rows=name not in covered)
        numbers += [replace(n, note="judged as detections", words="") for n in made] if name in covered else made
    broken = broken or reading.doubt
    right, reason = decide(numbers, oddities if context.label != "arbitrary" else (), broken)
    return Verdict(
        right=right,
        reason=reason,
        numbers=tuple(numbers),
        oddities=tuple(oddities),
        overall_db=measures.overall_db([pair for found in pairs.values() for pair in found]),
        sqnr_db={name: measures.overall_db(found) for name, found in pairs.items()},
        lost=max((item.lost for found in matched.values() for item in found), default=0.0),
        detections=min(counts, key=lambda count: count.surely, default=None),
        broken=broken,
    )


def _without_padding(facts: GraphFacts, row: Arrays, feed: Arrays) -> Arrays:
    """One sample's labels, and values of three dimensions, without the places where a mask says that no word stands.

    A mask is an input [1, places] of ones and then zeros.
    """
    words = {
        mask.shape: np.count_nonzero(mask)
        for mask in feed.values()
        if mask.shape[:-1] == (1,) and mask.any() and np.array_equal(mask, np.sort(mask != 0)[:, ::-1])
    }
    return {n: v[:, : words.get(v.shape[:2])] if v.ndim + (not facts.is_data(n)) == 3 else v for n, v in row.items()}


def _odd_values(facts: GraphFacts, name: str, seen: Sequence[tuple[Numbers, Numbers]]) -> Iterator[Oddity]:
    """The oddity of one output, if it has odd values. ``seen`` pairs its values with a mask of those that are odd."""
    odd = np.concatenate([values[bad].ravel() for values, bad in seen] or [np.zeros(0)])
    if odd.size:
        maker, what = facts.producer_of(name), "NaN" if np.isnan(odd).any() else "infinity"
        yield Oddity(output=name, operator=maker.label if maker else name, what=what, count=odd.size)


def _comparable(one: Arrays, two: Arrays) -> tuple[Arrays, Arrays]:
    """Both sides with zeros where either is not finite: no measure is computed from such values."""
    left, right = dict(one), dict(two)
    for name in one.keys() & two.keys():
        if one[name].shape == two[name].shape:
            clean = np.isfinite(one[name]) & np.isfinite(two[name])
            if not clean.all():
                left[name], right[name] = (np.where(clean, side[name], 0) for side in (one, two))
    return left, right


def _output_numbers(
    context: Context,
    pieces: Sequence[Piece],
    matched: Sequence[Matched],
    scores: Sequence[Pair],
    *,
    loses_rows: bool,
) -> Iterator[JudgedNumber]:
    output, kind = pieces[0].output, pieces[0].kind
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
            pairs = [(a[at], b[at]) if a.ndim > piece.axis else (a, b) for a, b in pairs]
        if any(one.size for one, _ in pairs):
            # Detectors of points give sizes and offsets everywhere, which mean something only where a point is.
            is_map = (piece.kind, piece.task, piece.axis) == (OutputKind.DENSE, Task.SIGNAL, None)
            there = measures.at_points(pairs, scores, WORKING_SCORE) if is_map else []
            made = _piece_numbers(context, piece, there or pairs)
            yield from (replace(n, part="where points are") for n in made) if there else made


def _piece_numbers(context: Context, piece: Piece, pairs: Sequence[Pair]) -> Iterator[JudgedNumber]:
    """The numbers of one piece: its task's own measure, decibels, and the measures that look for damage."""
    number = partial(context.number, piece.output, piece.kind, part=str(piece))
    if piece.kind is OutputKind.LABELS:
        if piece.task is Task.TEXT and measures.are_letters(pairs):
            yield from _of_task(number, piece, pairs)
            return
        same, total, what = measures.decisions_kept(pairs, "labels")
        measure = Measure.AGREEMENT if what == "labels" else Measure.IOU  # rare ones are areas
        # Labels that are all one, and stay it, show nothing.
        shows = total == 1 or same < total or any((one != pairs[0][0].flat[0]).any() for one, _ in pairs)
        words, note = f"{same} of {total} {what} equal", "" if shows else _UNVARIED
        yield number(measure, same / total, items=total, words=words, note=note)
        return
    if piece.kind in (OutputKind.SCORES, OutputKind.LOGITS) and all(_are_shares(one) for one, _ in pairs):
        # However they were made: by a Softmax, an average of several, or a division by their sum.
        axis = pairs[0][0].ndim - 1 if piece.class_axis is None else piece.class_axis
        task = Task.CLASSES if piece.task is Task.DECISIONS or piece.kind is OutputKind.LOGITS else piece.task
        piece = replace(piece, kind=OutputKind.SCORES, class_axis=axis, task=task)
    if piece.task is Task.TEXT and not measures.are_letters(measures.answers(pairs, piece.class_axis)):
        piece = replace(piece, task=Task.CLASSES)
    db, tolerance = measures.overall_db(pairs), PROBABILITY_TOLERANCE * (piece.kind is OutputKind.SCORES)
    values, error = np.concatenate([one.ravel() for one, _ in pairs]), max(starmap(measures.max_error, pairs))
    # Scores that all say no to every sample, as a wake word that nobody speaks, show nothing of a yes.
    quiet = piece.task is Task.DECISIONS and max(np.ptp(values), error) < tolerance
    step = math.ldexp(float(np.abs(values, dtype=np.float64).max()), -11)  # of float16, at the largest value
    if quiet or not np.std(values, dtype=np.float64) > step:
        near = quiet or error <= 2 * step
        note = _UNVARIED + ("" if near else ", and the values differ")
        yield number(Measure.SQNR, db, note=note)
        return
    measured = list(_of_task(number, piece, pairs))
    for one in measured[:1]:
        if one.passes and 1 < one.items == len(pairs) < ENOUGH and context.label == "given":
            # One decision per sample: a handful of them, all alike, shows little.
            share = at_least([one.items - one.lost], [one.items])
            measured[0] = replace(one, words=f"{one.words}, which shows at least {share:.0%} of others")
    too_few = db >= _CLEAN_DB and sum(n.is_open and n.lost for n in measured) == 1
    yield from (
        replace(n, note="one of few differs: decibels decide") if too_few and n.is_open else n for n in measured
    )
    # Without a Softmax nobody says that the values are classes: then decibels decide as well.
    told = measured and not too_few and not context.same_graph and piece.kind is not OutputKind.LOGITS
    asked = context.thresholds is not None and context.thresholds.min_sqnr is not None
    yield number(Measure.SQNR, db, note=_DECIDES if told and not asked else "")
    # With one decision per sample, a sample in which it falls otherwise is counted already, and so is its class.
    counted = told and piece.task in (Task.CLASSES, Task.DECISIONS) and measured[0].items == len(pairs)
    note = _DECIDES if counted else ""
    # One score of 0.7 among scores of 0.01 is nearly all of the signal: losing it does not show that all are scaled.
    power = np.square(values, dtype=np.float64)  # float32 holds none of what is beyond 1e19
    yield number(Measure.GAIN, measures.gain_error(pairs), note=note if power.max() > 0.9 * power.sum() else "")
    alone = measures.worst_sample(pairs, tolerance=tolerance)
    if alone is not None:
        keys = () if piece.task in _SIGNALS and piece.kind is not OutputKind.SCORES else ("task",)
        yield number(Measure.SAMPLE, alone[1], *keys, where=f"sample {alone[0]}", note=note)
    # In a map of areas a row of pixels with next to nothing in it is no part of the output; a channel is one.
    areas = told and any(n.limit.measure is Measure.IOU for n in measured)
    axes = 1 if areas else None
    worst = None if piece.task is Task.EMBEDDING else measures.worst_slice(pairs, tolerance=tolerance, axes=axes)
    if worst is not None:
        # A letter is counted in its texts, where these are not all one: misread once, half of its slice is gone.
        texts = {one.argmax(piece.class_axis).tobytes() for one, _ in pairs if piece.task is Task.TEXT}
        note = _DECIDES if told and len(texts) > 1 else note
        lost = number(Measure.SLICE, worst[0], where=worst[1], note=note)
        # Values that hardly differ between samples, such as scores of much the same sounds, cannot show a loss.
        share, place = 10 ** ((worst[0] - db) / 20), worst[1]
        alike = lost.passes is False and share < _ALIKE and not place.startswith("slice")
        why = f"{_UNVARIED} {place} (by {share:.1%}: samples that differ more would show it), and the values differ"
        yield replace(lost, note=why) if alike else lost


def _are_shares(values: Numbers) -> bool:
    """True for rows of several numbers, none below zero, that add up to 1."""
    rows = values.shape[-1:] > (1,) and values.ndim <= 3 and values.min(initial=0.0) >= 0
    return bool(rows) and bool(np.abs(values.sum(-1, dtype=np.float64) - 1).max(initial=0.0) < _NEARLY)


def _of_task(number: Callable[..., JudgedNumber], piece: Piece, pairs: Sequence[Pair]) -> Iterator[JudgedNumber]:
    """The numbers of the measure that practitioners use for the task; none where they use decibels."""
    if piece.kind is OutputKind.LOGITS:
        values = np.concatenate([one.ravel() for one, _ in pairs], dtype=np.float64)
        if values.min() > 0 and values.mean() > values.std():  # no logits: scores of a voice, from 1 to 5
            piece = replace(piece, class_axis=None, task=Task.REGRESSION)

    def counted(measure: Measure, what: str, same: int, total: int, more: str = "") -> JudgedNumber:
        return number(measure, same / total, items=total, words=f"{same} of {total} {what} equal{more}")

    def beside(value: float, strict: float) -> str:
        return f", {strict:.1%} where nothing near a half is forgiven" if strict < min(value, MOST) else ""

    axis = piece.class_axis
    both = (measures.answers(pairs, axis, forgives=forgives) for forgives in (True, False))
    match piece.task:
        case Task.CLASSES | Task.TOKENS if axis is not None and all(one.shape[axis] > 1 for one, _ in pairs):
            what = "words" if piece.task is Task.TOKENS else "classes"
            moved = 0.0
            if piece.kind is OutputKind.SCORES:  # a mean over classes, such as an age, rests on all of them
                moved = float(np.mean([np.abs(one - two).sum(axis).mean() / 2 for one, two in pairs]))
            more = f", {moved:.1%} of the probability lies elsewhere" if moved > PROBABILITY_TOLERANCE else ""
            (same, total), (plainly, _) = map(measures.agreement, both)
            more = f", {same - plainly} near ties besides{more}" if same > plainly else more
            made = counted(Measure.TOP_1, what, plainly, total, more)
            yield replace(made, value=same / total, plainly=plainly / total)
            if pairs[0][0].shape[axis] > 10:
                among, total = measures.among_five(pairs, axis)
                yield number(Measure.TOP_5, among / total, items=total)
        case Task.TEXT:
            same, total, changed = measures.texts_read(pairs if axis is None else measures.answers(pairs, axis))
            yield counted(Measure.TEXT, "texts", same, total, f", {changed:.1%} of the letters differ")
        case Task.SEGMENTATION | Task.MASK:
            background = 0 if axis is None else None
            overlap, strict = (measures.mean_overlap(made, background) for made in both)
            if not math.isnan(overlap):
                words = f"mean overlap of areas {overlap:.1%}{beside(overlap, strict)}"
                yield number(Measure.IOU, overlap, words=words, plainly=strict)
        case Task.DECISIONS:
            (same, total, what), plain = (measures.decisions_kept(made, "decisions") for made in both)
            strict = plain[0] / max(plain[1], 1)
            yield replace(counted(Measure.AGREEMENT, what, same, total, beside(same / total, strict)), plainly=strict)
        case Task.EMBEDDING:
            value, same, total = measures.embeddings(pairs)
            near = f", nearest neighbour equal for {same} of {total}" if total else ""
            yield number(Measure.COSINE, value, words=f"cosine {value:.4f}{near}")
        case Task.IMAGE:
            value, alone = measures.picture_db(pairs)
            made, count = number(Measure.PSNR, value), len(alone)
            kept = sum(map(made.limit.holds, alone))
            few = f", {kept} of {count} pictures have {made.limit.value:g} dB of their own range" * (kept < count > 1)
            yield replace(made, words=f"PSNR {value:.1f} dB{few}", plainly=kept / count)
        case Task.REGRESSION:
            value = 10 ** (-measures.overall_db(pairs) / 20)
            yield number(Measure.ERROR, value, words=f"relative error {value:.2%}")

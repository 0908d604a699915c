"""Decides yes, no or not judged, from measured numbers and their limits. Plain values, no arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from deploykit.errors import InputError
from deploykit.findings.records import Json, Published, Record, published, replace
from deploykit.tables.reading import read_toml, structure

__all__ = [
    "ASKED",
    "ENOUGH",
    "MOST",
    "NOT_JUDGED",
    "OVERLAP",
    "PROBABILITY_TOLERANCE",
    "WORKING_SCORE",
    "Against",
    "Context",
    "JudgedNumber",
    "KeptCount",
    "Limit",
    "at_least",
]
__all__ += ["Measure", "Oddity", "Thresholds", "Verdict", "fewest_for", "limits"]

NOT_JUDGED = "not judged: the inputs are made up"
ASKED = "you asked for it"
"""The reason of a limit that a user set."""

WORKING_SCORE = 0.25
"""The score from which applications usually take a detection."""
PROBABILITY_TOLERANCE = 0.05
"""A probability that is off by less is the same in practice: classes that never occur may round to nothing."""
OVERLAP = 0.5
"""Intersection over union from which two boxes are usually called the same detection."""

ENOUGH = 100
"""So many items show a difference of one in a hundred; of fewer, some may be lost by chance."""
MOST = 0.98
"""The share of a task's own count from which on nobody has to think of a wider type."""
_CHANCE = 0.05
"""Misses that chance alone gives more often than this do not prove that the limit is missed."""
_SAME_SHARE, _SAME_DB = 0.01, 1.0
_REFERENCE_SIDE = 640.0
# Standard deviations below which a normal variable lies with 95 %, on one side.
_SURE = 1.6449


class Against(StrEnum):
    """What a number was measured against: reference points that are never mixed."""

    FLOAT = "float"
    QUANTIZED = "quantized"
    """The quantized model as it was handed in, on the CPU: there is no float model to ask."""


class Measure(StrEnum):
    """What a judged number measures. The first block are measures of a task, the second block looks for damage."""

    KEPT = "kept"
    TOP_1 = "top-1"
    TOP_5 = "top-5"
    TEXT = "text"
    IOU = "iou"
    AGREEMENT = "agreement"
    COSINE = "cosine"
    PSNR = "psnr"
    ERROR = "error"
    SQNR = "sqnr"

    BOX_ERROR = "box-error"
    SCORE_ERROR = "score-error"
    GAIN = "gain"
    SLICE = "slice"
    SAMPLE = "sample"
    ROWS = "rows"


class Limit(Record):
    """One row of ``limits.toml``. ``unit`` is "" for a ratio; ``floor`` None where no loss is too large by itself.

    ``words`` say a miss where no task has words for it; ``asked_as`` is the field of ``Thresholds`` that replaces it.
    """

    measure: Measure
    value: float
    margin: float
    at_least: bool
    reason: str
    source: str
    unit: str = ""
    words: str = ""
    asked_as: str = ""
    floor: float | None = None

    def holds(self, value: float) -> bool:
        """True for a value that is good in absolute terms; NaN is not."""
        return value >= self.value if self.at_least else value <= self.value

    def asked(self) -> str:
        """The limit as words: ``at least 20 dB``."""
        return f"at {'least' if self.at_least else 'most'} {self.value:g}{' ' + self.unit if self.unit else ''}"


class SegmentationSet(Record):
    """A public data set whose number of classes tells a map of logits."""

    name: str
    classes: tuple[int, ...]
    source: str


class LimitFile(Record):
    """The content of ``limits.toml``."""

    schema: int
    limit: Mapping[str, Limit]
    data_set: tuple[SegmentationSet, ...]


@cache
def limits() -> LimitFile:
    """The limits by name, and what tells one kind of output from another."""
    path = Path(__file__).with_name("limits.toml")
    return structure(LimitFile, read_toml(path), where=f"{path.name}:")


class Thresholds(Record):
    """What the user asks for instead of the table; None leaves the table's limit.

    ``min_sqnr`` in dB, ``max_box_error`` in pixels, ``min_cosine`` and ``min_agreement`` as ratios. ``min_psnr`` (dB)
    and ``max_error`` are asked of saved outputs only.
    """

    min_sqnr: float | None = None
    max_box_error: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    min_psnr: float | None = None
    max_error: float | None = None


class JudgedNumber(Published):
    """One number about one output, with its limit and the samples on which it was measured.

    ``kind`` is the kind of output, ``part`` the slices that are meant ("" for all), ``where`` the place of the worst
    sample or slice. ``note`` says why the number counts for nothing. ``base`` is the same number of the quantization
    itself, None where that was not measured; ``items`` is how many things were counted; ``words`` say the number for
    people. ``plainly`` is what is kept where near ties and near misses are not forgiven, unless these are too many.
    """

    output: str
    kind: str
    value: float
    limit: Limit
    label: str
    count: int
    against: Against
    part: str = ""
    where: str = ""
    note: str = ""
    base: float | None = None
    base_words: str = ""
    items: int = 0
    words: str = ""
    plainly: float = 1.0

    @property
    def passes(self) -> bool | None:
        """Whether the number is good, or hardly worse than the quantization's.

        None for a number that counts for nothing.
        """
        if self.note or self.label == "arbitrary":
            return None
        limit, value, base = self.limit, self.value, self.base
        if limit.holds(value) or base is None or limit.reason == ASKED:  # what a user asked for has no margin
            return limit.holds(value)
        # Not worse than the quantization's by more than the margin, and not below the floor. Of counted things one may
        # always differ.
        margin = max(limit.margin, 1 / self.items + 1e-9) if self.items else limit.margin
        above = value - base if limit.at_least else base - value
        destroyed = limit.floor is not None and not (value >= limit.floor if limit.at_least else value <= limit.floor)
        return (value == base or above >= -margin) and not destroyed

    @property
    def is_open(self) -> bool:
        """True for a miss that hangs on so few things that chance may be to blame: 14 of 16 where 95 % are asked."""
        # Measures in dB have no items, and may be infinite.
        if not 0 < self.items < ENOUGH or not math.isfinite(self.value) or self.limit.reason == ASKED:
            return False
        before = 0 if self.base is None else round((1 - self.base) * self.items)
        lost, share = self.lost - before, 1 - self.limit.value
        fewer = (math.comb(self.items, k) * share**k * (1 - share) ** (self.items - k) for k in range(lost))
        return lost > 0 and 1 - sum(fewer) > _CHANCE

    @property
    def kept(self) -> float:
        """The share that is kept: the value, or what an error or noise leaves."""
        if self.limit.unit:
            return 1 - 10 ** (-self.value / 20)
        return self.value if self.limit.at_least else 1 - self.value

    @property
    def lost(self) -> int:
        """How many of the items differ."""
        return round((1 - self.value) * self.items)

    @property
    def place(self) -> str:
        """The part and the worst place in it, in words; "" for all of the output."""
        return ", ".join(filter(None, (self.part, self.where)))

    @property
    def subject(self) -> str:
        """What the number is about: the output, the measure, and the part."""
        part = f" ({self.place})" if self.place else ""
        return f"{self.output or 'the output'} {self.limit.measure}{part}"

    def as_published(self) -> Json:
        """The published fields, with the limit's measure, unit and value."""
        told = published(self, without=("limit", "label", "count", "base", "base_words", "plainly"), also=("passes",))
        return told | {
            "measure": self.limit.measure,
            "where": self.place,
            "value": _rounded(self.value),
            "exact": self.value == math.inf,
            "unit": self.limit.unit,
            "threshold": self.limit.value,
            "samples": {"label": self.label, "count": self.count},
            "quantization": None if self.base is None else _rounded(self.base),
            "quantization_words": self.base_words,
        }

    @property
    def loss(self) -> str:
        """What is lost in the words of the task, then the number: what people act on comes first."""
        words = self.words or self.limit.words.format(value=self.value)
        return f"{words} ({self.subject}: {self.beside_limit})" if words else f"{self.subject}: {self.beside_limit}"

    @property
    def beside_limit(self) -> str:
        """The value and its limit in words: ``0.9998 where at least 0.99 is asked``."""
        unit = f" {self.limit.unit}" if self.limit.unit else ""
        shown = "no difference" if self.value == math.inf else f"{self.value:.4g}{unit}"
        base = "" if self.base is None or not math.isfinite(self.base) else f", {self.base:.4g} by the encodings alone"
        return f"{shown} where {self.limit.asked()} is asked{base}"

    def __str__(self) -> str:
        return f"{self.beside_limit} ({self.words})" if self.words else self.beside_limit


class Context(Record, kw_only=False):
    """What every number of one judgement has in common.

    ``same_graph``: the reference is the very graph that was packaged, of which more is asked; ``bits`` is the narrowest
    activation type then (0: float).
    """

    label: str
    count: int = 0
    against: Against = Against.FLOAT
    bits: int = 0
    thresholds: Thresholds | None = None
    same_graph: bool = False

    def number(self, output: str, kind: str, measure: Measure, value: float, *keys: str, **more: Any) -> JudgedNumber:
        """One number with its limit; ``keys`` prefer rows of the table, ``more`` are fields of the number."""
        on = {"label": self.label, "count": self.count, "against": self.against}
        more = {"limit": self.limit(measure, *keys), **on, **more}
        return JudgedNumber(output=output, kind=kind, value=value, **more)

    def limit(self, measure: Measure, *keys: str, side: float = _REFERENCE_SIDE) -> Limit:
        """The limit of a measure: the first row ``measure/key`` that the table has, else the measure's own row.

        ``side`` is the longer side of the image in pixels; errors of boxes scale with it.
        """
        same = () if not self.same_graph else ("same",) if self.bits else ("same/float", "same")
        table, names = limits().limit, [f"{measure}/{key}" for key in (*keys, *same)]
        row = table[next((name for name in names if name in table), measure)]
        asked = getattr(self.thresholds, row.asked_as, None)
        if asked is not None:
            return replace(row, value=asked, reason=ASKED)
        scale = side / _REFERENCE_SIDE if measure is Measure.BOX_ERROR else 1.0
        return replace(row, value=row.value * scale, margin=row.margin * scale)


class KeptCount(Published):
    """Detections per sample: the reference's (``wanted``), the candidate's (``made``), and pairs of both (``kept``).

    A pair has one class and boxes that overlap by at least ``OVERLAP``; no detection is in two. What counts as a
    detection is a score of ``WORKING_SCORE`` at least, on either side, and nothing is forgiven.
    """

    wanted: tuple[int, ...]
    made: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def share(self) -> float:
        """The smaller of two shares: of the reference's detections that are kept, of the candidate's that are meant."""
        kept = sum(self.kept)
        return min(kept / of if (of := sum(side)) else 1.0 for side in (self.wanted, self.made))

    @property
    def surely(self) -> float:
        """The share that other data of this kind will have with 95 % confidence, in the worse of the two directions."""
        return min(at_least(self.kept, self.wanted), at_least(self.kept, self.made))

    def as_published(self) -> Json:
        """The counts of all samples together, and the shares that they show."""
        return {
            "wanted": sum(self.wanted),
            "made": sum(self.made),
            "kept": sum(self.kept),
            "share": round(self.share, 4),
            "at_least": round(self.surely, 4),
            "samples": len(self.wanted),
            "score": WORKING_SCORE,
            "overlap": OVERLAP,
        }

    def __str__(self) -> str:
        """For people: the share, how many are lost and new, and what that shows."""
        lost, new = sum(self.wanted) - sum(self.kept), sum(self.made) - sum(self.kept)
        return (
            f"{self.share:.1%} of {sum(self.wanted)} detections kept ({lost} lost, {new} new; "
            f"at least {self.surely:.1%} on other data)"
        )


def fewest_for(share: float) -> int:
    """The number of detections that show a share, if all of them are kept."""
    return math.ceil(_SURE**2 * share / (1 - share)) if share < 1 else 0


def at_least(kept: Sequence[int], of: Sequence[int]) -> float:
    """Wilson's lower bound, for as many independent detections as these are worth.

    Detections of one sample are lost together. Where shares differ more between samples than by chance, the count is
    divided by how many times larger the variance is (the design effect of samples taken in clusters).
    """
    total = sum(of)
    if not total:
        return 1.0
    share, clusters = sum(kept) / total, len(of)
    by_chance = share * (1 - share) * total
    effect = 1.0
    if clusters >= 2 and by_chance > 0:
        seen = math.fsum((one - share * count) ** 2 for one, count in zip(kept, of, strict=True))
        effect = max(1.0, clusters / (clusters - 1) * seen / by_chance)
    count, square = total / effect, _SURE**2
    spread = _SURE * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, (share + square / (2 * count) - spread) / (1 + square / count))


class Oddity(Published):
    """Values of an output that are not finite although the reference's are, and the operator that made them."""

    output: str
    operator: str
    what: str
    count: int


class Verdict(Published):
    """``right`` is None when it was not judged, and then ``reason`` says why.

    ``overall_db`` and ``sqnr_db`` are signal to noise over all outputs and per output, rows matched; ``lost`` is the
    largest share of rows without a partner in any output. ``detections`` are counted strictly. ``broken`` says why
    there is no reference. ``cost`` is what the quantization itself loses, in words, where the package is no worse;
    ``wider`` is the wider type that loses less, in words, where it was looked for.
    """

    right: bool | None
    reason: str = ""
    numbers: tuple[JudgedNumber, ...] = ()
    oddities: tuple[Oddity, ...] = ()
    overall_db: float = math.inf
    sqnr_db: Mapping[str, float] = {}
    lost: float = 0.0
    detections: KeptCount | None = None
    broken: str = ""
    cost: str = ""
    wider: str = ""

    @property
    def is_short(self) -> bool:
        """True where a limit is missed, values are not finite, or less than ``MOST`` is kept and not by chance.

        Of values, one less their relative error counts as the kept share.
        """
        told = [n for n in self.numbers if n.passes and not n.limit.unit and not n.is_open]
        kept = [n.kept for n in told if n.limit.at_least or n.limit.measure is Measure.ERROR]
        return bool(self.failures or self.oddities) or min(kept, default=1.0) < MOST

    @property
    def loses(self) -> bool:
        """True where ``is_short``, or less than ``MOST`` is kept of a signal, or of what is counted, be it by chance.

        Of outputs of which nothing is counted: of signals that have decibels alone, and of what varies in values, all
        but the noise.
        """
        words = {(n.output, n.part): n.limit.measure for n in self.numbers if n.words}
        noisy = ((Measure.SLICE, Measure.ERROR), (Measure.SQNR, None))
        told = [n for n in self.numbers if n.items and n.limit.at_least and n.label != "arbitrary"]
        counted = {n.output for n in told}
        told += [
            n
            for n in self.numbers
            if n.passes
            and "slice" not in n.where
            and n.output not in counted
            and (n.limit.measure, words.get((n.output, n.part))) in noisy
        ]
        kept = [*(n.kept for n in told), *(n.plainly for n in self.numbers)]
        return self.is_short or min(kept, default=1.0) < MOST

    @property
    def failures(self) -> tuple[JudgedNumber, ...]:
        """The numbers that miss what is asked."""
        return tuple(number for number in self.numbers if number.passes is False)

    @property
    def kept(self) -> float | None:
        """The least share of the reference's detections that are kept; None where no detections were judged."""
        return min((n.value for n in self.numbers if n.limit.measure is Measure.KEPT), default=None)

    @property
    def answer(self) -> tuple[bool | None, str]:
        """``right`` as far as it may be told, and the reason.

        Made-up inputs show damage, never that nothing is lost.
        """
        if self.right and self.numbers and self.numbers[0].label == "derived":
            return None, f"not judged: made-up inputs show no damage ({self.words}), which is no proof"
        return self.right, self.reason

    @property
    def words(self) -> str:
        """The loss in the words of the task: ``584 of 600 detections kept``; decibels where nothing better is known."""
        told = [number.words for number in self.numbers if number.words]
        known = "" if math.isnan(self.overall_db) else f"{self.overall_db:.1f} dB"
        return "; ".join(dict.fromkeys(told)) or ("no difference" if math.isinf(self.overall_db) else known)

    def lost_outputs(self) -> Iterator[tuple[str, str, list[JudgedNumber]]]:
        """(output, words, numbers) of each output that misses limits.

        The words are two losses at most, the task's own first.
        """
        for output in dict.fromkeys(number.output for number in self.failures):
            missed = [number for number in self.failures if number.output == output]
            first = sorted(missed, key=lambda number: not number.words)[:2]
            yield output, "; ".join(number.loss for number in first), missed

    @property
    def described(self) -> str:
        """The verdict in few words: right or wrong, the share of detections lost where there are any, and the noise."""
        right = {True: "right", False: "wrong", None: "not judged"}[self.answer[0]]
        lost = "" if self.kept is None else f"{1 - self.kept:.1%} of the detections lost, "
        return f"{right}, {lost}{self.overall_db:.1f} dB"

    def is_better_than(self, other: Verdict) -> bool:
        """True where this one is right and the other not, else where it keeps clearly more detections, else by noise.

        No difference are a decibel, and a hundredth of the detections (counted strictly where there is a count).
        """
        if (self.right is True) is not (other.right is True):
            return self.right is True
        mine, others = (
            min((n.plainly for n in side.numbers if n.limit.measure is Measure.KEPT), default=0.0)
            for side in (self, other)
        )
        more = mine - others
        return more > 0 if abs(more) > _SAME_SHARE else self.overall_db > other.overall_db + _SAME_DB

    def beside(self, quantization: Verdict | None) -> Verdict:
        """The verdict on a package, given the verdict on its quantization on the same samples.

        A number that misses its limit is excused where the quantization has the same loss; ``cost`` says what the loss
        is.
        """
        if quantization is None or (self.right is None and not any(number.is_open for number in self.failures)):
            return self
        found = {(n.output, n.limit.measure, n.part): n for n in quantization.numbers}
        numbers: tuple[JudgedNumber, ...] = ()
        for number in self.numbers:
            of, limit = found.get((number.output, number.limit.measure, number.part)), number.limit
            if of is not None:
                # Where the quantization is clearly better than the limit, the stricter limit ``measure/beside`` counts.
                clear = limits().limit.get(f"{limit.measure}/beside")
                limit = clear if clear and clear.holds(of.value) and limit.reason != ASKED else limit
                number = replace(number, limit=limit, base=of.value, base_words=of.words)
            numbers += (number,)
        right, reason = decide(numbers, self.oddities, self.broken)
        excused = next((n for n in numbers if n.passes and not n.limit.holds(n.value)), None)
        words = quantization.words
        told = "" if words == self.words else f": {words}"
        cost = words and f"the encodings by themselves{told or ' come to the same'}"
        if right and excused is not None:
            if not excused.words:
                unit = f" {excused.limit.unit}" if excused.limit.unit else ""
                told = f": {excused.subject} {excused.base:.4g}{unit} by them alone, {excused.value:.4g}{unit} here"
            cost = f"what is lost is in your encodings, not in the package{told}"
        cost += f"; {quantization.wider}" if quantization.wider else ""
        return replace(self, numbers=numbers, right=right, reason=reason, cost=cost)

    def lines(self) -> tuple[str, ...]:
        """The verdict for people: the answer with its samples, then every number that counts, misses first."""
        right, why = self.answer
        word = {True: "yes", False: "no", None: "not judged"}[right]
        first = next(iter(self.numbers), None)
        samples = "" if first is None else f", on {first.count} {first.label} sample{'s' if first.count != 1 else ''}"
        reason = f": {why.removeprefix('not judged: ')}" if why else ""
        counting = sorted((n for n in self.numbers if n.passes is not None), key=lambda number: number.passes is True)
        lines = (f"right: {word}{samples}{reason}", *([f"  {self.cost}"] if self.cost else []))
        return (*lines, *(f"  {number.subject}: {number}" for number in counting))

    def as_published(self) -> Json:
        """The published fields: the answer and what it rests on."""
        return {
            "right": self.answer[0],
            "reason": self.answer[1],
            "words": self.words,
            "cost": self.cost,
            "numbers": self.numbers,
            "not_finite": self.oddities,
            "sqnr_db": _rounded(self.overall_db),
            "outputs": {name: _rounded(value) for name, value in self.sqnr_db.items()},
            "lost_rows": round(self.lost, 4),
            "detections": self.detections,
        }

    @classmethod
    def from_json(cls, value: Json) -> Verdict:
        """The verdict in the result of ``to_json``; raises InputError for anything else.

        Totals that were not finite are NaN.
        """
        try:
            return cls(
                right=value["right"],
                reason=value["reason"],
                numbers=tuple(map(_number, value["numbers"])),
                oddities=tuple(Oddity(**entry) for entry in value["not_finite"]),
                overall_db=_or_nan(value["sqnr_db"]),
                sqnr_db={name: _or_nan(entry) for name, entry in value["outputs"].items()},
                lost=value["lost_rows"],
                cost=value["cost"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError("not a verdict", why=repr(error)) from None


def decide(numbers: Sequence[JudgedNumber], oddities: Sequence[Oddity], broken: str) -> tuple[bool | None, str]:
    """Yes, no or None, and the reason, from numbers, values that are not finite, and a ``broken`` reference."""
    if any(number.label == "arbitrary" for number in numbers):
        return None, NOT_JUDGED
    if oddities:
        odd = oddities[0]
        why = f"{odd.count} values are {odd.what} behind {odd.operator}, the reference's are finite"
        return False, f"{odd.output}: {why}"
    failures = [number for number in numbers if number.passes is False]
    for failed in failures:
        if not failed.is_open:
            # The task's own words come first: a number with words says most.
            return False, next((number for number in failures if number.words), failed).loss
    if failures:
        few = failures[0]
        said = f"{few.words or few.subject}: {few.lost} of {few.items} may differ by chance"
        more = f"{ENOUGH} or more show it (deploykit accuracy simulate --encodings, or compare MODEL QUANTIZED; --data)"
        return None, f"not judged: {said}; {more}"
    if broken:
        return None, broken
    if not any(number.passes for number in numbers):
        notes = [number.note for number in numbers if number.note]
        return None, notes[0] if notes else "not judged: there is nothing to compare"
    # An output that hardly varies and yet differs is no proof of an error, and stands against a yes.
    doubtful = next((number for number in numbers if number.note.endswith("the values differ")), None)
    return (True, "") if doubtful is None else (None, f"{doubtful.output}: {doubtful.note}")


def _number(entry: Json) -> JudgedNumber:
    row, part = limits().limit[entry["measure"]], entry["part"]
    return JudgedNumber(
        **{name: entry[name] for name in ("output", "kind", "part", "note", "items", "words")},
        value=float("inf" if entry["exact"] else _or_nan(entry["value"])),
        limit=replace(row, value=float(entry["threshold"])),
        label=entry["samples"]["label"],
        count=entry["samples"]["count"],
        against=Against(entry["against"]),
        where=entry["where"].removeprefix(part).removeprefix(", "),
        base=entry["quantization"],
        base_words=entry["quantization_words"],
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _rounded(value: float) -> float:
    """The number with six digits: further digits differ between machines, and the same inputs give the same bytes."""
    return float(f"{value:.6g}")

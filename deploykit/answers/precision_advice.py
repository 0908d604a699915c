"""Draws conclusions about a model from its accuracies at several precisions, with evidence and the next step.

Source of the conclusions: AIMET's documentation, page "Quantization workflow" (base precision, mixed precision,
advanced methods, training). It reads a table of numbers: no model, no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploykit.accuracy.search.goals import Goal, Reached, parse_goal
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Names, Published, Record, published, replace
from deploykit.tables.reading import read_json, read_toml, structure

__all__ = ["Advice", "Advised", "advise", "advise_on"]

KNOWN = ("fp32", "fp16", "bf16", "w16a16", "w8a16", "w4a16", "w8a8", "w4a8", "vint8", "mixed")
"""The precisions that conclusions are about, the most precise first."""

_NESTED = (("w16a16", "w8a16"), ("w8a16", "w8a8"), ("w8a16", "w4a16"), ("w8a8", "w4a8"), ("w4a16", "w4a8"))
"""(more bits, fewer bits) of the same tensors: the first can hold all that the second holds."""


class Advised(Published, kw_only=False):
    """One conclusion with its evidence, and what to do next; ``command`` is an example, or empty."""

    says: str
    because: tuple[str, ...]
    next: str
    command: str


class Advice(Published):
    """``met`` tells for each precision whether it reaches the goal; ``best`` is the cheapest that does, or empty."""

    goal: str
    reference: str
    met: Mapping[str, bool]
    values: Mapping[str, float]
    best: str
    conclusions: tuple[Advised, ...]

    def as_published(self) -> Json:
        """The JSON of ``deploykit accuracy ladder`` for given numbers."""
        candidates = [
            {"precision": name, "value": value, "meets_goal": self.met.get(name)} for name, value in self.values.items()
        ]
        return published(self, without=("met", "values")) | {"candidates": candidates}


def advise(values: Mapping[str, Reached], goal: Goal) -> Advice:
    """Conclusions from what each precision reached; ``fp32``, else ``fp16``, is the reference of a metric.

    Raises UsageError for unknown precisions, and if nothing can be compared.
    """
    unknown = [name for name in values if name not in KNOWN]
    if unknown:
        raise UsageError(
            f"{unknown[0]}: no conclusion is known about this precision", next=f"known: {', '.join(KNOWN)}"
        )
    table = _JudgedPrecisions(values, goal)
    if not table.met:
        raise UsageError(
            "nothing to compare",
            why=f"the goal {goal} needs a reference and at least one candidate",
            next="give fp32 (or fp16) and what was measured at other precisions",
        )
    return Advice(
        goal=str(goal),
        reference=table.reference,
        met=table.met,
        values={name: table.shown(name) for name in table.order},
        best=table.best(),
        conclusions=tuple(_conclusions(table)),
    )


class AccuracyTable(Record):
    """Accuracies measured elsewhere, as in a file (TOML or JSON)."""

    accuracy: Mapping[str, float] = {}
    goal: str | None = None
    lower_is_better: bool = False


def advise_on(path: Path | None, accuracies: Mapping[str, float], *, goal: str | None, lower_is_better: bool) -> Advice:
    """Conclusions from a file, from single values, or from both; single values replace those of the file.

    The default goal is a drop of at most 1 %. Raises InputError for a file without a table.
    """
    table = AccuracyTable()
    if path is not None:
        content = read_json(path) if path.suffix.lower() == ".json" else read_toml(path)
        table = structure(AccuracyTable, content, where=str(path))
    known = {**{name.lower(): float(value) for name, value in table.accuracy.items()}, **accuracies}
    if not known:
        raise UsageError("no accuracies were given", next="for instance --accuracy fp32=76.1 --accuracy w8a8=40")
    wanted = parse_goal(goal or table.goal or "drop<=1%", lower_is_better=lower_is_better or table.lower_is_better)
    if wanted.asks_outputs:
        raise UsageError(
            f"--goal {wanted}: asks about outputs, and a table has none", next="deploykit accuracy ladder MODEL"
        )
    asks = wanted.needs_metric
    return advise({n: Reached(metric=v) if asks else Reached(sqnr_db=v) for n, v in known.items()}, wanted)


class _JudgedPrecisions:
    """The candidates with the verdict on each."""

    def __init__(self, values: Mapping[str, Reached], goal: Goal) -> None:
        self.goal = goal
        self.order = [name for name in KNOWN if name in values]
        self.reference = next((name for name in ("fp32", "fp16") if name in values), "") if goal.needs_metric else ""
        base = values[self.reference].metric if self.reference else math.nan
        self._values = {
            name: replace(found, reference=base) if math.isnan(found.reference) else found
            for name, found in values.items()
        }
        judged = {name: goal.is_met(self._values[name]) for name in self.order if name != self.reference}
        self.met = {name: met for name, met in judged.items() if met is not None}

    def good(self, name: str) -> bool:
        """True if the precision was measured and reaches the goal."""
        return self.met.get(name) is True

    def poor(self, name: str) -> bool:
        """True if the precision was measured and misses the goal."""
        return self.met.get(name) is False

    def shown(self, name: str) -> float:
        """The number that the goal is about: the metric, or the signal-to-noise ratio in dB."""
        found = self._values[name]
        return found.metric if self.goal.needs_metric else found.sqnr_db

    def evidence(self, *names: str) -> Names:
        """The measurements of some precisions in words."""
        told = []
        for name in (name for name in names if name in self._values):
            verdict = ", reaches the goal" if self.good(name) else ", misses the goal"
            verdict = " (reference)" if name == self.reference else verdict
            told.append(f"{name}: {self.goal.evidence(self._values[name])}{verdict}")
        return tuple(told)

    def best(self) -> str:
        """The cheapest precision that reaches the goal, "" if there is none."""
        return next((name for name in reversed(self.order) if self.good(name)), "")


def _conclusions(table: _JudgedPrecisions) -> Iterator[Advised]:
    good, poor = table.good, table.poor
    # If more bits are worse, something other than the precision differs, and no cause can be named.
    odd = [(more, fewer) for more, fewer in _NESTED if poor(more) and good(fewer)]
    for more, fewer in odd:
        yield Advised(
            f"{more} is worse than {fewer}, which cannot come from the bits alone",
            because=(*table.evidence(more, fewer), "seen where tools raise other tensors too: qualcomm/aimet#4108"),
            next="make both from one calibration, and compare them tensor by tensor before concluding anything",
            command=f"deploykit accuracy locate MODEL --encodings {more.upper()}.encodings --data DATA",
        )
    if poor("fp16"):
        ranges = ", and values beyond 65504 overflow: bfloat16 holds them" if good("bf16") else ""
        yield Advised(
            f"half precision already loses: quantization is not the cause{ranges}",
            because=table.evidence("fp32", "fp16", "bf16"),
            next="find the operator where float16 leaves float32, and rewrite it or keep it in a wider type",
            command=_LAYERS.format("fp16"),
        )
    elif not odd:
        yield from _of_integers(table)
    if good("w4a16"):
        yield Advised(
            "weights hold in 4 bits",
            because=table.evidence("w4a16"),
            next="package w4a16: the weights take half the memory of w8a16",
            command=_PACKAGE.format("w4a16"),
        )
    elif poor("w4a16") and good("w8a16"):
        yield Advised(
            "4-bit weights are too coarse as they are",
            because=table.evidence("w4a16", "w8a16"),
            next="stay with w8a16, or quantize in blocks (LPBQ) and learn the rounding (SeqMSE, AdaRound)",
            command=_LAYERS.format("w4a16"),
        )
    if poor("vint8") and (good("bf16") or good("mixed")):
        yield Advised(
            "8-bit integers with power-of-two scales lose, floats do not: some operators must stay out",
            because=table.evidence("vint8", "bf16", "mixed"),
            next="exclude the operators that integers destroy (mixed), mostly decoding behind the last convolutions",
            command=_PACKAGE.format("mixed"),
        )


_LAYERS = "deploykit accuracy layers MODEL --precision {} --data DATA"
_PACKAGE = "deploykit package MODEL --precision {} --calibration DATA --target DEVICE -o OUT"


def _of_integers(table: _JudgedPrecisions) -> Iterator[Advised]:
    """Yields which of weights and activations is sensitive, or which measurement would tell."""
    good, poor, evidence = table.good, table.poor, table.evidence
    if good("w8a8"):
        yield Advised(
            "w8a8 is good: 8 bits are enough everywhere",
            because=evidence("w8a8", table.reference),
            next="package it",
            command=_PACKAGE.format("w8a8"),
        )
    elif poor("w8a8") and good("w8a16"):
        yield Advised(
            "w8a8 poor, w8a16 good: activations are sensitive",
            because=evidence("w8a8", "w8a16"),
            next="use w8a16; where speed needs 8 bits, raise only the worst layers of w8a8 to 16 bits (LiteMP)",
            command='deploykit quantize MODEL --precision w8a8 --goal "GOAL" --calibration DATA --target DEVICE -o OUT',
        )
    elif poor("w8a16") and good("w16a16"):
        yield Advised(
            "only w16a16 good: weights are sensitive",
            because=evidence("w8a8", "w8a16", "w16a16"),
            next="keep w8a16 and learn the rounding of the weights: SeqMSE first, then AdaRound; cross-layer"
            " equalization where ranges differ much between channels",
            command="deploykit quantize MODEL --precision w8a16 --with aimet --calibration DATA --target DEVICE -o OUT",
        )
    elif poor("w16a16") and (good("fp16") or table.reference == "fp16"):
        yield Advised(
            "only fp16: even 16-bit integers lose, so single tensors have ranges that no grid holds",
            because=evidence("w8a16", "w16a16", "fp16"),
            next="keep the few worst tensors in float16 (LiteMP) and let a rewrite remove huge constants;"
            " when nothing is left to keep, train with quantization (QAT)",
            command=_LAYERS.format("w16a16"),
        )
    elif poor("w16a16"):
        yield Advised(
            "no measured precision is good, and fp16 was not measured",
            because=evidence("w8a8", "w8a16", "w16a16"),
            next="measure fp16: it tells whether the numbers are lost by integers or by the conversion",
            command="deploykit accuracy simulate MODEL --encodings FILE --data DATA",
        )
    else:
        yield from _what_to_measure(table)


def _what_to_measure(table: _JudgedPrecisions) -> Iterator[Advised]:
    """Yields which missing precision would tell weights and activations apart."""
    rows = (
        (
            table.poor("w8a16"),
            "w8a16 poor: weights or single ranges are at fault, and it is not known which",
            ("w8a8", "w8a16", "fp16"),
            "measure w16a16: good means weights, poor means ranges",
            "w16a16",
        ),
        (
            table.poor("w8a8"),
            "w8a8 poor: activations or weights are at fault, and it is not known which",
            ("w8a8", "fp16"),
            "measure w8a16: good means activations",
            "w8a16",
        ),
        (
            table.good("w8a16"),
            "w8a16 good; whether 8-bit activations are enough was not measured",
            ("w8a16",),
            "measure w8a8, which is faster and smaller",
            "w8a8",
        ),
        (table.good("w16a16"), "w16a16 good; fewer bits were not measured", ("w16a16",), "measure w8a16", "w8a16"),
    )
    for holds, says, names, next_, precision in rows:
        if holds:
            yield Advised(says, because=table.evidence(*names), next=next_, command=_LAYERS.format(precision))
            return

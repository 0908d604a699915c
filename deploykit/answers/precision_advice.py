"""What accuracies at several precisions say about a model, in words, with the evidence and the next step.

Source of the conclusions: AIMET's documentation, page "Quantization workflow" (base precision, mixed precision,
advanced methods, training). It reads a table of numbers: no model, no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploykit.accuracy.search.goals import Goal, Reached, parse_goal
from deploykit.errors import UsageError
from deploykit.system.published import Published
from deploykit.tables.reading import read_json, read_toml, structure

__all__ = ["KNOWN", "Advice", "Advised", "advise", "advise_on"]

KNOWN = ("fp32", "fp16", "bf16", "w16a16", "w8a16", "w4a16", "w8a8", "w4a8", "vint8", "mixed")
"""Precisions that conclusions speak of, the most precise first."""

_NESTED = (("w16a16", "w8a16"), ("w8a16", "w8a8"), ("w8a16", "w4a16"), ("w8a8", "w4a8"), ("w4a16", "w4a8"))
"""(more bits, fewer bits) of the same things: the first can hold whatever the second holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised(Published):
    """One statement with what it rests on, and what to do next; ``command`` is an example, or empty."""

    says: str
    because: tuple[str, ...]
    next: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """``met`` says of each precision whether it reaches the goal; ``best`` is the cheapest that does, or empty."""

    goal: str
    reference: str
    met: Mapping[str, bool]
    values: Mapping[str, float]
    best: str
    conclusions: tuple[Advised, ...]

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy ladder --json``."""
        return {
            "goal": self.goal,
            "reference": self.reference,
            "candidates": [
                {"precision": name, "value": value, "meets_goal": self.met.get(name)}
                for name, value in self.values.items()
            ],
            "best": self.best,
            "conclusions": [item.to_json() for item in self.conclusions],
        }


def advise(values: Mapping[str, Reached], goal: Goal) -> Advice:
    """Conclusions from what each precision reached; ``fp32``, else ``fp16``, is the reference of a metric.

    Raises UsageError for precisions that are not known, and where nothing can be compared.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyTable:
    """Accuracies that were measured elsewhere, as a file (TOML or JSON) holds them."""

    accuracy: Mapping[str, float] = field(default_factory=dict)
    goal: str | None = None
    lower_is_better: bool = False


def advise_on(
    path: Path | None, accuracies: Mapping[str, float], *, goal: str | None = None, lower_is_better: bool = False
) -> Advice:
    """Conclusions from a file, from values given one by one, or from both; what is given one by one wins.

    The goal is a drop of at most 1 % unless somebody says otherwise. Raises InputError for a file that is no table.
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
    if not wanted.needs_metric:
        return advise({name: Reached(sqnr_db=value) for name, value in known.items()}, wanted)
    return advise({name: Reached(metric=value) for name, value in known.items()}, wanted)


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
        """Measured, and reaches the goal."""
        return self.met.get(name) is True

    def poor(self, name: str) -> bool:
        """Measured, and misses it."""
        return self.met.get(name) is False

    def shown(self, name: str) -> float:
        """The number that the goal is about."""
        found = self._values[name]
        return found.metric if self.goal.needs_metric else found.sqnr_db

    def evidence(self, *names: str) -> tuple[str, ...]:
        """What was measured of some precisions, in words."""
        known = [name for name in names if name in self._values]
        return tuple(f"{name}: {self.goal.evidence(self._values[name])}{self._verdict(name)}" for name in known)

    def _verdict(self, name: str) -> str:
        if name == self.reference:
            return " (reference)"
        return ", reaches the goal" if self.good(name) else ", misses the goal"

    def best(self) -> str:
        """The last in the order of cost that reaches the goal."""
        return next((name for name in reversed(self.order) if self.good(name)), "")

    def is_worse(self, more: str, fewer: str) -> bool:
        """True where more bits gave a clearly worse value than fewer: the goal is met by the fewer only."""
        return self.poor(more) and self.good(fewer)


def _conclusions(table: _JudgedPrecisions) -> Iterator[Advised]:
    odd = list(_contradictions(table))
    yield from odd
    if table.poor("fp16"):
        yield _float_fails(table)
    elif not odd:
        yield from _of_integers(table)
    if table.good("w4a16"):
        yield Advised(
            says="weights hold in 4 bits",
            because=table.evidence("w4a16"),
            next="package w4a16: the weights take half the memory of w8a16",
            command="deploykit package MODEL --precision w4a16 --calibration DATA --target DEVICE -o OUT",
        )
    elif table.poor("w4a16") and table.good("w8a16"):
        yield Advised(
            says="4-bit weights are too coarse as they are",
            because=table.evidence("w4a16", "w8a16"),
            next="stay with w8a16, or quantize in blocks (LPBQ) and learn the rounding (SeqMSE, AdaRound)",
            command="deploykit accuracy layers MODEL --precision w4a16 --data DATA",
        )
    if table.poor("vint8") and (table.good("bf16") or table.good("mixed")):
        yield Advised(
            says="8-bit integers with power-of-two scales lose, floats do not: some operators must stay out",
            because=table.evidence("vint8", "bf16", "mixed"),
            next="exclude the operators that integers destroy (mixed), mostly decoding behind the last convolutions",
            command="deploykit package MODEL --precision mixed --calibration DATA --target DEVICE -o OUT",
        )


def _contradictions(table: _JudgedPrecisions) -> Iterator[Advised]:
    """More bits that are worse: something else than the precision differs, and no cause can be named."""
    for more, fewer in _NESTED:
        if table.is_worse(more, fewer):
            yield Advised(
                says=f"{more} is worse than {fewer}, which cannot come from the bits alone",
                because=(*table.evidence(more, fewer), "seen where tools raise other tensors too: qualcomm/aimet#4108"),
                next="make both from one calibration, and compare them tensor by tensor before concluding anything",
                command=f"deploykit accuracy locate MODEL --encodings {more.upper()}.encodings --data DATA",
            )


def _float_fails(table: _JudgedPrecisions) -> Advised:
    ranges = " and values beyond 65504 overflow: bfloat16 holds them" if table.good("bf16") else ""
    return Advised(
        says=f"half precision already loses: quantization is not the cause{ranges}",
        because=table.evidence("fp32", "fp16", "bf16"),
        next="find the operator where float16 leaves float32, and rewrite it or keep it in a wider type",
        command="deploykit accuracy layers MODEL --precision fp16 --data DATA",
    )


def _of_integers(table: _JudgedPrecisions) -> Iterator[Advised]:
    if table.good("w8a8"):
        yield Advised(
            says="w8a8 is good: 8 bits are enough everywhere",
            because=table.evidence("w8a8", table.reference),
            next="package it",
            command="deploykit package MODEL --precision w8a8 --calibration DATA --target DEVICE -o OUT",
        )
    elif table.poor("w8a8") and table.good("w8a16"):
        yield Advised(
            says="w8a8 poor, w8a16 good: activations are sensitive",
            because=table.evidence("w8a8", "w8a16"),
            next="use w8a16; where speed needs 8 bits, raise only the worst layers of w8a8 to 16 bits (LiteMP)",
            command='deploykit quantize MODEL --precision w8a8 --goal "GOAL" --calibration DATA --target DEVICE -o OUT',
        )
    elif table.poor("w8a16") and table.good("w16a16"):
        yield Advised(
            says="only w16a16 good: weights are sensitive",
            because=table.evidence("w8a8", "w8a16", "w16a16"),
            next="keep w8a16 and learn the rounding of the weights: SeqMSE first, then AdaRound; cross-layer"
            " equalization where ranges differ much between channels",
            command="deploykit quantize MODEL --precision w8a16 --with aimet --calibration DATA --target DEVICE -o OUT",
        )
    elif table.poor("w16a16"):
        yield _only_float(table)
    else:
        yield from _what_to_measure(table)


def _only_float(table: _JudgedPrecisions) -> Advised:
    if table.good("fp16") or table.reference == "fp16":
        return Advised(
            says="only fp16: even 16-bit integers lose, so single tensors have ranges that no grid holds",
            because=table.evidence("w8a16", "w16a16", "fp16"),
            next="keep the few worst tensors in float16 (LiteMP) and let a rewrite remove huge constants;"
            " when nothing is left to keep, train with quantization (QAT)",
            command="deploykit accuracy layers MODEL --precision w16a16 --data DATA",
        )
    return Advised(
        says="no measured precision is good, and fp16 was not measured",
        because=table.evidence("w8a8", "w8a16", "w16a16"),
        next="measure fp16: it tells whether the numbers are lost by integers or by the conversion",
        command="deploykit accuracy simulate MODEL --encodings FILE --data DATA",
    )


def _what_to_measure(table: _JudgedPrecisions) -> Iterator[Advised]:
    """One of the precisions that tell weights and activations apart is missing."""
    if table.poor("w8a16"):
        yield Advised(
            says="w8a16 poor: weights or single ranges are at fault, and it is not known which",
            because=table.evidence("w8a8", "w8a16", "fp16"),
            next="measure w16a16: good means weights, poor means ranges",
            command="deploykit accuracy layers MODEL --precision w16a16 --data DATA",
        )
    elif table.poor("w8a8"):
        yield Advised(
            says="w8a8 poor: activations or weights are at fault, and it is not known which",
            because=table.evidence("w8a8", "fp16"),
            next="measure w8a16: good means activations",
            command="deploykit accuracy layers MODEL --precision w8a16 --data DATA",
        )
    elif table.good("w8a16"):
        yield Advised(
            says="w8a16 good; whether 8-bit activations are enough was not measured",
            because=table.evidence("w8a16"),
            next="measure w8a8, which is faster and smaller",
            command="deploykit accuracy layers MODEL --precision w8a8 --data DATA",
        )
    elif table.good("w16a16"):
        yield Advised(
            says="w16a16 good; fewer bits were not measured",
            because=table.evidence("w16a16"),
            next="measure w8a16",
            command="deploykit accuracy layers MODEL --precision w8a16 --data DATA",
        )

"""What a quantized model must reach, from words like ``right``, ``kept>=95%`` or ``drop<=1%``, and whether it does.

It measures nothing. Nothing heavy is imported: tables of accuracies are judged without a model.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any

from deploykit.accuracy.judge.verdict import KeptCount, Verdict, fewest_for
from deploykit.errors import UsageError
from deploykit.findings.records import Published, Record

__all__ = ["GOAL", "WHOLE", "Goal", "Reached", "goal_for", "parse_goal"]

GOAL = "right"
"""The goal where nobody states one; ``Goal`` says what it asks for."""

WHOLE = "whole"
"""A goal that nobody types: nothing is lost for which a wider type would be named."""

_NO_SIGNAL_DB = 12.0
"""dB. Where the judge gives no verdict, less counts as short: noise has a quarter of the signal then."""
_KEPT_SHARE = 0.95
_PLAIN_DB = 30.0

_FORM = re.compile(
    r"(?P<name>[a-z]+)\s*(?P<sign><=|>=|<|>|=)\s*(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<unit>%|db|)"
)
_EXAMPLES = (
    "known are right (the judge's own limits), kept>=95% and lost<=5% (of the detections), sqnr>=30 (dB), drop<=1% (of "
    "the float model's value), drop<=0.5 (in its unit), rise<=1% (of measures like error rates) and metric>=0.75"
)
_AT_LEAST, _AT_MOST, _SHARE = (">=", ">"), ("<=", "<"), ("", "%")
# The signs of each goal, the usual one first, and its units.
_FORMS = {
    "sqnr": (_AT_LEAST, ("", "db")),
    "drop": (_AT_MOST, _SHARE),
    "rise": (_AT_MOST, _SHARE),
    "metric": ((*_AT_LEAST, *_AT_MOST), ("",)),
    "kept": (_AT_LEAST, _SHARE),
    "lost": (_AT_MOST, _SHARE),
}
_SHARES = ("kept", "lost")
_COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}


class Reached(Published):
    """What one candidate reached. ``metric`` and ``reference`` are values of the user's own measure.

    ``right`` is the judge's answer and ``reason`` what it rests on; ``detections`` are counted where there are any.
    ``words`` and ``short`` are the verdict's; ``short`` is also True where the verdict is open and little of the signal
    is left.
    """

    WITHOUT = ("reference", "short", "words")

    sqnr_db: float = math.nan
    metric: float = math.nan
    reference: float = math.nan
    right: bool | None = None
    reason: str = ""
    detections: KeptCount | None = None
    short: bool = False
    words: str = ""

    @classmethod
    def of(cls, verdict: Verdict, **others: Any) -> Reached:
        """What a verdict tells; ``others`` are fields that it does not know, or that were measured otherwise.

        On made-up inputs nothing is shown to be right, and no goal that asks for it is reached.
        """
        right, reason = verdict.answer
        short = verdict.is_short or (right is None and verdict.overall_db < _NO_SIGNAL_DB)
        known = {"sqnr_db": verdict.overall_db, "right": right, "reason": reason, "short": short}
        return cls(**{**known, "words": verdict.words, "detections": verdict.detections, **others})

    @property
    def counted(self) -> KeptCount | None:
        """The detections, where the reference has any."""
        return self.detections if self.detections is not None and any(self.detections.wanted) else None


class Goal(Record):
    """One measure and its bound. ``lower_is_better`` is for measures like word error rate, and turns a drop around.

    ``kept`` and ``lost`` are shares of the detections that the count shows with 95 % confidence, in both directions: of
    the float model's that are kept, and of the quantized one's that are not new. ``right`` asks for the judge's yes;
    besides for 95 % of the detections kept or, where there are none, for 30 dB.
    """

    name: str
    sign: str = ""
    bound: float = math.nan
    percent: bool = False
    lower_is_better: bool = False

    @property
    def needs_metric(self) -> bool:
        """True where the goal is about the user's own measure."""
        return self.name in ("drop", "rise", "metric")

    @property
    def asks_outputs(self) -> bool:
        """True where the goal needs outputs, which a table of accuracies does not have."""
        return self.name in ("right", *_SHARES)

    def is_met(self, reached: Reached) -> bool | None:
        """Whether the goal is met; None where its measure was not taken, or cannot be shown on so few detections."""
        if self.name == WHOLE:
            return not reached.short
        if self.name == "right":
            if reached.right is not True:
                return reached.right
            if reached.counted is not None:
                return _is_kept(reached.counted, _KEPT_SHARE)
            return None if math.isnan(reached.sqnr_db) else reached.sqnr_db >= _PLAIN_DB
        if self.name in _SHARES:
            return _is_kept(reached.counted, self.share, strictly=len(self.sign) == 1)
        value = self._value(reached)
        return None if math.isnan(value) else _COMPARE[self.sign](value, self.bound)

    def why_open(self, reached: Reached) -> str:
        """Why ``is_met`` is None, in words; "" where there is nothing to say."""
        count = reached.counted
        if self.needs_metric:
            if not math.isnan(self._value(reached)):
                return ""
            return "the float model's value is 0" if reached.reference == 0 else "the measure was not taken"
        fewest = fewest_for(self.share)
        if count is not None and self.asks_outputs and sum(count.wanted) < fewest:
            return f"{sum(count.wanted)} detections show no share of {self.share:.0%}: at least {fewest} are needed"
        if self.name in _SHARES and count is None:
            return "the float model detects nothing on these samples"
        return reached.reason

    def quality(self, reached: Reached) -> float:
        """The goal's measure as one number, more being better: sure share of detections in percent, dB, or a value."""
        if self.needs_metric:
            less = self.lower_is_better or self.name == "rise" or (self.name == "metric" and self.sign.startswith("<"))
            return -reached.metric if less else reached.metric
        if self.asks_outputs and reached.counted is not None:
            return 100 * reached.counted.surely
        return reached.sqnr_db

    def evidence(self, reached: Reached) -> str:
        """What was measured for the goal, in words."""
        if self.needs_metric:
            return f"{reached.metric:.6g}"
        if not self.asks_outputs:
            return f"{reached.sqnr_db:.4g} dB"
        words = {True: "right", False: "wrong", None: "not judged"}[reached.right]
        parts = [str(reached.counted)] if reached.counted is not None else []
        return ", ".join([words, *parts, f"{reached.sqnr_db:.1f} dB"])

    @property
    def share(self) -> float:
        """The share of detections to keep, for goals about outputs."""
        if self.name == "right":
            return _KEPT_SHARE
        bound = self.bound / 100 if self.percent else self.bound
        return 1 - bound if self.name == "lost" else bound

    @property
    def decibels(self) -> float:
        """The signal to noise in dB that is asked for where there are no detections; NaN for other goals."""
        return self.bound if self.name == "sqnr" else _PLAIN_DB if self.name == "right" else math.nan

    def _value(self, reached: Reached) -> float:
        if self.name == "sqnr":
            return reached.sqnr_db
        if self.name == "metric":
            return reached.metric
        drop = reached.reference - reached.metric
        drop = -drop if self.lower_is_better or self.name == "rise" else drop
        if not self.percent:
            return drop
        return 100 * drop / abs(reached.reference) if reached.reference else math.nan

    def __str__(self) -> str:
        if self.name in (GOAL, WHOLE):
            return self.name
        unit = "%" if self.percent else " dB" if self.name == "sqnr" else ""
        return f"{self.name} {self.sign} {self.bound:g}{unit}"

    @property
    def in_words(self) -> str:
        """The goal for people, where its short form does not say all."""
        if self.name == "right":
            return f"right: the judge's limits, and {_KEPT_SHARE:.0%} of the detections kept or else {_PLAIN_DB:g} dB"
        return f"{self}, with 95% confidence" if self.name in _SHARES else str(self)


def _is_kept(count: KeptCount | None, share: float, *, strictly: bool = False) -> bool | None:
    """Whether the share is surely kept.

    False where the share itself is missed or is not sure enough; None where so small a count cannot show it.
    """
    if count is None:
        return None
    if count.share < share or sum(count.wanted) >= fewest_for(share):
        return count.surely > share if strictly else count.surely >= share
    return None


def goal_for(text: str | None, *, has_metric: bool, may_judge: bool = True, lower_is_better: bool = False) -> Goal:
    """The goal that is asked for, else the usual one.

    The usual one is a drop of 1 % at most of a measure, else ``right``, and on made-up samples signal to noise. Raises
    UsageError where a measure is asked about and none is given.
    """
    usual = "drop<=1%" if has_metric else GOAL if may_judge else f"sqnr>={_PLAIN_DB:g}"
    goal = parse_goal(text or usual, lower_is_better=lower_is_better)
    if goal.needs_metric and not has_metric:
        raise UsageError(f"--goal {goal}: asks about a measure", next="give --metric")
    return goal


def parse_goal(text: str, *, lower_is_better: bool = False) -> Goal:
    """The goal in a text; raises UsageError for any unknown form, and for bounds that no model misses."""
    asked = text.strip().lower()
    if asked == GOAL:
        return Goal(name=asked)
    found = _FORM.fullmatch(asked)
    if found is None:
        raise UsageError(
            f"--goal {text!r}: not understood", why="a name, a sign and a number are expected", next=_EXAMPLES
        )
    name, sign, unit = found["name"], found["sign"], found["unit"]
    if name not in _FORMS:
        raise UsageError(f"--goal {text!r}: {name!r} is not known", next=_EXAMPLES)
    signs, units = _FORMS[name]
    if sign not in signs:
        better = "more is better" if name in ("sqnr", "kept") else "a goal is the most that may be lost"
        why = better if name != "metric" else "equality of measured numbers is no goal"
        raise UsageError(f"--goal {text!r}: {name} goes with {signs[0]}", why=why, next=_EXAMPLES)
    if unit not in units:
        raise UsageError(f"--goal {text!r}: {name} is not in {unit}", next=_EXAMPLES)
    goal = Goal(name=name, sign=sign, bound=float(found["bound"]), percent=unit == "%", lower_is_better=lower_is_better)
    # A share lies between nothing and all; that all are kept can be counted, and never shown.
    if goal.name in _SHARES and not 0 < goal.share < 1:
        raise UsageError(
            f"--goal {text!r}: a share between 0% and 100% is expected",
            why="that all detections are kept is shown by no number of samples",
            next="kept>=95%",
        )
    return goal

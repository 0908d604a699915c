"""What a quantized model must reach, from words like ``sqnr>=30`` or ``drop<=1%``, and whether it does.

It measures nothing. Nothing heavy is imported: tables of accuracies are judged without a model.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from deploykit.errors import UsageError

__all__ = ["Goal", "Reached", "parse_goal"]

_FORM = re.compile(
    r"(?P<name>[a-z]+)\s*(?P<sign><=|>=|<|>|=)\s*(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<unit>%|db|)"
)
_EXAMPLES = "known are sqnr>=30 (dB), drop<=1% (of the float model's value), drop<=0.5 (in its unit) and metric>=0.75"
_SIGNS = {"sqnr": (">=", ">"), "drop": ("<=", "<"), "metric": (">=", ">", "<=", "<")}
_UNITS = {"sqnr": ("", "db"), "drop": ("", "%"), "metric": ("",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What one candidate reached. ``metric`` and ``reference`` are values of the user's own measure."""

    sqnr_db: float = math.nan
    metric: float = math.nan
    reference: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One bound. ``lower_is_better`` is for measures like word error rate and perplexity, and turns a drop around."""

    name: str
    sign: str
    bound: float
    percent: bool = False
    lower_is_better: bool = False

    @property
    def needs_metric(self) -> bool:
        """True where the numbers of a simulation alone cannot answer."""
        return self.name != "sqnr"

    def is_met(self, reached: Reached) -> bool | None:
        """None where what it asks about was not measured."""
        value = self._value(reached)
        if math.isnan(value):
            return None
        return {"<=": value <= self.bound, "<": value < self.bound, ">=": value >= self.bound, ">": value > self.bound}[
            self.sign
        ]

    def _value(self, reached: Reached) -> float:
        if self.name == "sqnr":
            return reached.sqnr_db
        if self.name == "metric":
            return reached.metric
        drop = reached.reference - reached.metric
        drop = -drop if self.lower_is_better else drop
        if not self.percent:
            return drop
        return 100 * drop / abs(reached.reference) if reached.reference else math.nan

    def __str__(self) -> str:
        unit = "%" if self.percent else " dB" if self.name == "sqnr" else ""
        return f"{self.name} {self.sign} {self.bound:g}{unit}"


def parse_goal(text: str, *, lower_is_better: bool = False) -> Goal:
    """Raises UsageError for anything that is not one of the known forms, and for bounds that no model misses."""
    found = _FORM.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(
            f"--goal {text!r}: not understood", why="a name, a sign and a number are expected", next=_EXAMPLES
        )
    name, sign, unit = found["name"], found["sign"], found["unit"]
    if name not in _SIGNS:
        raise UsageError(f"--goal {text!r}: {name!r} is not known", next=_EXAMPLES)
    if sign not in _SIGNS[name]:
        better = "more is better" if name == "sqnr" else "a goal is the most that may be lost"
        why = better if name != "metric" else "equality of measured numbers is no goal"
        raise UsageError(f"--goal {text!r}: {name} goes with {_SIGNS[name][0]}", why=why, next=_EXAMPLES)
    if unit not in _UNITS[name]:
        raise UsageError(f"--goal {text!r}: {name} is not in {unit}", next=_EXAMPLES)
    return Goal(name=name, sign=sign, bound=float(found["bound"]), percent=unit == "%", lower_is_better=lower_is_better)

"""The step of a ladder where weights are the cause: methods that learn better integers for them, tried in turn.

How a candidate is measured is handed in, as for the ladder; which methods there are is the quantizer's word.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploykit.answers.precision_advice import Conclusion

if TYPE_CHECKING:
    from deploykit.accuracy.search.goals import Goal
    from deploykit.flow.ladder import Rung

__all__ = ["LearnedStep", "Learning", "Tried", "learn_weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Who can learn weights. ``methods`` are names in the order to try them, none where ``missing`` says what lacks.

    ``measure`` takes ``PRECISION+METHOD``; no method is begun after ``seconds``. ``install`` is the command for what is
    missing.
    """

    methods: tuple[str, ...] = ()
    seconds: float = math.inf
    missing: str = ""
    install: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """One method: the candidate that came out, with why none did where that is so, and what it took."""

    method: str
    rung: Rung
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {"method": self.method, "seconds": round(self.seconds, 1), "candidate": self.rung.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedStep:
    """That better weights were looked for: from which candidate, with what, and the best that came out."""

    why: str
    base: Rung
    tried: tuple[Tried, ...]
    rung: Rung
    met: bool | None
    left: tuple[str, ...] = ()
    """Methods that were not begun, since the time was up."""

    @property
    def told(self) -> str:
        """What was done, in one line."""
        return f"tried {', '.join(one.method for one in self.tried)}"

    @property
    def is_better(self) -> bool:
        """True where the best that came out has more of the signal left than what it was made from."""
        return self.rung.reached.sqnr_db > self.base.reached.sqnr_db

    def to_json(self) -> dict[str, Any]:
        """The published shape; ``raised`` is None, as no layer was."""
        learned = {
            "from": self.base.to_json(),
            "tried": [one.to_json() for one in self.tried],
            "left": list(self.left),
            "meets_goal": self.met,
        }
        return {"why": self.why, "raised": None, "learned": learned, "candidate": self.rung.to_json()}


def learn_weights(
    rungs: Sequence[Rung],
    goal: Goal,
    learning: Learning,
    measure: Callable[[str], Rung],
    tell: Callable[[str], None],
) -> tuple[LearnedStep | None, tuple[Conclusion, ...]]:
    """Try each method until one reaches the goal, where the candidates say that weights are the cause.

    The step is None where they do not, or where nothing came out; the conclusions say what is left to do. Where 8-bit
    weights are good, 4 bits are worth the quickest method and no training.
    """
    by_name = {rung.precision: rung for rung in rungs}
    why = _cause({name: goal.is_met(rung.reached) for name, rung in by_name.items()})
    if why is None or not (learning.methods or learning.missing):
        return None, ()
    base = by_name[why[0]]
    if not learning.methods:
        return None, (_to_install(base, learning),)
    eight_bits = goal.is_met(by_name["w8a16"].reached)
    methods = learning.methods[:1] if eight_bits else learning.methods
    tried, begun = list[Tried](), time.monotonic()
    for method in methods:
        if tried and time.monotonic() - begun > learning.seconds:
            break
        tell(f"better weights for {base.precision}: {method}")
        since = time.monotonic()
        rung = measure(f"{base.precision}+{method}")
        tried.append(Tried(method=method, rung=rung, seconds=time.monotonic() - since))
        if goal.is_met(rung.reached):
            break
    best = max((one.rung for one in tried), key=lambda rung: _rank(rung, goal))
    met = goal.is_met(best.reached)
    left = () if met else methods[len(tried) :]
    after = () if met or eight_bits else (_to_train(base, tried),)
    if best.missing:
        return None, after
    return LearnedStep(why=why[1], base=base, tried=tuple(tried), rung=best, met=met, left=left), after


def _cause(met: Mapping[str, bool | None]) -> tuple[str, str] | None:
    """The candidate whose weights are the cause, and the evidence; 4-bit weights only where no 8 bits are as cheap."""
    if met.get("w8a16") is False and met.get("w16a16"):
        return "w8a16", "w8a16 poor, w16a16 good: weights are sensitive"
    if met.get("w4a16") is False and met.get("w8a16") and not met.get("w8a8"):
        return "w4a16", "w4a16 poor, w8a16 good: 4-bit weights are too coarse as they are"
    return None


def _rank(rung: Rung, goal: Goal) -> tuple[bool, float]:
    """What reaches the goal first, then by signal to noise; what was not measured last."""
    db = rung.reached.sqnr_db
    return goal.is_met(rung.reached) is True, -math.inf if math.isnan(db) else db


def _to_install(base: Rung, learning: Learning) -> Conclusion:
    return Conclusion(
        says=f"better weights for {base.precision} were not looked for",
        because=(learning.missing,),
        next="install it, and ask again: SeqMSE and AdaRound are then tried by themselves",
        command=learning.install,
    )


def _to_train(base: Rung, tried: Sequence[Tried]) -> Conclusion:
    """Training is the user's: what to begin with, and what to bring back."""
    return Conclusion(
        says=f"no method after training makes {base.precision} good enough",
        because=tuple(f"{one.method}: {one.rung.missing or f'{one.rung.reached.sqnr_db:.1f} dB'}" for one in tried),
        next="train with quantization (QAT) in the framework that made the model: begin with its float weights,"
        f" simulate {base.precision} with these ranges, train some epochs at a small rate, export ONNX and encodings",
        command="deploykit package TRAINED.onnx --encodings TRAINED.encodings --target DEVICE -o OUT",
    )

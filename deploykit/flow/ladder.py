"""The ladder of precisions: measures candidates, draws conclusions, takes the
next step, and chooses the cheapest good one.

The caller says how a candidate is measured: by simulation, or by a quantizer. If weights are the cause of a loss,
methods that learn better integers are tried; the quantizer says which there are. Nothing is run here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from deploykit.accuracy.search.goals import Goal, Reached
from deploykit.accuracy.search.raising import Raised, WideType
from deploykit.accuracy.simulate.precisions import ModelCost
from deploykit.answers.precision_advice import Advice, Advised, advise
from deploykit.encodings.values import EncodingSet
from deploykit.findings.records import Json, Names, Published, Record, Tell, published, replace, silent

__all__ = ["Ladder", "LadderRung", "Learning", "walk"]


class LadderRung(Published, kw_only=False, eq=False):
    """One candidate. ``made_by`` says who made its encodings; ``missing`` why it was not measured, else "".

    ``runs_here`` is False for a precision that the target cannot run: it is measured to tell causes apart, and never
    chosen. ``refused`` is why packaging would refuse the candidate, "" if it would not. ``way`` describes the changes
    by packaging, which were measured too; "" for none. ``on_npu`` is the share of nodes on the accelerator, NaN if not
    asked for. ``time_us`` is a compiler's estimate in microseconds, None if not asked for or not available.
    """

    precision: str
    reached: Reached = Reached()
    cost: ModelCost | None = None
    borders: int = 0
    made_by: str = ""
    missing: str = ""
    runs_here: bool = True
    encodings: EncodingSet | None = None
    way: str = ""
    refused: str = ""
    on_npu: float = math.nan
    time_us: float | None = None

    @property
    def may_win(self) -> bool:
        """True if the target runs the candidate and packaging takes it."""
        return self.runs_here and not self.refused

    def price(self) -> tuple[bool, float, float]:
        """The sort key of the cost; candidates that leave work to the host
        come last, as somebody has to write that part.
        """
        on_host = self.on_npu < 1
        if self.cost is None:
            return on_host, math.inf, math.inf
        return on_host, self.cost.bit_operations, self.cost.weight_bytes + self.cost.activation_bytes

    def as_published(self) -> Json:
        """The published fields; numbers that were not measured are None."""
        return {**self.reached.to_json(), **published(self, without=("reached", "encodings"))}


class RaisedStep(Published, eq=False):
    """A next step of the ladder: its reason, and its result."""

    why: str
    raised: Raised
    candidate: LadderRung

    @property
    def told(self) -> str:
        """The step in one line."""
        best = self.raised.best
        return f"raised to {best.wide}: {', '.join(best.layers) or 'nothing'}"


class Learning(Record):
    """Which methods can learn weights. ``methods`` are names in the order to
    try them; ``missing`` says why there are none.

    ``measure`` takes ``PRECISION+METHOD``; no method is begun after ``seconds``.
    ``install`` is the command that installs one.
    """

    methods: Names = ()
    seconds: float = math.inf
    missing: str = ""
    install: str = ""


class TriedMethod(Published, eq=False):
    """One method: its candidate (with the reason if there is none), and the seconds it took."""

    method: str
    candidate: LadderRung
    seconds: float

    def as_published(self) -> Json:
        """The method and its candidate."""
        return {"method": self.method, "seconds": round(self.seconds, 1), "candidate": self.candidate}


class LearnedStep(Published, eq=False):
    """The search for better weights: the candidate it began with, the methods tried, and the best result."""

    why: str
    base: LadderRung
    tried: tuple[TriedMethod, ...]
    candidate: LadderRung
    met: bool | None
    left: Names
    """Methods that were not begun, because the time was up."""

    @property
    def told(self) -> str:
        """The step in one line."""
        return f"tried {', '.join(one.method for one in self.tried)}"

    @property
    def is_better(self) -> bool:
        """True if the best result has a higher signal-to-noise ratio than the candidate it began with."""
        return self.candidate.reached.sqnr_db > self.base.reached.sqnr_db

    def as_published(self) -> Json:
        """The published fields; ``raised`` is None, as no layer was raised."""
        learned = {"from": self.base, "tried": self.tried, "left": self.left, "meets_goal": self.met}
        return {"why": self.why, "raised": None, "learned": learned, "candidate": self.candidate}


class Ladder(Published, eq=False):
    """The ladder of one model: candidates, conclusions, steps, and the chosen candidate; None if none is good."""

    goal: Goal
    rungs: tuple[LadderRung, ...]
    advice: Advice | None
    steps: tuple[RaisedStep | LearnedStep, ...]
    chosen: LadderRung | None
    why: str

    @property
    def advised(self) -> str:
        """The conclusions in one line, "" if there are none."""
        return "" if self.advice is None else "; ".join(item.says for item in self.advice.conclusions)

    def meets(self, rung: LadderRung) -> bool | None:
        """Whether a candidate reaches the goal; None if it was not measured."""
        return self.goal.is_met(rung.reached)

    @property
    def fastest(self) -> LadderRung | None:
        """The candidate that reaches the goal in the least estimated time; None if no times are known."""
        timed = (rung for rung in self.all_rungs if rung.time_us is not None and rung.may_win and self.meets(rung))
        return min(timed, key=attrgetter("time_us"), default=None)

    @property
    def all_rungs(self) -> tuple[LadderRung, ...]:
        """The candidates, and the result of each step."""
        return (*self.rungs, *(step.candidate for step in self.steps))

    def as_published(self) -> Json:
        """The whole ladder as JSON."""
        return {
            "goal": str(self.goal),
            "candidates": [self._told(rung) for rung in self.rungs],
            "conclusions": [] if self.advice is None else self.advice.conclusions,
            "steps": [{**step.as_published(), "candidate": self._told(step.candidate)} for step in self.steps],
            "chosen": None if self.chosen is None else self.chosen.precision,
            "why": self.why,
        }

    def _told(self, rung: LadderRung) -> Json:
        met = self.meets(rung)
        return {
            **rung.as_published(),
            "meets_goal": met,
            "open": "" if met is not None else self.goal.why_open(rung.reached),
        }


def walk(
    names: Sequence[str],
    goal: Goal,
    *,
    measure: Callable[[str], LadderRung],
    mix: Callable[[LadderRung, WideType], Raised] | None = None,
    wides: Sequence[WideType] = (),
    confirm: Callable[[LadderRung], LadderRung] = lambda rung: rung,
    learning: Learning | None = None,
    tell: Tell = silent,
) -> Ladder:
    """Measures every candidate, draws conclusions, raises the layers that these suggest, and chooses.

    ``mix`` raises the fewest layers of a measured candidate to one of the ``wides`` that the target mixes; ``confirm``
    measures the result as a candidate. If weights are the cause of a loss, ``learning`` says how better ones are
    learned; layers of its result are raised then.
    """
    rungs = []
    for name in names:
        tell(f"measuring {name}")
        rungs.append(measure(name))
    # Candidates that leave a part to the host are other models, whose numbers say nothing about the bits.
    whole = [rung for rung in rungs if not rung.on_npu < 1]
    measured = {rung.precision: rung.reached for rung in whole if goal.is_met(rung.reached) is not None}
    if goal.needs_metric and measured:
        reference = next(iter(measured.values())).reference
        measured = {"fp32": Reached(metric=reference, reference=reference), **measured}
    advice = advise(measured, goal) if measured else None
    steps = list[RaisedStep | LearnedStep]()
    bases = list(rungs)
    if learning is not None and advice is not None:
        learned, further = _learn_weights(whole, goal, learning, measure, tell)
        advice = replace(advice, conclusions=(*advice.conclusions, *further))
        if learned is not None:
            steps.append(learned)
            bases = [learned.candidate if rung is learned.base and learned.is_better else rung for rung in rungs]
    if mix is not None and advice is not None:
        raised = _steps(dict(zip(names, bases, strict=True)), goal, mix, wides, tell)
        steps += [replace(step, candidate=confirm(step.candidate)) for step in raised]
    known = (*rungs, *(step.candidate for step in steps))
    good = [rung for rung in known if rung.may_win and goal.is_met(rung.reached)]
    chosen = min(good, key=LadderRung.price, default=None)
    return Ladder(
        goal=goal, rungs=tuple(rungs), advice=advice, steps=tuple(steps), chosen=chosen, why=_why(chosen, known, goal)
    )


def _steps(
    by_name: Mapping[str, LadderRung],
    goal: Goal,
    mix: Callable[[LadderRung, WideType], Raised],
    wides: Sequence[WideType],
    tell: Tell,
) -> list[RaisedStep]:
    """The steps of lite mixed precision: from the cheapest poor base up to the type that was seen to be good."""

    def is_met(name: str) -> bool | None:
        return goal.is_met(by_name[name].reached) if name in by_name else None

    wanted = list[tuple[str, WideType, str]]()
    learned = "w8a16" in by_name and by_name["w8a16"].precision != "w8a16"  # by weights that w8a8 does not have
    if is_met("w8a8") is False and is_met("w8a16") and not learned:
        wanted.append(("w8a8", "int16", "w8a8 poor, w8a16 good: the activations of some layers need 16 bits"))
    if is_met("w8a16") is False and is_met("fp16"):
        wanted.append(("w8a16", "float16", "w8a16 poor, fp16 good: some layers need float16"))
    elif is_met("w8a8") is False and is_met("w8a16") is None and is_met("fp16"):
        wanted.append(("w8a8", "float16", "w8a8 poor, fp16 good: some layers need float16"))
    steps = []
    for base, wide, why in wanted:
        start = by_name[base]
        if wide not in wides or start.encodings is None:
            continue
        tell(f"raising layers of {base} to {wide}")
        raised = mix(start, wide)
        best, count = raised.best, len(raised.best.layers)
        rung = LadderRung(
            f"{start.precision} with {count} layer{'' if count == 1 else 's'} in {best.wide}",
            reached=best.reached,
            cost=best.cost,
            borders=best.borders,
            made_by=start.made_by,
            encodings=raised.encodings,
            way=start.way,
        )
        steps.append(RaisedStep(why=why, raised=raised, candidate=rung))
    return steps


def _learn_weights(
    rungs: Sequence[LadderRung],
    goal: Goal,
    learning: Learning,
    measure: Callable[[str], LadderRung],
    tell: Tell,
) -> tuple[LearnedStep | None, tuple[Advised, ...]]:
    """Tries each method until one reaches the goal, if the candidates show that weights are the cause.

    The step is None if they do not, or if there is no result; the conclusions say what is left to do. If 8-bit weights
    are good, only the quickest method is tried for 4 bits, and no training is advised.
    """
    by_name = {rung.precision: rung for rung in rungs}
    met = {name: goal.is_met(rung.reached) for name, rung in by_name.items()}
    eight_bits = met.get("w8a16")
    if eight_bits is False and met.get("w16a16"):
        base, why = by_name["w8a16"], "w8a16 poor, w16a16 good: weights are sensitive"
    elif met.get("w4a16") is False and eight_bits and not met.get("w8a8"):  # else 8 bits are as cheap as 4-bit weights
        base, why = by_name["w4a16"], "w4a16 poor, w8a16 good: 4-bit weights are too coarse as they are"
    else:
        return None, ()
    if not learning.methods:
        to_install = Advised(
            f"better weights for {base.precision} were not looked for",
            because=(learning.missing,),
            next="install it, and ask again: SeqMSE and AdaRound are then tried by themselves",
            command=learning.install,
        )
        return None, (to_install,) if learning.missing else ()
    methods = learning.methods[:1] if eight_bits else learning.methods
    tried, begun = list[TriedMethod](), time.monotonic()
    for method in methods:
        if tried and time.monotonic() - begun > learning.seconds:
            break
        tell(f"better weights for {base.precision}: {method}")
        since = time.monotonic()
        rung = measure(f"{base.precision}+{method}")
        tried.append(TriedMethod(method=method, candidate=rung, seconds=time.monotonic() - since))
        if goal.is_met(rung.reached):
            break

    def rank(rung: LadderRung) -> tuple[bool, float]:
        db = rung.reached.sqnr_db
        return goal.is_met(rung.reached) is True, -math.inf if math.isnan(db) else db

    best = max((one.candidate for one in tried), key=rank)
    is_met = goal.is_met(best.reached)
    further: tuple[Advised, ...] = ()
    if not is_met and not eight_bits:  # training is the user's: the advice says how
        to_train = Advised(
            f"no method after training makes {base.precision} good enough",
            because=tuple(
                f"{one.method}: {one.candidate.missing or f'{one.candidate.reached.sqnr_db:.1f} dB'}" for one in tried
            ),
            next="train with quantization (QAT) in the framework that made the model: begin with its float weights,"
            f" simulate {base.precision} with these ranges, train some epochs at a small rate, export ONNX and"
            " encodings",
            command="deploykit package TRAINED.onnx --encodings TRAINED.encodings --target DEVICE -o OUT",
        )
        further = (to_train,)
    if best.missing:
        return None, further
    left = () if is_met else methods[len(tried) :]
    return LearnedStep(why=why, base=base, tried=tuple(tried), candidate=best, met=is_met, left=left), further


def _why(chosen: LadderRung | None, rungs: Sequence[LadderRung], goal: Goal) -> str:
    if chosen is not None:
        where = "" if chosen.on_npu < 1 or not any(rung.on_npu < 1 for rung in rungs) else " without work for the host"
        return f"the fewest bit operations of all that reach {goal}{where}"
    measured = [rung for rung in rungs if goal.is_met(rung.reached) is not None]
    if not measured:
        open_for = dict.fromkeys(goal.why_open(rung.reached) for rung in rungs if not rung.missing)
        return "; ".join(filter(None, open_for)) or "nothing could be measured"
    return f"no candidate that runs on the target reaches {goal}"

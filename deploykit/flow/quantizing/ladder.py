"""``--precision auto``: every precision that a quantizer has for a target, made, measured, explained; the best is kept.

The walk is ``deploykit.flow.ladder``; here a candidate is what packaging makes of what the quantizer leaves, on
samples that it did not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from deploykit.accuracy.judge.metric import UserMetric, user_metric
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import Goal, goal_for
from deploykit.accuracy.search.output_losses import Reaching
from deploykit.accuracy.search.raising import Raised, WideType
from deploykit.accuracy.simulate.precisions import min_max_encodings, precision_of
from deploykit.backend.backend import SharedWork
from deploykit.encodings.float_sets import find_borders
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import ToolError
from deploykit.flow.candidates import ModelOnSamples, wide_types
from deploykit.flow.choose import ChosenWay, choose_way, run_of
from deploykit.flow.ladder import Ladder, LadderRung, walk
from deploykit.flow.plan import decide
from deploykit.flow.quantizing.choosing import learning_with, pick
from deploykit.flow.quantizing.making import Made, Making
from deploykit.flow.quantizing.making import measure as measure_numbers
from deploykit.flow.quantizing.running import read_held_out
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import load_weights

if TYPE_CHECKING:
    from deploykit.backend.backend import Situation

__all__ = ["Best", "make_best"]

_ORDER = ("w16a16", "w8a16", "w4a16", "w8a8")

_MOST_TRIED = 8
"""Numbers of layers, spread over the order of their sensitivity, that are tried besides those of the bisection."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The ladder, and what was chosen: encodings, or None where float16 is the answer or nothing is good."""

    ladder: Ladder
    made: Made | None


def make_best(
    making: Making, *, given: Situation | None = None, situate: Callable[[Made], Situation] | None = None
) -> Best:
    """Make each precision that the quantizer has for the target, walk the ladder, keep the chosen one.

    With ``situate``, the situation that what was made is packaged in, a candidate is what would be packaged, and one
    that would be refused is not chosen; ``given`` is the float model's own.
    """
    request, target = making.request, making.target
    metric = user_metric(request.metric, request.metric_command, references=request.references)
    goal = goal_for(request.goal, has_metric=metric is not None)
    wides = wide_types(request.target, request.sdk, request.model)
    picked = pick(making.backend, target, request.quantizer, None)
    known = picked.quantizer.precisions(target)
    names = [name for name in _ORDER if name in known]
    has_float = "float16" in wides
    candidates = _Candidates(making, goal, metric=metric, has_float=has_float, given=given, situate=situate)
    ladder = walk(
        [*names[:1], "fp16", *names[1:]] if names else ["fp16"],
        goal,
        measure=candidates.rung,
        mix=candidates.mix,
        wides=wides,
        confirm=candidates.confirmed,
        learning=learning_with(picked, (key.rpartition(".")[2] for key, _ in request.options)),
        tell=making.progress,
    )
    return Best(ladder=ladder, made=candidates.chosen(ladder))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _QuantizedModel:
    """What a quantizer left, opened: its float model (rewritten, mostly) on the held-out samples.

    ``start`` are the entries to go on from: as packaging would change them, where it leaves the graph as it is.
    """

    made: Made
    judged: ModelOnSamples
    start: EncodingSet

    def with_encodings(self, encodings: EncodingSet, precision: str) -> Made:
        """What was made, with other encodings in a file of their own beside the quantizer's, measured anew."""
        made = self.made
        text = convert(encodings, "1.0.0", layouts=layouts(self.judged.facts)).text
        path = made.ran.folder / f"raised-{sha256(text.encode()).hexdigest()[:16]}.encodings"
        path.write_text(text, "utf-8")
        ran = replace(made.ran, encodings=path, qdq=None)
        numbers = measure_numbers(made.model, collect_facts(made.model), ran, self.judged.feeds, seen=made.numbers.seen)
        numbers = replace(numbers, quantizer_db=None, agreement_db=None)
        return replace(made, precision=precision, ran=ran, numbers=numbers)


class _Candidates:
    """Makes candidates and keeps what was made, so that the chosen one need not be made again."""

    def __init__(
        self,
        making: Making,
        goal: Goal,
        *,
        metric: UserMetric | None,
        has_float: bool,
        given: Situation | None,
        situate: Callable[[Made], Situation] | None,
    ) -> None:
        self._making, self._goal, self._metric, self._has_float = making, goal, metric, has_float
        self._given, self._situate, self._tell = given, situate, making.progress
        self._opened: dict[str, _QuantizedModel] = {}

    def rung(self, name: str) -> LadderRung:
        """One candidate; a quantizer that fails is told, and the others go on."""
        if name == "fp16":
            # Every tensor cast, in the model that the first quantizer left: nothing needs to be calibrated for it.
            opened = next(iter(self._opened.values()), None)
            if opened is None:
                return LadderRung(
                    precision="fp16", missing="no quantizer left a model to measure on", runs_here=self._has_float
                )
            judged = opened.judged
            halves = min_max_encodings(judged.exact, judged.facts, precision_of("fp16"))
            rung = LadderRung(precision="fp16", made_by="casts", runs_here=self._has_float)
            if self._given is not None and self._has_float:
                asked = replace(self._given, request=replace(self._given.request, precision="fp16"))
                rung = replace(rung, refused=self._decided(asked, plans=True)[1], on_npu=1.0)
            return replace(judged.measured(rung, halves), borders=0, encodings=None)
        try:
            made = self._making.candidate(name)
            read = load_model(made.ran.model)
            facts, model = collect_facts(read), load_weights(read)
            places, count = made.division.judged_at
            reaching = Reaching(facts, metric=None if self._metric is None else self._metric.of_some(places, count))
            judged = ModelOnSamples(model, facts, read_held_out(made.ran.folder), reaching)
            encodings = read_placed(made.ran.encodings, facts)
        except ToolError as error:
            return LadderRung(precision=name, missing=error.what)
        rung = LadderRung(precision=name, made_by=made.picked.quantizer.id, runs_here=name != "w16a16")
        rung, start = self._measured(rung, judged, made, encodings)
        self._opened[name] = _QuantizedModel(made=made, judged=judged, start=start)
        return rung

    def _measured(
        self, rung: LadderRung, judged: ModelOnSamples, made: Made, encodings: EncodingSet
    ) -> tuple[LadderRung, EncodingSet]:
        """A candidate with its numbers, as it would be packaged where that is asked; and the entries to go on from."""
        if self._situate is None:
            return judged.measured(rung, encodings), encodings
        self._tell(f"deciding how {rung.precision} would be packaged")
        chosen, refused = self._decided(self._situate(made), plans=rung.runs_here)
        situation, won = chosen.situation, chosen.prepared
        reached = judged.reaching.reached([*map(run_of(chosen), judged.feeds)])
        start, own, borders = encodings, situation.encodings, 0
        if won is not None:
            own, borders = won.encodings, won.way.borders
        elif own is not None:
            borders = len(find_borders(situation.facts, own.floats))
        # Entries go on from what packaging chose only where they are still entries of the same graph.
        if own and not (chosen.simplified or situation.rewritten or situation.segments):
            start = own
        on_host = len(won.tail.graph.node) if won is not None and won.tail is not None else 0
        on_npu = len(situation.facts.nodes)
        rung = replace(
            rung, way=chosen.explains, refused=refused, on_npu=on_npu / (on_npu + on_host) if on_npu else 1.0
        )
        return replace(judged.measured(rung, start, reached), borders=borders), start

    def mix(self, base: LadderRung, wide: WideType) -> Raised:
        """The fewest layers of what a quantizer made in a wider type, and a few other numbers of them."""
        opened = self._opened[base.precision]
        judged = opened.judged
        source = InputSource(label=Label.GIVEN, why="the calibration data")
        samples = Samples(feeds=tuple(judged.feeds), of_inputs=dict.fromkeys(judged.exact.graph.inputs, source))
        return judged.mix(opened.start, samples, wide, self._goal, self._tell, more=_MOST_TRIED)

    def confirmed(self, rung: LadderRung) -> LadderRung:
        """A candidate with raised layers, measured as it would be packaged."""
        assert rung.encodings is not None
        opened = self._opened_for(rung)
        made = opened.with_encodings(rung.encodings, rung.precision)
        return replace(self._measured(rung, opened.judged, made, rung.encodings)[0], encodings=rung.encodings)

    def chosen(self, ladder: Ladder) -> Made | None:
        """What the quantizer made, with raised layers where these were chosen."""
        rung = ladder.chosen
        if rung is None or rung.precision == "fp16":
            return None
        if rung.precision in self._opened:
            return self._opened[rung.precision].made
        assert rung.encodings is not None
        return self._opened_for(rung).with_encodings(rung.encodings, rung.precision)

    def _opened_for(self, rung: LadderRung) -> _QuantizedModel:
        return next(found for name, found in self._opened.items() if rung.precision.startswith(f"{name} with"))

    def _decided(self, situation: Situation, *, plans: bool) -> tuple[ChosenWay, str]:
        """The way that packaging takes, decided as it decides; and why it refuses, not asked without ``plans``."""
        backend = self._making.backend
        if not plans:
            return choose_way(backend, situation, SharedWork(), lambda _: None), ""
        decision = decide(backend, situation, SharedWork(), lambda _: None)
        blocking = [] if decision.plan.feasible else [finding for finding in decision.plan.findings if finding.blocks]
        refused = "; ".join(f"{one.code} {one.message}" for one in blocking[:2])
        return decision.chosen, refused if refused or decision.plan.feasible else "no route is open"

"""``--precision auto``: every precision that a quantizer has for a target, made, measured, explained; the best is kept.

The walk is ``deploykit.flow.ladder``; here a candidate is what packaging makes of what the quantizer leaves, on
samples that it did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

from deploykit.accuracy.judge.metric import UserMetric, user_metric
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import Goal, Reached, goal_for
from deploykit.accuracy.search.raising import MOST_SHOWN, Raised, Raiser, WideType
from deploykit.accuracy.search.reaching import Reaching
from deploykit.accuracy.search.sensitivity_analysis import analyze
from deploykit.accuracy.simulate.costs import CostModel
from deploykit.accuracy.simulate.min_max import min_max_encodings, precision_of
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.float_sets import find_borders
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import ToolError
from deploykit.flow.ladder import Ladder, Rung, walk
from deploykit.flow.mixing_layers import wide_types
from deploykit.flow.quantizing.choosing import learning_with, pick
from deploykit.flow.quantizing.delivering import deliver, refused_by
from deploykit.flow.quantizing.making import Made
from deploykit.flow.quantizing.making import measure as measure_numbers
from deploykit.flow.quantizing.running import read_held_out
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import load_weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.backend.backend import AnyBackend, Progress, Request, Situation
    from deploykit.backend.targets import Target
    from deploykit.model.facts import GraphFacts

__all__ = ["AUTO", "Best", "MakeOne", "Packaging", "make_best"]

AUTO = "auto"

_ORDER = ("w16a16", "w8a16", "w4a16", "w8a8")

_MOST_TRIED = 8
"""Numbers of layers, spread over the order of their sensitivity, that are tried besides those of the bisection."""


MakeOne: TypeAlias = Callable[[str], Made]
"""Makes the encodings of one precision; raises ToolError where the quantizer fails."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packaging:
    """How what was made would be packaged: the float model's situation, and one with what a quantizer made."""

    given: Situation
    situate: Callable[[Made], Situation]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The ladder, and what was chosen: encodings, or None where float16 is the answer or nothing is good."""

    ladder: Ladder
    made: Made | None


def make_best(
    request: Request,
    backend: AnyBackend,
    target: Target,
    *,
    make: MakeOne,
    progress: Progress,
    packaging: Packaging | None = None,
) -> Best:
    """Make each precision that the quantizer has for the target, walk the ladder, keep the chosen one.

    With ``packaging`` a candidate is what would be packaged, and one that would be refused is not chosen.
    """
    metric = user_metric(request.metric, request.metric_command, references=request.references)
    goal = goal_for(request.goal, has_metric=metric is not None)
    wides = wide_types(request.target, request.sdk, request.model)
    picked = pick(backend, target, request.quantizer, None)
    known = picked.quantizer.precisions(target)
    names = [name for name in _ORDER if name in known]
    candidates = _Candidates(make, goal, backend, packaging, metric=metric, has_float="float16" in wides, tell=progress)
    ladder = walk(
        [*names[:1], "fp16", *names[1:]] if names else ["fp16"],
        goal,
        measure=candidates.rung,
        mix=candidates.mix,
        wides=wides,
        confirm=candidates.confirmed,
        learning=learning_with(picked, (key.rpartition(".")[2] for key, _ in request.options)),
        tell=progress,
    )
    return Best(ladder=ladder, made=candidates.chosen(ladder))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opened:
    """What a quantizer left, opened: its float model (rewritten, mostly), the encodings on it, the float run.

    ``start`` are the entries to go on from: as packaging would change them, where it leaves the graph as it is.
    """

    made: Made
    model: ModelProto
    facts: GraphFacts
    encodings: EncodingSet
    exact: PartialRuns
    reaching: Reaching
    costs: CostModel
    start: EncodingSet

    def simulated(self, encodings: EncodingSet) -> Reached:
        """What entries on this model reach as they are."""
        simulator = Simulator(self.model, encodings, capture=self.reaching.shown)
        return self.reaching.reached([simulator.run(feed) for feed in self.exact.feeds])


class _Candidates:
    """Makes candidates and keeps what was made, so that the chosen one need not be made again."""

    def __init__(
        self,
        make: MakeOne,
        goal: Goal,
        backend: AnyBackend,
        packaging: Packaging | None,
        *,
        metric: UserMetric | None,
        has_float: bool,
        tell: Progress,
    ) -> None:
        self._make, self._goal, self._backend, self._packaging = make, goal, backend, packaging
        self._metric, self._has_float, self._tell = metric, has_float, tell
        self._opened: dict[str, _Opened] = {}

    def rung(self, name: str) -> Rung:
        """One candidate; a quantizer that fails is told, and the others go on."""
        if name == "fp16":
            return self._float16()
        try:
            opened = _open(self._make(name), self._metric)
        except ToolError as error:
            return Rung(precision=name, missing=error.what)
        rung = Rung(precision=name, made_by=opened.made.picked.quantizer.id, runs_here=name != "w16a16")
        rung, start = self._measured(rung, opened, opened.made, opened.encodings)
        self._opened[name] = replace(opened, start=start)
        return rung

    def _measured(self, rung: Rung, opened: _Opened, made: Made, encodings: EncodingSet) -> tuple[Rung, EncodingSet]:
        """A candidate with its numbers, as it would be packaged where that is asked; and the entries to go on from."""
        if self._packaging is None:
            return self._counted(rung, opened, opened.simulated(encodings), encodings), encodings
        self._tell(f"deciding how {rung.precision} would be packaged")
        situation = self._packaging.situate(made)
        found = deliver(self._backend, situation, plans=rung.runs_here, tell=lambda _: None)
        reached = opened.reaching.reached([found.run(feed) for feed in opened.exact.feeds])
        start = found.encodings or encodings
        rung = replace(rung, way=found.way, refused=found.refused, on_npu=found.on_npu)
        return replace(self._counted(rung, opened, reached, start), borders=found.borders), start

    def _counted(self, rung: Rung, opened: _Opened, reached: Reached, encodings: EncodingSet) -> Rung:
        return replace(
            rung,
            reached=reached,
            cost=opened.costs.cost({entry.name: entry.value for entry in encodings}),
            borders=len(find_borders(opened.facts, encodings.floats)),
            encodings=encodings,
        )

    def _float16(self) -> Rung:
        """Every tensor cast, in the model that the first quantizer left: nothing needs to be calibrated for it."""
        opened = next(iter(self._opened.values()), None)
        if opened is None:
            return Rung(precision="fp16", missing="no quantizer left a model to measure on", runs_here=self._has_float)
        halves = min_max_encodings(opened.exact, opened.facts, precision_of("fp16"))
        rung = Rung(precision="fp16", made_by="casts", runs_here=self._has_float)
        if self._packaging is not None and self._has_float:
            given = self._packaging.given
            asked = replace(given, request=replace(given.request, precision="fp16"))
            rung = replace(rung, refused=refused_by(self._backend, asked, lambda _: None), on_npu=1.0)
        rung = self._counted(rung, opened, opened.simulated(halves), halves)
        return replace(rung, borders=0, encodings=None)

    def mix(self, base: Rung, wide: WideType) -> Raised:
        """The fewest layers of what a quantizer made in a wider type, and a few other numbers of them."""
        opened = self._opened[base.precision]
        source = InputSource(label=Label.GIVEN, why="the calibration data")
        samples = Samples(feeds=tuple(opened.exact.feeds), of_inputs=dict.fromkeys(opened.exact.graph.inputs, source))
        found = analyze(opened.model, opened.facts, samples, encodings=opened.start, tell=self._tell)
        raiser = Raiser(
            opened.model,
            opened.facts,
            opened.start,
            [row.layer for row in found.worst_layers],
            opened.exact.feeds,
            shown=opened.reaching.shown,
            measure=opened.reaching.reached,
            costs=opened.costs,
            tell=self._tell,
        )
        raiser.front([wide], self._goal, most=_MOST_TRIED)
        return replace(raiser.smallest(wide, self._goal), worst=found.worst_layers[:MOST_SHOWN])

    def confirmed(self, rung: Rung) -> Rung:
        """A candidate with raised layers, measured as it would be packaged."""
        assert rung.encodings is not None
        opened = self._opened_for(rung)
        made = _with_encodings(opened, rung.encodings, rung.precision)
        return replace(self._measured(rung, opened, made, rung.encodings)[0], encodings=rung.encodings)

    def chosen(self, ladder: Ladder) -> Made | None:
        """What the quantizer made, with raised layers where these were chosen."""
        rung = ladder.chosen
        if rung is None or rung.precision == "fp16":
            return None
        if rung.precision in self._opened:
            return self._opened[rung.precision].made
        assert rung.encodings is not None
        return _with_encodings(self._opened_for(rung), rung.encodings, rung.precision)

    def _opened_for(self, rung: Rung) -> _Opened:
        return next(found for name, found in self._opened.items() if rung.precision.startswith(f"{name} with"))


def _open(made: Made, metric: UserMetric | None) -> _Opened:
    read = load_model(made.ran.model)
    facts, model = collect_facts(read), load_weights(read)
    places, count = made.division.judged_at
    reaching = Reaching(facts, metric=None if metric is None else metric.of_some(places, count))
    feeds: Sequence[Feed] = read_held_out(made.ran.folder)
    exact = PartialRuns(model, feeds, wanted=reaching.shown)
    reaching.hold(feeds, exact.reference)
    encodings = read_placed(made.ran.encodings, facts)
    return _Opened(
        made=made,
        model=model,
        facts=facts,
        encodings=encodings,
        exact=exact,
        reaching=reaching,
        costs=CostModel(exact, facts),
        start=encodings,
    )


def _with_encodings(opened: _Opened, encodings: EncodingSet, precision: str) -> Made:
    """What was made, with other encodings in a file of their own beside the quantizer's, measured anew."""
    made = opened.made
    text = convert(encodings, "1.0.0", layouts=layouts(opened.facts)).text
    path = made.ran.folder / f"raised-{sha256(text.encode()).hexdigest()[:16]}.encodings"
    path.write_text(text, "utf-8")
    ran = replace(made.ran, encodings=path, qdq=None)
    facts = collect_facts(made.model)
    numbers = measure_numbers(made.model, facts, ran, opened.exact.feeds, seen=made.numbers.seen)
    return replace(made, precision=precision, ran=ran, numbers=replace(numbers, quantizer_db=None, agreement_db=None))

"""The candidates of a ladder, simulated or made by a quantizer, and layers of one model raised to a wider type.

Simulated candidates take their ranges from one part of the data and their numbers from the other, for conclusions
before anything is installed. A quantizer's candidates are packaged for a trial, and the best is kept (``--precision
auto``). The backend says which wide types a target mixes with integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import onnx
from onnx import ModelProto

from deploykit.accuracy.judge.metric import UserMetric, user_metric
from deploykit.accuracy.samples.calibration import load_calibration
from deploykit.accuracy.samples.gathering import InputSource, Samples, gather
from deploykit.accuracy.samples.inputs import Label, input_specs
from deploykit.accuracy.search.goals import Goal, Reached, goal_for
from deploykit.accuracy.search.layer_losses import Budget, Sensitivity, analyze, quantized_question
from deploykit.accuracy.search.output_losses import GoalMeter
from deploykit.accuracy.search.raising import MOST_SHOWN, Raised, Raiser, WideType, wider_layers
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import CostModel, min_max_encodings, precision_of
from deploykit.accuracy.simulate.quantizers import is_simulated
from deploykit.accuracy.simulate.simulation import Simulator, in_float
from deploykit.backend.backend import Request, Same, SharedWork, Situation
from deploykit.backend.plugins import first_offering
from deploykit.encodings.float_sets import find_borders
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import entry_for_range, range_of
from deploykit.encodings.place import layouts
from deploykit.encodings.values import EncodingSet
from deploykit.errors import DeploykitError, InputError, ToolError, UsageError
from deploykit.findings import Findings, exit_status
from deploykit.findings.records import Feeds, Interval, Json, Published, Record, Tell, field, published, replace, silent
from deploykit.flow.choose import ChosenWay, choose_way, run_of
from deploykit.flow.ladder import Ladder, LadderRung, walk
from deploykit.flow.plan import decide
from deploykit.flow.quantizing.choosing import learning_with, pick
from deploykit.flow.quantizing.making import Made, Making, read_decoded, read_held_out
from deploykit.flow.quantizing.making import measure as measure_numbers
from deploykit.flow.read import resolve_target
from deploykit.flow.samples import about_samples, observed_ranges
from deploykit.flow.ways import WIDER_LAYERS
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model
from deploykit.model.weights import lean_weights, load_weights

__all__ = ["Mixed", "SimulatedLadder", "make_asked", "make_best", "mix_files", "simulated_ladder"]

CANDIDATES = ("fp16", "w16a16", "w8a16", "w4a16", "w8a8")
"""The precisions that the workflow page compares, in its order."""
MOST = 16
"""The most samples used of the data: half of them give the ranges, the others are measured on."""


class ModelOnSamples:
    """A float model, run once on the samples that its candidates are measured on."""

    def __init__(self, model: ModelProto, facts: GraphFacts, feeds: Feeds, reaching: GoalMeter) -> None:
        self.model, self.facts, self.feeds, self.reaching = model, facts, feeds, reaching
        self.exact = PartialRuns(model, feeds, wanted=reaching.shown)
        reaching.hold(feeds, self.exact.reference)
        self.costs = CostModel(self.exact, facts)

    def measured(self, rung: LadderRung, encodings: EncodingSet, reached: Reached | None = None) -> LadderRung:
        """The candidate with the cost and the quality of its encodings,
        which are simulated if ``reached`` is not given.
        """
        if reached is None:
            simulator = Simulator(self.model, encodings, capture=self.reaching.shown)
            reached = self.reaching.reached([simulator.run(feed) for feed in self.feeds])
        return replace(
            rung,
            reached=reached,
            cost=self.costs.cost({entry.name: entry.value for entry in encodings}),
            borders=len(find_borders(self.facts, encodings.floats)),
            encodings=encodings,
        )

    def raiser(self, encodings: EncodingSet, found: Sensitivity, tell: Tell) -> Raiser:
        """Makes the raiser of these encodings' layers, in the order of their loss."""
        order = [row.layer for row in found.worst_layers]
        return Raiser(self.model, self.facts, encodings, order, self.feeds, self.reaching, self.costs, tell)

    def mix(
        self, encodings: EncodingSet, samples: Samples, wide: WideType, goal: Goal, tell: Tell, *, more: int = 0
    ) -> Raised:
        """Raises the fewest layers to a wider type; tries ``more`` numbers of layers besides those of the bisection."""
        found = analyze(self.model, self.facts, samples, encodings=encodings, tell=tell)
        raised = self.raiser(encodings, found, tell).smallest(wide, goal, more=more)
        return replace(raised, worst=found.worst_layers[:MOST_SHOWN])


class SimulatedLadder(Published, eq=False):
    """The ladder, and the data it was measured on: ``held_out`` is False if one sample served for ranges and
    numbers.
    """

    ladder: Ladder
    samples: Samples
    seen: int
    measured: int
    held_out: bool
    findings: Findings

    @property
    def exit_status(self) -> int:
        """1 if nothing reaches the goal, or the data does not fit the model; else 0."""
        return exit_status(self.findings) or int(self.ladder.chosen is None)

    def as_published(self) -> Json:
        """The JSON of ``deploykit accuracy ladder MODEL``."""
        samples = {**self.samples.to_json(), **published(self, without=("ladder", "samples", "findings"))}
        return {**self.ladder.to_json(), "samples": samples, "findings": self.findings}


def simulated_ladder(
    model: Path,
    *,
    goal: str | None,
    estimate: bool,
    tell: Tell,
    data: Path | None = None,
    samples: int | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: str | None = None,
    references: Path | None = None,
    lower_is_better: bool = False,
) -> SimulatedLadder:
    """Simulates the candidates of a float model. Raises InputError for a model that is already quantized.

    Without a ``goal`` the usual one holds. With ``estimate`` each candidate is compiled for the target, if a compiler
    runs here, to estimate its time.
    """
    if estimate and target is None:
        raise UsageError("--estimate without --target", next="name the device whose compiler is asked: --target sm8650")
    own = user_metric(metric, references=references)
    read = load_model(model)
    facts = collect_facts(read)
    if facts.is_qdq:
        raise InputError(f"{model}: holds Q/DQ nodes already", next="give the float model")
    proto, facts, _ = in_float(lean_weights(read), facts)
    made = gather(proto, facts, calibration=data, most=samples or MOST)
    wides = wide_types(target, sdk, model)
    wanted = goal_for(goal, has_metric=own is not None, may_judge=made.may_judge, lower_is_better=lower_is_better)
    feeds = made.varied
    # Every other sample gives the ranges, the others are measured on; a single sample serves for both.
    seen, measured = (feeds[::2], feeds[1::2]) if len(feeds) > 1 else (feeds, feeds)
    if own is not None and len(feeds) > 1:
        own = own.of_some(range(1, len(feeds), 2), len(feeds))
    reaching = GoalMeter(facts, label=made.label, metric=own)

    @cache
    def ranges() -> PartialRuns:
        return PartialRuns(proto, seen, wanted=list(facts.outputs))

    @cache
    def judged() -> ModelOnSamples:
        return ModelOnSamples(proto, facts, measured, reaching)

    timed = _timer(Request(model=model, target=str(target), sdk=sdk), proto, tell) if estimate else lambda rung: rung

    def rung(name: str) -> LadderRung:
        """Measures one candidate; one that cannot be simulated says why."""
        rung = LadderRung(name, runs_here=name != "w16a16" and (name != "fp16" or "float16" in wides))
        try:
            encodings = min_max_encodings(ranges(), facts, precision_of(name))
            rung = judged().measured(replace(rung, made_by="ranges of the data (deploykit)"), encodings)
        except DeploykitError as error:
            return replace(rung, missing=error.why or error.what)
        return timed(replace(rung, borders=0) if name == "fp16" else rung)

    findings: Findings = ()
    if data is not None and made.label is Label.GIVEN:
        about = load_calibration(data, input_specs(facts))
        findings = about_samples(read, facts, about, made.feeds, available=made.available, gives_ranges=True)

    def mix(base: LadderRung, wide: WideType) -> Raised:
        assert base.encodings is not None
        return judged().mix(base.encodings, made, wide, wanted, tell)

    return SimulatedLadder(
        ladder=walk(CANDIDATES, wanted, measure=rung, mix=mix, wides=wides, confirm=timed, tell=tell),
        samples=made,
        seen=len(seen),
        measured=len(measured),
        held_out=len(feeds) > 1,
        findings=findings,
    )


def _timer(request: Request, model: ModelProto, tell: Tell) -> Callable[[LadderRung], LadderRung]:
    """Adds the estimated time of a compiler to a candidate that may win. Raises ToolError if no compiler runs here."""
    compiler = first_offering("time_us")
    if compiler is None:
        raise ToolError("--estimate: no compiler runs here", next="'deploykit doctor' says what is missing")
    device = resolve_target(request)[1].device

    def timed(rung: LadderRung) -> LadderRung:
        if not rung.may_win:
            return rung
        tell(f"compiling {rung.precision}")
        made = model
        if rung.precision != "fp16" and rung.encodings is not None:
            made = insert_qdq(model, rung.encodings).model
        return replace(rung, time_us=compiler.time_us(made.SerializeToString(), device, tell))

    return timed


class Mixed(Published):
    """The raised encodings as the ``text`` of a file, and how they were found."""

    raised: Raised
    sensitivity: Sensitivity
    text: str

    def as_published(self) -> Json:
        """The JSON of ``deploykit accuracy ladder --raise``."""
        order = [row.layer.name for row in self.sensitivity.worst_layers]
        samples = {**self.sensitivity.samples.to_json(), "used": self.sensitivity.used}
        return {**self.raised.to_json(), "order": order, "samples": samples}


def mix_files(
    model: Path,
    *,
    goal: str,
    to: str | None,
    target: str | None = None,
    sdk: str | None = None,
    metric: str | None = None,
    references: Path | None = None,
    lower_is_better: bool = False,
    tell: Tell,
    **asked: Any,
) -> Mixed:
    """Raises layers of a model in files to a wider type; ``asked`` are the arguments of ``quantized_question``.

    Raises UsageError for a type that the target does not mix.
    """
    own = user_metric(metric, references=references)
    wanted = goal_for(goal, has_metric=own is not None, lower_is_better=lower_is_better)
    wides = wide_types(target, sdk, model)
    if not wides:
        raise UsageError(f"{target}: mixes no precisions by encodings", next="its own --precision mixed may do it")
    wide = next((wide for wide in wides if to in (None, wide)), None)
    if wide is None:
        raise UsageError(f"--to {to}: {target} does not mix it with integers", next=f"it mixes {', '.join(wides)}")
    given = quantized_question(model, **asked)
    encodings = given.encodings
    if encodings is None:
        runs = PartialRuns(given.model, given.samples.varied, wanted=list(given.facts.outputs))
        encodings = min_max_encodings(runs, given.facts, precision_of(asked["precision"]))
    found = analyze(given.model, given.facts, given.samples, encodings=encodings, budget=Budget(), tell=tell)
    reaching = GoalMeter(given.facts, label=given.samples.label, metric=own)
    judged = ModelOnSamples(given.model, given.facts, given.samples.varied[: found.used], reaching)
    raised = judged.raiser(encodings, found, tell).smallest(wide, wanted)
    return Mixed(
        raised=raised,
        sensitivity=found,
        text=convert(raised.encodings, "1.0.0", layouts=layouts(given.facts)).text,
    )


def wide_types(target: str | None, sdk: str | None, model: Path) -> tuple[WideType, ...]:
    """The wide types that the target's tools mix with integers, float16 first as it holds more; all without a target.

    Empty for a backend that takes no encodings.
    """
    if target is None:
        return get_args(WideType)
    backend, resolved = resolve_target(Request(model=model, target=target, sdk=sdk))
    support = backend.mixed_support(resolved, {})
    if support is None:
        return ()
    return ("float16", "int16") if support.has_float16 else ("int16",)


_ORDER = ("w16a16", "w8a16", "w4a16", "w8a8")
_MOST_TRIED = 8
"""How many numbers of layers, in the order of sensitivity, are tried besides those of the bisection."""


def make_best(making: Making, situate: Callable[[Made], Situation] | None = None) -> tuple[Made | None, Ladder]:
    """Makes each precision that the quantizer has for the target, walks the ladder, and keeps the chosen one.

    The first value is None if float16 is chosen or nothing is good. ``situate`` gives the situation in which a
    candidate is packaged; with it, candidates are measured as packaged, and one that would be refused is not chosen.
    """
    request, target = making.given.request, making.given.target
    metric = user_metric(request.metric, references=request.references)
    goal = goal_for(request.goal, has_metric=metric is not None)
    wides = wide_types(request.target, request.sdk, request.model)
    picked = pick(making.backend, target, request.quantizer, None)
    known = picked.quantizer.precisions(target)
    names = [name for name in _ORDER if name in known]
    candidates = _Candidates(making=making, goal=goal, metric=metric, has_float="float16" in wides, situate=situate)
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
    made = None if ladder.chosen is None else candidates.made.get(ladder.chosen.precision)
    return made and _taking_in(made), ladder


_FINE_DB = 30.0


def make_asked(making: Making) -> Made:
    """Makes the requested precision; if 8-bit activations lose too much, the fewest layers get 16 bits."""
    request = making.given.request
    made = making.encodings(request.precision)
    wider = made.precision.endswith("a8") and WIDER_LAYERS not in request.no_rewrite
    wider = wider and "int16" in wide_types(request.target, request.sdk, request.model)

    def finished() -> Made:
        fine = made.numbers.sqnr_db >= _FINE_DB and not made.numbers.verdict.is_short
        return _taking_in(_widened(made, making.progress) if wider and not fine else made)

    return replace(making.shared.once((WIDER_LAYERS, wider, Same(made.ran)), finished), target=made.target)


_AMPLE_DB, _CUT_OFF_DB = 40.0, 3.0
"""The limits for taking in held-out samples: below the first, and with so much gain. Observed: over
ten drawings of the samples of 28 small models everything taken in was better in 74 of 280 and worse
in 44, with these limits in 29 of 47 and in 8.
"""


def _taking_in(made: Made) -> Made:
    """Widens ranges to hold the held-out samples too, if cutting them off costs as much as everything else does.

    Their earlier verdict is kept, as no other samples were judged on.
    """
    before = made.numbers.sqnr_db
    if before >= _AMPLE_DB or made.picked.quantizer.whole_ranges not in made.options.items():
        return made
    read, facts, encodings = made.ran.read()
    moving = (name for name, fact in facts.tensors.items() if not fact.is_weight)
    known = {name: ends for name in moving if (ends := range_of(encodings.get(name)))}
    wider = dict[Interval, Interval]()  # tensors that share a grid keep sharing it
    for name, (low, high) in observed_ranges(load_weights(read), known, read_held_out(made.ran.folder)).items():
        least, most = wider.get(known[name], known[name])
        wider[known[name]] = min(least, low), max(most, high)
    grown = ((name, wider.get(ends, ends)) for name, ends in known.items())  # no result without values
    changed = (entry_for_range(name, encodings, *ends) for name, ends in grown if ends != known[name])
    found = _with_encodings(made, facts, encodings.with_entries(changed))
    after = found.numbers.sqnr_db
    since = f"; ranges have taken these in since, for {after:.1f} dB on them"
    return replace(found, numbers=replace(made.numbers, since=since)) if after > before + _CUT_OFF_DB else made


def _widened(made: Made, tell: Tell) -> Made:
    read, facts, encodings = made.ran.read()
    feeds = read_decoded(made.ran.folder, MOST)
    found = wider_layers(load_weights(read), facts, encodings, feeds, "int16", tell=tell)
    if found is None or not found.words:
        return made
    told = found.words.format("16-bit activations")
    return _with_encodings(made, facts, found.encodings, widened=f"{told}, of {len(feeds)} samples")


def _with_encodings(made: Made, facts: GraphFacts, encodings: EncodingSet, **changes: str) -> Made:
    """Writes other encodings to a file beside the quantizer's, and measures them anew.

    Not those of int32 biases: their scale is that of the input times the weight's, and follows from what was changed.
    """
    kept = {entry.name for entry in encodings if is_simulated(entry.value)}
    encodings = encodings.only(kept | encodings.float_tensors)
    text = convert(encodings, "1.0.0", layouts=layouts(facts)).text
    path = made.ran.folder / f"raised-{sha256(text.encode()).hexdigest()[:16]}.encodings"
    path.write_text(text, "utf-8")
    qdq = made.ran.qdq and path.with_suffix(".onnx")
    if qdq:
        onnx.save(insert_qdq(load_weights(load_model(made.ran.model)), encodings, bias="int32").model, qdq)
    ran, feeds = replace(made.ran, encodings=path, qdq=qdq), read_held_out(made.ran.folder)
    numbers = measure_numbers(made.model, collect_facts(made.model), ran, feeds, seen=made.numbers.seen)
    numbers = replace(numbers, quantizer_db=None, agreement_db=None)
    return replace(made, ran=ran, numbers=numbers, **changes)


class _Candidates(Record):
    """Makes candidates and keeps them, so that the chosen one need not be made again.

    ``opened`` holds a quantizer's result: its float model (mostly rewritten) on the held-out samples, and the entries
    to continue with, as packaging would change them if it leaves the graph as it is.
    """

    making: Making
    goal: Goal
    metric: UserMetric | None
    has_float: bool
    situate: Callable[[Made], Situation] | None
    opened: dict[str, tuple[ModelOnSamples, EncodingSet]] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)

    def rung(self, name: str) -> LadderRung:
        """Measures one candidate; a quantizer's failure is reported, and the other candidates continue."""
        if name == "fp16":
            # The model that the first quantizer left, with every tensor cast: this needs no calibration.
            opened = next(iter(self.opened.values()), None)
            if opened is None:
                return LadderRung("fp16", missing="no quantizer left a model to measure on", runs_here=self.has_float)
            judged, _ = opened
            halves = min_max_encodings(judged.exact, judged.facts, precision_of("fp16"))
            rung = LadderRung("fp16", made_by="casts", runs_here=self.has_float)
            if self.situate is not None and self.has_float:
                given = self.making.given
                asked = replace(given, request=replace(given.request, precision="fp16"))
                rung = replace(rung, refused=self._decided(asked, plans=True)[1], on_npu=1.0)
            return replace(judged.measured(rung, halves), borders=0, encodings=None)
        try:
            made = self.making.candidate(name)
            read, facts, encodings = made.ran.read()
            places, count = made.division.judged_at
            reaching = GoalMeter(facts, metric=None if self.metric is None else self.metric.of_some(places, count))
            judged = ModelOnSamples(load_weights(read), facts, read_held_out(made.ran.folder), reaching)
        except ToolError as error:
            return LadderRung(name, missing=error.what)
        rung = LadderRung(name, made_by=made.picked.quantizer.id, runs_here=name != "w16a16")
        rung, start = self._measured(rung, judged, made, encodings)
        self.opened[name], self.made[name] = (judged, start), made
        return rung

    def _measured(
        self, rung: LadderRung, judged: ModelOnSamples, made: Made, encodings: EncodingSet
    ) -> tuple[LadderRung, EncodingSet]:
        """The candidate with its numbers, as packaged if ``situate`` is given, and the entries to continue with."""
        if self.situate is None:
            return judged.measured(rung, encodings), encodings
        self.making.progress(f"deciding how {rung.precision} would be packaged")
        chosen, refused = self._decided(self.situate(made), plans=rung.runs_here)
        situation, won = chosen.situation, chosen.explored.winner
        reached = judged.reaching.reached(run_of(chosen, judged.feeds))
        start, own, borders = encodings, situation.encodings, 0
        if won is not None:
            own, borders = won.encodings, won.way.borders
        elif own is not None:
            borders = len(find_borders(situation.facts, own.floats))
        # The packaged entries are used further only if they belong to the same graph.
        if own and not (chosen.simplified or situation.rewritten or situation.segments):
            start = own
        on_host = len(won.tail.graph.node) if won is not None and won.tail is not None else 0
        on_npu = len(situation.facts.nodes)
        rung = replace(
            rung, way=chosen.explains, refused=refused, on_npu=on_npu / (on_npu + on_host) if on_npu else 1.0
        )
        return replace(judged.measured(rung, start, reached), borders=borders), start

    def mix(self, base: LadderRung, wide: WideType) -> Raised:
        """Raises the fewest layers of a quantizer's result to a wider type, and tries a few other numbers of layers."""
        judged, start = self.opened[base.precision]
        source = InputSource(Label.GIVEN, "the calibration data")
        samples = Samples(tuple(judged.feeds), dict.fromkeys(judged.exact.graph.inputs, source))
        return judged.mix(start, samples, wide, self.goal, self.making.progress, more=_MOST_TRIED)

    def confirmed(self, rung: LadderRung) -> LadderRung:
        """Measures a candidate with raised layers as it would be packaged."""
        assert rung.encodings is not None
        name = next(name for name in self.opened if rung.precision.startswith(f"{name} with"))
        judged, _ = self.opened[name]
        made = _with_encodings(self.made[name], judged.facts, rung.encodings, precision=rung.precision)
        self.made[rung.precision] = made
        return replace(self._measured(rung, judged, made, rung.encodings)[0], encodings=rung.encodings)

    def _decided(self, situation: Situation, *, plans: bool) -> tuple[ChosenWay, str]:
        """The way that packaging would take; with ``plans`` also the reason why it refuses, else ""."""
        backend = self.making.backend
        if not plans:
            return choose_way(backend, situation, SharedWork(), silent), ""
        decision = decide(backend, situation, SharedWork(), silent)
        blocking = [finding for finding in decision.plan.findings if finding.blocks]
        return decision.chosen, "; ".join(f"{one.code} {one.message}" for one in blocking[:2])

"""The candidates of a ladder on deploykit's own simulation, and layers of one model raised to a wider type.

Ranges come from one part of the data and numbers from the other: for conclusions before anything is installed. Which
wide types a target mixes with integers is asked of its backend. It packages nothing and runs no quantizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from deploykit.accuracy.judge.metric import UserMetric
from deploykit.accuracy.samples.calibration import load_calibration
from deploykit.accuracy.samples.gathering import Samples, gather
from deploykit.accuracy.samples.inputs import Label, input_specs
from deploykit.accuracy.search.goals import Goal, Reached, goal_for
from deploykit.accuracy.search.layer_losses import Budget, Sensitivity, analyze, quantized_question
from deploykit.accuracy.search.output_losses import Reaching
from deploykit.accuracy.search.raising import MOST_SHOWN, Raised, Raiser, RaiseTrial, WideType
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import CostModel, min_max_encodings, precision_of
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.backend.backend import Request
from deploykit.backend.plugins import load_backends
from deploykit.encodings.float_sets import find_borders
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.place import layouts
from deploykit.encodings.values import EncodingSet
from deploykit.errors import DeploykitError, InputError, ToolError, UsageError
from deploykit.findings import Finding, exit_status
from deploykit.flow.ladder import Ladder, LadderRung, walk
from deploykit.flow.read import resolve_target
from deploykit.flow.samples import about_samples
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.model.facts import GraphFacts

__all__ = ["CANDIDATES", "Mixed", "ModelOnSamples", "SimulatedLadder", "mix_files", "simulated_ladder", "wide_types"]

CANDIDATES = ("fp16", "w16a16", "w8a16", "w4a16", "w8a8")
"""What the workflow page compares, in its order."""

MOST = 16
"""Samples that are taken of the data: half of them give the ranges, the others are measured on."""

Tell = Callable[[str], None]


class ModelOnSamples:
    """A float model, run once on the samples that its candidates are measured on."""

    def __init__(self, model: ModelProto, facts: GraphFacts, feeds: Sequence[Feed], reaching: Reaching) -> None:
        self.model, self.facts, self.feeds, self.reaching = model, facts, feeds, reaching
        self.exact = PartialRuns(model, feeds, wanted=reaching.shown)
        reaching.hold(feeds, self.exact.reference)
        self.costs = CostModel(self.exact, facts)

    def measured(self, rung: LadderRung, encodings: EncodingSet, reached: Reached | None = None) -> LadderRung:
        """A candidate with what its encodings cost and reach, in the simulation unless that is known."""
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
        """Raises layers of these encodings in the order of what they cost."""
        return Raiser(
            self.model,
            self.facts,
            encodings,
            [row.layer for row in found.worst_layers],
            self.feeds,
            shown=self.reaching.shown,
            measure=self.reaching.reached,
            costs=self.costs,
            tell=tell,
        )

    def mix(
        self, encodings: EncodingSet, samples: Samples, wide: WideType, goal: Goal, tell: Tell, *, more: int = 0
    ) -> Raised:
        """The fewest layers in a wider type; ``more`` numbers of layers are tried besides those of the bisection."""
        found = analyze(self.model, self.facts, samples, encodings=encodings, tell=tell)
        raiser = self.raiser(encodings, found, tell)
        if more:
            raiser.front([wide], goal, most=more)
        return replace(raiser.smallest(wide, goal), worst=found.worst_layers[:MOST_SHOWN])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedLadder:
    """The ladder, and the data it was walked on: ``held_out`` is False where one sample had to serve for both."""

    ladder: Ladder
    samples: Samples
    seen: int
    measured: int
    held_out: bool
    findings: tuple[Finding, ...] = ()

    @property
    def exit_status(self) -> int:
        """1 where nothing reaches the goal, or the data does not fit the model; else 0."""
        return exit_status(self.findings) or int(self.ladder.chosen is None)

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy ladder MODEL --json``."""
        samples = {**self.samples.to_json(), "seen": self.seen, "measured": self.measured, "held_out": self.held_out}
        findings = [finding.to_json() for finding in self.findings]
        return {**self.ladder.to_json(), "samples": samples, "findings": findings}


def simulated_ladder(
    model: Path,
    *,
    goal: str | None = None,
    lower_is_better: bool = False,
    data: Path | None = None,
    samples: int | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: UserMetric | None = None,
    estimate: bool = False,
    tell: Tell = lambda _: None,
) -> SimulatedLadder:
    """Raises InputError for a model that is quantized already; without a ``goal`` what is usual is asked.

    With ``estimate`` each candidate is compiled for the target, where a compiler runs here, for the time it takes.
    """
    if estimate and target is None:
        raise UsageError("--estimate without --target", next="name the device whose compiler is asked: --target sm8650")
    read = load_model(model)
    facts = collect_facts(read)
    if facts.is_qdq:
        raise InputError(f"{model}: holds Q/DQ nodes already", next="give the float model")
    proto = lean_weights(read)
    made = gather(proto, facts, calibration=data, most=samples or MOST)
    wides = wide_types(target, sdk, model)
    wanted = goal_for(goal, has_metric=metric is not None, may_judge=made.may_judge, lower_is_better=lower_is_better)
    feeds = made.varied
    # Every other sample gives the ranges, the others are measured on; a single one serves for both.
    seen, measured = (feeds[::2], feeds[1::2]) if len(feeds) > 1 else (feeds, feeds)
    if metric is not None and len(feeds) > 1:
        metric = metric.of_some(range(1, len(feeds), 2), len(feeds))
    reaching = Reaching(facts, label=made.label, metric=metric)

    @cache
    def ranges() -> PartialRuns:
        return PartialRuns(proto, seen, wanted=list(facts.outputs))

    @cache
    def judged() -> ModelOnSamples:
        return ModelOnSamples(proto, facts, measured, reaching)

    def rung(name: str) -> LadderRung:
        """One candidate; what cannot be simulated says why."""
        rung = LadderRung(precision=name, runs_here=name != "w16a16" and (name != "fp16" or "float16" in wides))
        try:
            encodings = min_max_encodings(ranges(), facts, precision_of(name))
            rung = judged().measured(replace(rung, made_by="ranges of the data (deploykit)"), encodings)
        except DeploykitError as error:
            return replace(rung, missing=error.why or error.what)
        return replace(rung, borders=0) if name == "fp16" else rung

    findings: tuple[Finding, ...] = ()
    if data is not None and made.label is Label.GIVEN:
        about = load_calibration(data, input_specs(facts))
        findings = about_samples(read, facts, about, made.feeds, available=made.available, gives_ranges=True)

    def mix(base: LadderRung, wide: WideType) -> Raised:
        assert base.encodings is not None
        return judged().mix(base.encodings, made, wide, wanted, tell)

    ladder = walk(CANDIDATES, wanted, measure=rung, mix=mix, wides=wides, tell=tell)
    if estimate:
        ladder = ladder.timed(_timer(Request(model=model, target=str(target), sdk=sdk), proto, tell))
    return SimulatedLadder(
        ladder=ladder,
        samples=made,
        seen=len(seen),
        measured=len(measured),
        held_out=len(feeds) > 1,
        findings=findings,
    )


def _timer(request: Request, model: ModelProto, tell: Tell) -> Callable[[LadderRung], float | None]:
    """What a compiler that runs here estimates for one candidate; ToolError where there is none."""
    compiler = next((known for known in load_backends() if known.offers("preflight")), None)
    if compiler is None:
        raise ToolError("--estimate: no compiler runs here", next="'deploykit doctor' says what is missing")
    device = resolve_target(request)[1].device

    def timed(rung: LadderRung) -> float | None:
        tell(f"compiling {rung.precision}")
        made = model
        if rung.precision != "fp16" and rung.encodings is not None:
            made = insert_qdq(model, rung.encodings).model
        told = compiler.preflight(made.SerializeToString(), device, tell)
        if not told["available"]:
            raise ToolError(
                "--estimate: no compiler runs here",
                why=str(told["why"]),
                next="'deploykit doctor' says what is missing",
            )
        time = told.get("time_us")
        return None if time is None else float(time)

    return timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """The raised encodings as a file's ``text``, how they were found, and the front where one was asked for."""

    raised: Raised
    sensitivity: Sensitivity
    text: str
    front: tuple[RaiseTrial, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy ladder --raise --json``."""
        order = [row.layer.name for row in self.sensitivity.worst_layers]
        samples = {**self.sensitivity.samples.to_json(), "used": self.sensitivity.used}
        return {
            **self.raised.to_json(),
            "order": order,
            "samples": samples,
            "front": [trial.to_json() for trial in self.front],
        }


def mix_files(
    model: Path,
    *,
    goal: Goal,
    to: str | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: UserMetric | None = None,
    front: bool = False,
    tell: Tell = lambda _: None,
    **asked: Any,
) -> Mixed:
    """Lite mixed precision for files; ``asked`` is what ``quantized_question`` takes.

    Raises UsageError for a type that the target does not mix.
    """
    if goal.needs_metric and metric is None:
        raise UsageError(f"--goal {goal}: asks about a measure", next="give --metric or --metric-command")
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
    reaching = Reaching(given.facts, label=given.samples.label, metric=metric)
    judged = ModelOnSamples(given.model, given.facts, given.samples.varied[: found.used], reaching)
    raiser = judged.raiser(encodings, found, tell)
    raised = raiser.smallest(wide, goal)
    return Mixed(
        raised=raised,
        sensitivity=found,
        text=convert(raised.encodings, "1.0.0", layouts=layouts(given.facts)).text,
        front=raiser.front(wides, goal) if front else (),
    )


def wide_types(target: str | None, sdk: str | None, model: Path) -> tuple[WideType, ...]:
    """What the target's tools mix with integers, float16 first since it holds more; everything without a target.

    Nothing for a backend that takes no encodings.
    """
    if target is None:
        return get_args(WideType)
    backend, resolved = resolve_target(Request(model=model, target=target, sdk=sdk))
    support = backend.mixed_support(resolved, {})
    if support is None:
        return ()
    return ("float16", "int16") if support.kinds & {"fallback", "segments"} else ("int16",)

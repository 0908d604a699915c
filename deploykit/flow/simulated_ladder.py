"""The ladder on deploykit's own simulation: ranges from one part of the data, measured on the other.

For conclusions before anything is installed; who packages lets a quantizer make the encodings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.metric import UserMetric
from deploykit.accuracy.samples.calibration import load_calibration
from deploykit.accuracy.samples.gathering import Samples, gather
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import Goal, goal_for
from deploykit.accuracy.search.raising import MOST_SHOWN, Raised, Raiser, WideType
from deploykit.accuracy.search.reaching import Reaching
from deploykit.accuracy.search.sensitivity_analysis import analyze
from deploykit.accuracy.simulate.costs import CostModel
from deploykit.accuracy.simulate.min_max import min_max_encodings, precision_of
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.float_sets import find_borders
from deploykit.errors import DeploykitError, InputError
from deploykit.findings import Finding, exit_status
from deploykit.flow.ladder import Ladder, Rung, walk
from deploykit.flow.mixing_layers import wide_types
from deploykit.flow.samples import about_samples
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.model.facts import GraphFacts

__all__ = ["CANDIDATES", "SimulatedLadder", "simulated_ladder"]

CANDIDATES = ("fp16", "w16a16", "w8a16", "w4a16", "w8a8")
"""What the workflow page compares, in its order."""

MOST = 16
"""Samples that are taken of the data: half of them give the ranges, the others are measured on."""


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
    tell: Callable[[str], None] = lambda _: None,
) -> SimulatedLadder:
    """Raises InputError for a model that is quantized already; without a ``goal`` what is usual is asked."""
    read = load_model(model)
    facts = collect_facts(read)
    if facts.is_qdq:
        raise InputError(f"{model}: holds Q/DQ nodes already", next="give the float model")
    proto = lean_weights(read)
    made = gather(proto, facts, calibration=data, most=samples or MOST)
    wides = wide_types(target, sdk, model)
    wanted = goal_for(goal, has_metric=metric is not None, may_judge=made.may_judge, lower_is_better=lower_is_better)
    measurer = _Measurer(proto, facts, made, metric, wanted, tell, has_float="float16" in wides)
    findings: tuple[Finding, ...] = ()
    if data is not None and made.label is Label.GIVEN:
        about = load_calibration(data)
        findings = about_samples(read, facts, about, made.feeds, available=made.available, gives_ranges=True)
    ladder = walk(CANDIDATES, wanted, measure=measurer.rung, mix=measurer.mix, wides=wides, tell=tell)
    return SimulatedLadder(
        ladder=ladder,
        samples=made,
        seen=len(measurer.seen),
        measured=len(measurer.judged),
        held_out=measurer.judged is not measurer.seen,
        findings=findings,
    )


class _Measurer:
    """Makes and measures one candidate after the other; the float runs are kept."""

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        samples: Samples,
        metric: UserMetric | None,
        goal: Goal,
        tell: Callable[[str], None],
        *,
        has_float: bool,
    ) -> None:
        self._model, self._facts, self._samples = model, facts, samples
        self._goal, self._tell, self._has_float = goal, tell, has_float
        feeds = samples.varied
        self.seen: Sequence[Feed] = feeds[::2] if len(feeds) > 1 else feeds
        self.judged: Sequence[Feed] = feeds[1::2] if len(feeds) > 1 else self.seen
        if metric is not None and self.judged is not self.seen:
            metric = metric.of_some(range(1, len(feeds), 2), len(feeds))
        self._reaching = Reaching(facts, label=samples.label, metric=metric)

    @cached_property
    def _ranges(self) -> PartialRuns:
        return PartialRuns(self._model, self.seen, wanted=list(self._facts.outputs))

    @cached_property
    def _exact(self) -> PartialRuns:
        runs = PartialRuns(self._model, self.judged, wanted=self._reaching.shown)
        self._reaching.hold(self.judged, runs.reference)
        return runs

    @cached_property
    def _costs(self) -> CostModel:
        return CostModel(self._exact, self._facts)

    def rung(self, name: str) -> Rung:
        """One candidate; what cannot be simulated says why."""
        made_by = "ranges of the data (deploykit)"
        runs_here = name != "w16a16" and (name != "fp16" or self._has_float)
        try:
            encodings = min_max_encodings(self._ranges, self._facts, precision_of(name))
            cost = self._costs.cost({entry.name: entry.value for entry in encodings})
            simulator = Simulator(self._model, encodings, capture=self._reaching.shown)
            reached = self._reaching.reached([simulator.run(feed) for feed in self.judged])
        except DeploykitError as error:
            return Rung(precision=name, missing=error.why or error.what, runs_here=runs_here)
        return Rung(
            precision=name,
            reached=reached,
            cost=cost,
            borders=len(find_borders(self._facts, encodings.floats)) if name != "fp16" else 0,
            made_by=made_by,
            runs_here=runs_here,
            encodings=encodings,
        )

    def mix(self, base: Rung, wide: WideType) -> Raised:
        """The fewest layers of a candidate in a wider type."""
        assert base.encodings is not None
        found = analyze(self._model, self._facts, self._samples, encodings=base.encodings, tell=self._tell)
        raiser = Raiser(
            self._model,
            self._facts,
            base.encodings,
            [row.layer for row in found.worst_layers],
            self.judged,
            shown=self._reaching.shown,
            measure=self._reaching.reached,
            costs=self._costs,
            tell=self._tell,
        )
        return replace(raiser.smallest(wide, self._goal), worst=found.worst_layers[:MOST_SHOWN])

"""``--precision auto``: every precision that a quantizer has for a target, made, measured, explained; the best is kept.

The walk is ``deploykit.deciding.ladder``; here a candidate is what the quantizer leaves, on samples it did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from deploykit.deciding.ladder import Ladder, Rung, walk
from deploykit.deciding.mixing_layers import wide_types
from deploykit.deciding.quantizing.choosing import pick
from deploykit.deciding.quantizing.making import Made
from deploykit.deciding.quantizing.numbers import measure as measure_numbers
from deploykit.deciding.quantizing.samples import read_held_out
from deploykit.encodings.conversion import convert
from deploykit.encodings.values import EncodingSet
from deploykit.errors import ToolError
from deploykit.graph import load_model
from deploykit.graph.collect import collect_facts
from deploykit.graph.weights import load_weights
from deploykit.numerics.costs import CostModel
from deploykit.numerics.goals import Reached, parse_goal
from deploykit.numerics.min_max import min_max_encodings, precision_of
from deploykit.numerics.output_losses import OutputLosses
from deploykit.numerics.partial_runs import PartialRuns
from deploykit.numerics.raising import Raised, Raiser, WideType
from deploykit.numerics.samples.gathering import InputSource, Samples
from deploykit.numerics.samples.labels import Label
from deploykit.numerics.sensitivity_analysis import analyze
from deploykit.numerics.simulation import Simulator
from deploykit.quantization.borders import find_borders
from deploykit.quantization.placed_encodings import read_placed
from deploykit.quantization.placement import layouts

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.contract.backend import AnyBackend, Progress, Request
    from deploykit.contract.targets import Target
    from deploykit.graph.facts import GraphFacts
    from deploykit.numerics.sessions import Feed

__all__ = ["AUTO", "GOAL", "Best", "MakeOne", "make_best"]

AUTO = "auto"
GOAL = "sqnr>=30"
"""What is asked for where nobody says a goal."""

_ORDER = ("w16a16", "w8a16", "w4a16", "w8a8")


class MakeOne(Protocol):
    """Makes the encodings of one precision."""

    def __call__(self, precision: str) -> Made:
        """Raises ToolError where the quantizer fails."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The ladder, and what was chosen: encodings, or None where float16 is the answer or nothing is good."""

    ladder: Ladder
    made: Made | None


def make_best(
    request: Request, backend: AnyBackend, target: Target, *, goal: str | None, make: MakeOne, progress: Progress
) -> Best:
    """Make each precision that the quantizer has for the target, walk the ladder, keep the chosen one."""
    wides = wide_types(request.target, request.sdk, request.model)
    known = pick(backend, target, request.quantizer, None).quantizer.precisions(target)
    names = [name for name in _ORDER if name in known]
    candidates = _Candidates(make, has_float="float16" in wides)
    wanted = parse_goal(goal or GOAL)
    ladder = walk(
        [*names[:1], "fp16", *names[1:]] if names else ["fp16"],
        wanted,
        measure=candidates.rung,
        mix=lambda base, wide: candidates.mix(base, wide, ladder_goal=str(goal or GOAL), tell=progress),
        wides=wides,
        tell=progress,
    )
    return Best(ladder=ladder, made=candidates.chosen(ladder))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opened:
    """What a quantizer left, opened: its float model (rewritten, mostly), the encodings on it, the float run."""

    made: Made
    model: ModelProto
    facts: GraphFacts
    encodings: EncodingSet
    exact: PartialRuns
    losses: OutputLosses

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(name for name in self.losses.shown if self.facts.producer_of(name) is not None)

    def reached(self, runs: Sequence[Any]) -> Reached:
        return Reached(sqnr_db=self.losses.loss(runs).db)


class _Candidates:
    """Makes candidates and keeps what was made, so that the chosen one need not be made again."""

    def __init__(self, make: MakeOne, *, has_float: bool) -> None:
        self._make = make
        self._has_float = has_float
        self._opened: dict[str, _Opened] = {}

    def rung(self, name: str) -> Rung:
        """One candidate; a quantizer that fails is told, and the others go on."""
        if name == "fp16":
            return self._float16()
        try:
            opened = _open(self._make(name))
        except ToolError as error:
            return Rung(precision=name, missing=error.what)
        self._opened[name] = opened
        values = {entry.name: entry.value for entry in opened.encodings}
        return Rung(
            precision=name,
            reached=_reached(opened, opened.encodings),
            cost=CostModel(opened.exact, opened.facts).cost(values),
            borders=len(find_borders(opened.facts, opened.encodings.floats)),
            made_by=opened.made.picked.quantizer.id,
            runs_here=name != "w16a16",
            encodings=opened.encodings,
        )

    def _float16(self) -> Rung:
        """Every tensor cast, in the model that the first quantizer left: nothing needs to be calibrated for it."""
        opened = next(iter(self._opened.values()), None)
        if opened is None:
            return Rung(precision="fp16", missing="no quantizer left a model to measure on", runs_here=self._has_float)
        halves = min_max_encodings(opened.exact, opened.facts, precision_of("fp16"))
        return Rung(
            precision="fp16",
            reached=_reached(opened, halves),
            cost=CostModel(opened.exact, opened.facts).cost({entry.name: entry.value for entry in halves}),
            made_by="casts",
            runs_here=self._has_float,
        )

    def mix(self, base: Rung, wide: WideType, *, ladder_goal: str, tell: Callable[[str], None]) -> Raised:
        """The fewest layers of what a quantizer made in a wider type."""
        opened = self._opened[base.precision]
        source = InputSource(label=Label.GIVEN, why="the calibration data")
        samples = Samples(feeds=tuple(opened.exact.feeds), of_inputs=dict.fromkeys(opened.exact.graph.inputs, source))
        found = analyze(opened.model, opened.facts, samples, encodings=opened.encodings, tell=tell)
        raiser = Raiser(
            opened.model,
            opened.facts,
            opened.encodings,
            [row.layer for row in found.worst_layers],
            opened.exact.feeds,
            shown=opened.shown,
            measure=opened.reached,
            costs=CostModel(opened.exact, opened.facts),
            tell=tell,
        )
        return raiser.smallest(wide, parse_goal(ladder_goal))

    def chosen(self, ladder: Ladder) -> Made | None:
        """What the quantizer made, with raised layers where these were chosen."""
        rung = ladder.chosen
        if rung is None or rung.precision == "fp16":
            return None
        if rung.precision in self._opened:
            return self._opened[rung.precision].made
        opened = next(found for name, found in self._opened.items() if rung.precision.startswith(f"{name} with"))
        assert rung.encodings is not None
        return _with_encodings(opened, rung.encodings, rung.precision)


def _open(made: Made) -> _Opened:
    read = load_model(made.ran.model)
    facts, model = collect_facts(read), load_weights(read)
    losses = OutputLosses(facts)
    feeds: Sequence[Feed] = read_held_out(made.ran.folder)
    exact = PartialRuns(model, feeds, wanted=losses.shown)
    losses.hold(exact.reference)
    encodings = read_placed(made.ran.encodings, facts)
    return _Opened(made=made, model=model, facts=facts, encodings=encodings, exact=exact, losses=losses)


def _reached(opened: _Opened, encodings: EncodingSet) -> Reached:
    simulator = Simulator(opened.model, encodings, capture=opened.shown)
    return opened.reached([simulator.run(feed) for feed in opened.exact.feeds])


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

"""Lite mixed precision for files: order the layers by sensitivity, raise the fewest that reach a goal, for a target.

Which wide types a target mixes with integers is asked of its backend. It packages nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from deploykit.accuracy.judge.metric import UserMetric
from deploykit.accuracy.search.goals import Goal
from deploykit.accuracy.search.raising import Raised, Raiser, Trial, WideType
from deploykit.accuracy.search.reaching import Reaching
from deploykit.accuracy.search.sensitivity import Sensitivity
from deploykit.accuracy.search.sensitivity_analysis import Budget, QuestionOfFiles, analyze, read_question
from deploykit.accuracy.simulate.costs import CostModel
from deploykit.accuracy.simulate.min_max import min_max_encodings, precision_of
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.backend.backend import Request
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts
from deploykit.errors import UsageError
from deploykit.flow.read import resolve_target

__all__ = ["Mixed", "mix_files", "wide_types"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """The raised encodings as a file's ``text``, how they were found, and the front where one was asked for."""

    raised: Raised
    sensitivity: Sensitivity
    text: str
    front: tuple[Trial, ...] = ()

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
    tell: Callable[[str], None] = lambda _: None,
    **asked: Any,
) -> Mixed:
    """``asked`` is what ``read_question`` takes. Raises UsageError for a type that the target does not mix."""
    if goal.needs_metric and metric is None:
        raise UsageError(f"--goal {goal}: asks about a measure", next="give --metric or --metric-command")
    wides = wide_types(target, sdk, model)
    wide = _chosen(to, wides, target)
    given = read_question(model, **asked)
    if given.encodings is None:
        runs = PartialRuns(given.model, given.samples.varied, wanted=list(given.facts.outputs))
        made = min_max_encodings(runs, given.facts, precision_of(asked["precision"]))
        given = replace(given, encodings=made)
    assert given.encodings is not None
    found = analyze(given.model, given.facts, given.samples, encodings=given.encodings, budget=Budget(), tell=tell)
    raiser = _raiser(given, found, metric, tell)
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


def _chosen(asked: str | None, known: Sequence[WideType], target: str | None) -> WideType:
    if not known:
        raise UsageError(f"{target}: mixes no precisions by encodings", next="its own --precision mixed may do it")
    if asked is None:
        return known[0]
    found = next((wide for wide in known if wide == asked), None)
    if found is None:
        raise UsageError(f"--to {asked}: {target} does not mix it with integers", next=f"it mixes {', '.join(known)}")
    return found


def _raiser(
    given: QuestionOfFiles, found: Sensitivity, metric: UserMetric | None, tell: Callable[[str], None]
) -> Raiser:
    assert given.encodings is not None
    feeds = given.samples.varied[: found.used]
    reaching = Reaching(given.facts, label=given.samples.label, metric=metric)
    exact = PartialRuns(given.model, feeds, wanted=reaching.shown)
    reaching.hold(feeds, exact.reference)
    return Raiser(
        given.model,
        given.facts,
        given.encodings,
        [row.layer for row in found.worst_layers],
        feeds,
        shown=reaching.shown,
        measure=reaching.reached,
        costs=CostModel(exact, given.facts),
        tell=tell,
    )

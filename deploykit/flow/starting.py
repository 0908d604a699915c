"""Where deciding starts: the model simplified, and what was found in the one that was given; kept between runs.

It finds nothing itself. What is kept follows from model, encodings, samples, target, the backend's files, and those
options of the backend's own that its rules looked at: with another value of any other option it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import AnyBackend, Request, Situation
from deploykit.backend.kept import Kept
from deploykit.backend.noted_options import NotedOptions
from deploykit.backend.optional import DecidesFromFiles
from deploykit.errors import DeploykitError
from deploykit.findings import Finding
from deploykit.flow.rewriting import RewriteStep
from deploykit.flow.sampling import samples_of
from deploykit.flow.simplifying import Simplified, simplify
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights
from deploykit.system.answers import LARGEST_ASKED, Question

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["Judged", "Start", "noting", "start_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the core's rules and the backend's find in a situation."""

    core: tuple[Finding, ...]
    planned: tuple[Finding, ...]

    @property
    def all(self) -> tuple[Finding, ...]:
        """The core's first."""
        return (*self.core, *self.planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The situation to go on with, the steps that led there, what was found before them, and the core's word after."""

    situation: Situation
    steps: tuple[RewriteStep, ...]
    given: Judged
    core: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A start as it is kept; ``model`` is None where nothing was simplified. ``options`` are those looked at."""

    options: Mapping[str, Any]
    model: ModelProto | None
    encodings: EncodingSet | None
    steps: tuple[RewriteStep, ...]
    given: Judged
    core: tuple[Finding, ...]


def noting(situation: Situation, kept: Kept) -> Situation:
    """The same, with options that note who looked at them; for all targets of a run together, as they share work."""
    options = NotedOptions(situation.request.adapter_options, kept.once("options looked at", set))
    return replace(situation, request=replace(situation.request, adapter_options=options))


def start_from(backend: AnyBackend, given: Situation, kept: Kept, judge: Callable[[Situation], Judged]) -> Start:
    """The start for a situation of ``noting``; what ``judge`` finds may depend on no option of execution."""
    judged = _as_judged(given)
    question = _question(backend, judged, kept)
    if question is None:
        return _with_request(_started(judged, kept, judge), given)
    options, answer = judged.request.adapter_options, question.answer()
    assert isinstance(options, NotedOptions)
    if isinstance(answer, _Answer) and answer.options == options.values_of(frozenset(answer.options)):
        return _with_request(_read(answer, judged), given)
    start = _started(judged, kept, judge)
    looked_at = options.values_of(frozenset(options.looked_at))
    # What lies under a path may be another thing the next time.
    if not any(isinstance(value, Path) for value in looked_at.values()):
        question.keep(_written(start, looked_at))
    return _with_request(start, given)


def _started(given: Situation, kept: Kept, judge: Callable[[Situation], Judged]) -> Start:
    made: Simplified = simplify(given, kept, lambda situation: judge(situation).all)
    core = judge(made.situation).core if made.steps else judge(given).core
    return Start(situation=made.situation, steps=made.steps, given=judge(given), core=core)


def _as_judged(given: Situation) -> Situation:
    """Without what is asked about running and writing alone: no rule can look at that."""
    if given.request.compile is None and given.request.keep_samples and given.request.second_opinion:
        return given
    return replace(given, request=replace(given.request, compile=None, keep_samples=True, second_opinion=True))


def _with_request(start: Start, given: Situation) -> Start:
    if start.situation.request is given.request:
        return start
    if not start.steps:
        return replace(start, situation=given)
    return replace(start, situation=replace(start.situation, request=given.request))


def _question(backend: AnyBackend, given: Situation, kept: Kept) -> Question | None:
    """What a start follows from, beside the options; None where it is not kept."""
    whole = given.quantized is None and given.opinions is None and not given.segments
    if not isinstance(backend, DecidesFromFiles) or given.encodings is None or not whole:
        return None
    if given.facts.weight_bytes > LARGEST_ASKED:
        return None
    try:
        samples = samples_of(given, kept)
    except DeploykitError:  # later stages say so, with the reason
        return None
    model, target = lean_weights(given.model), given.target
    asked: Request = replace(given.request, adapter_options={})
    version = "" if target.sdk is None else target.sdk.version
    resolved = (target.device, target.backend, target.requested, version, target.findings)
    content = (model, given.model.proto, given.facts.model_name, given.encodings, samples, given.ladder, given.tail)
    return Question(
        "started",
        (backend.id, asked, resolved, given.rewritten, content),
        known={"encodings": given.encodings},
        code=tuple(backend.decided_from()),
    )


def _written(start: Start, options: Mapping[str, Any]) -> _Answer:
    model = start.situation.model.proto if start.steps else None
    encodings = start.situation.encodings
    return _Answer(
        options=options, model=model, encodings=encodings, steps=start.steps, given=start.given, core=start.core
    )


def _read(answer: _Answer, given: Situation) -> Start:
    situation = given
    if answer.model is not None:
        model = wrap_proto(answer.model, path=given.model.path)
        encodings, facts = answer.encodings, collect_facts(model)
        situation = replace(given, model=model, facts=facts, encodings=encodings, rewritten=True)
    return Start(situation=situation, steps=answer.steps, given=answer.given, core=answer.core)

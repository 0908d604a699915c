"""Runs what is needed to draw detections on the samples: the model as given, and where no device ran, a simulation.

It draws nothing, and gives up quietly: a page without pictures is no reason to fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.detection_sets import DetectionSet, detection_sets
from deploykit.accuracy.judge.pictures import picture_in
from deploykit.accuracy.samples.labels import Label
from deploykit.accuracy.simulate.fitting import FIRST
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Execution, Seen
from deploykit.errors import DeploykitError
from deploykit.flow.quantizing.delivering import run_of
from deploykit.model.weights import lean_weights
from deploykit.report.detection_pictures import DetectionPictures, draw_detections

if TYPE_CHECKING:
    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.flow.decision import Decision

__all__ = ["drawn_detections"]

_SAMPLES = FIRST
_PICTURES = (Label.GIVEN, Label.RECORDED)


def drawn_detections(decision: Decision[Any, Any], execution: Execution) -> DetectionPictures | None:
    """The pictures of the first set of detections; None where outputs are no boxes or samples are no pictures.

    None as well where samples are private: a page that is handed on would show them.
    """
    if not decision.given.request.keep_samples:
        return None
    samples, groups = decision.chosen.samples, detection_sets(decision.given.facts)
    if samples is None or not groups:
        return None
    feeds = samples.feeds[:_SAMPLES] if execution.seen is None else execution.seen.feeds[:_SAMPLES]
    shown = picture_in(feeds[0]) if feeds else None
    if shown is None or samples.of_inputs[shown.input].label not in _PICTURES:
        return None
    try:
        after = _after(decision, execution, groups[0], feeds)
        return None if after is None else draw_detections(groups[0], _before(decision, feeds), after)
    except DeploykitError:
        return None


def _before(decision: Decision[Any, Any], feeds: Sequence[Feed]) -> Seen:
    session = Session(lean_weights(decision.given.model))
    return Seen(by="the model as it was given", feeds=tuple(feeds), outputs=tuple(map(session.run, feeds)))


def _after(
    decision: Decision[Any, Any], execution: Execution, group: DetectionSet, feeds: Sequence[Feed]
) -> Seen | None:
    """What ran the package; else its simulation, where it has encodings that say what to simulate."""
    seen = execution.seen
    if seen is not None and set(group.outputs) <= set(seen.outputs[0]):
        return Seen(by=seen.by, feeds=tuple(feeds), outputs=seen.outputs[: len(feeds)])
    if decision.situation.encodings is None:
        return None
    outputs = _simulated(decision, feeds)
    return Seen(by="simulation", feeds=tuple(feeds), outputs=outputs) if set(group.outputs) <= set(outputs[0]) else None


def _simulated(decision: Decision[Any, Any], feeds: Sequence[Feed]) -> tuple[Mapping[str, Any], ...]:
    """What the way that was chosen gave when it was judged on these very samples; else it is simulated now."""
    won, samples = decision.chosen.prepared, decision.chosen.samples
    if won is not None and samples is not None and len(won.drawn) >= len(feeds) and all(map(is_, feeds, samples.feeds)):
        return won.drawn[: len(feeds)]
    return tuple(map(run_of(decision.chosen), feeds))

"""The stage ``render``: the pages of a package as text, besides the files of the backend. It writes nothing to disk.

It runs a model only to draw detections on the samples, and leaves the picture out if that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.judge import outputs_of
from deploykit.accuracy.judge.kinds import DetectionSet, detection_sets
from deploykit.accuracy.samples.inputs import Label
from deploykit.backend.backend import Execution, PackageFile, Seen, TextFile
from deploykit.backend.status import PackageStatus
from deploykit.errors import DeploykitError
from deploykit.findings import Findings
from deploykit.findings.records import Arrays, Json, Names
from deploykit.flow.choose import run_of
from deploykit.flow.plan import Decision
from deploykit.model.facts import GraphChange
from deploykit.model.weights import lean_weights
from deploykit.report.pages import render_readme, render_report

if TYPE_CHECKING:
    from deploykit.packages.writing import PackageWriter

__all__ = ["documents"]


def documents(
    decision: Decision[Any, Any],
    changes: Sequence[GraphChange],
    writer: PackageWriter,
    execution: Execution,
    status: PackageStatus,
    findings: Findings,
    generated: Names,
    templates: Path | None,
) -> Iterator[PackageFile]:
    """Yields the pages for people, which also tell what ran.

    ``changes`` are those of the graph, ``generated`` the steps that did not run.
    """
    plan, situation = decision.plan, decision.chosen.situation
    name = situation.request.model.name
    yield TextFile("README.md", render_readme(plan, name, execution, generated, status, findings, templates))
    drawn = drawn_detections(decision, execution)
    files = [{"path": path, **row} for path, row in writer.records.items()]
    report = render_report(plan, situation, changes, execution, generated, status, findings, files, templates, drawn)
    yield TextFile("report.html", report)


def drawn_detections(decision: Decision[Any, Any], execution: Execution) -> Json | None:
    """The pictures of the first set of detections; None if outputs are no boxes or samples are no pictures.

    Also None if samples are private: a page that is passed on would show them.
    """
    samples, groups = decision.chosen.samples, detection_sets(decision.given.facts)
    if not decision.given.request.keep_samples or samples is None or not groups:
        return None
    from deploykit.report.detections import draw_detections, picture_in

    feeds = samples.feeds[:3] if execution.seen is None else execution.seen.feeds  # as many as a page shows
    shown = picture_in(feeds[0]) if feeds else None
    if shown is None or samples.of_inputs[shown.input].label not in (Label.GIVEN, Label.RECORDED):
        return None
    try:
        after = _after(decision, execution, groups[0], feeds)
        if after is None:
            return None
        outputs = tuple(outputs_of(lean_weights(decision.given.model), feeds, decision.chosen.explored.judge))
        return draw_detections(groups[0], Seen("the model as it was given", feeds, outputs), after)
    except DeploykitError:
        return None


def _after(
    decision: Decision[Any, Any], execution: Execution, group: DetectionSet, feeds: tuple[Arrays, ...]
) -> Seen | None:
    """The outputs of the run; else those of a simulation, if there are encodings; else None."""
    seen = execution.seen
    if seen is not None and set(group.outputs) <= set(seen.outputs[0]):
        return seen
    if decision.chosen.situation.encodings is None:
        return None
    outputs = tuple(run_of(decision.chosen, feeds))
    return Seen("simulation", feeds, outputs) if set(group.outputs) <= set(outputs[0]) else None

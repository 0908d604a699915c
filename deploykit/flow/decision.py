"""The stages ``prepare``, ``choose`` and ``plan`` for one situation: the decision, and everything found on the way.

It writes nothing; what a device or an SDK can do is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from deploykit.backend.backend import Backend, Progress, Situation
from deploykit.backend.kept import Kept, Same
from deploykit.backend.plans import Plan
from deploykit.backend.status import Correctness
from deploykit.encodings.on_graph import EncodingsOnGraph
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.findings import Finding, Severity, sort_findings
from deploykit.flow.choice import Chosen, choose_way
from deploykit.flow.data_findings import data_findings
from deploykit.flow.opinions import second_opinions
from deploykit.flow.rules import RULES as CHOICE_RULES
from deploykit.flow.simplifying import simplify
from deploykit.flow.starting import Judged, start_from
from deploykit.model.changes import Change, changes_between
from deploykit.model.rules import RULES as GRAPH_RULES

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet
    from deploykit.model.facts import GraphFacts

__all__ = ["Decision", "decide", "plan_as_given"]

P = TypeVar("P")
D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[P, D]):
    """What was asked for, what is packaged instead where the graph was rewritten or cut, and the plan for that."""

    given: Situation
    chosen: Chosen
    prepared: P
    plan: Plan[D]

    @property
    def situation(self) -> Situation:
        """The situation that is packaged."""
        return self.chosen.situation

    @property
    def changes(self) -> tuple[Change, ...]:
        """Where the graph that is packaged differs from the one that was given."""
        return changes_between(self.given.facts, self.situation.facts)

    @property
    def right(self) -> Correctness:
        """What the simulation of the chosen way says; not judged where nothing was simulated."""
        return self.chosen.right


def decide(backend: Backend[P, D], given: Situation, kept: Kept, tell: Progress) -> Decision[P, D]:
    """Choose among the ways, prepare the one chosen, and plan it.

    What is wrong with the model as it was given stays visible: its errors are shown as handled by the rewriting.
    """
    start = start_from(given, kept, lambda situation: _judged(backend, situation, kept))
    chosen = replace(choose_way(backend, start.situation, kept, tell), simplified=start.steps)
    tell("planning")
    chosen = replace(chosen, situation=_with_opinions(backend, chosen.situation, kept, tell))
    prepared, plan = _planned(backend, chosen.situation, kept)
    has_wider_end = chosen.prepared is not None and chosen.prepared.end is not None
    changed = chosen.situation.rewritten or chosen.situation.segments or has_wider_end
    core = start.core
    avoided: tuple[Finding, ...] = ()
    if changed:
        avoided = _avoided(start.given.planned, plan.findings, chosen)
        avoided += _avoided(start.given.core, core, chosen) if start.steps else ()
        core = _rewritten(core, _core_findings(backend, chosen.situation, kept), chosen)
    made = data_findings(given, kept) if given.quantized is None else given.quantized.findings
    found = (*given.target.findings, *made, *core, *CHOICE_RULES.run(chosen), *plan.findings, *avoided)
    if chosen.situation.opinions is not None:
        found = chosen.situation.opinions.applied(found)
    plan = replace(
        plan,
        findings=sort_findings(_each_once(found)),
        candidates=chosen.candidates,
        right=chosen.right,
        assumed=_assumed(given, plan),
    )
    return Decision(given=given, chosen=chosen, prepared=prepared, plan=plan)


def _with_opinions(backend: Backend[P, D], situation: Situation, kept: Kept, tell: Progress) -> Situation:
    """The situation with what a compiler says of findings that would refuse it; the same one where none was asked."""
    opinions = second_opinions(backend, situation, _judged(backend, situation, kept).all, kept, tell)
    return situation if opinions is None else replace(situation, opinions=opinions)


def _assumed(given: Situation, plan: Plan[D]) -> str:
    """The precision of a float model that came without a word about it."""
    if given.encodings is not None or given.request.precision is not None or given.facts.is_qdq or plan.route is None:
        return ""
    kinds = plan.precision.to_json()["expected"]
    kind = max(kinds, key=lambda name: kinds[name]) if kinds else plan.route.id
    return f"{kind}, since neither encodings nor a precision were given"


def plan_as_given(backend: Backend[P, D], situation: Situation, kept: Kept) -> Plan[D]:
    """The plan for a model, at most simplified, nothing chosen; asked for one model under many releases."""
    situation = simplify(situation, kept, lambda tried: _judged(backend, tried, kept).all).situation
    situation = _with_opinions(backend, situation, kept, lambda _: None)
    plan = _planned(backend, situation, kept)[1]
    findings = (*situation.target.findings, *_core_findings(backend, situation, kept), *plan.findings)
    if situation.opinions is not None:
        findings = situation.opinions.applied(findings)
    return replace(plan, findings=sort_findings(_each_once(findings)))


def _judged(backend: Backend[P, D], situation: Situation, kept: Kept) -> Judged:
    """What the rules of core and backend say of a model as it is."""
    core = _core_findings(backend, situation, kept)
    return Judged(core=core, planned=_planned(backend, situation, kept)[1].findings)


def _planned(backend: Backend[P, D], situation: Situation, kept: Kept) -> tuple[P, Plan[D]]:
    """What the backend makes of a situation, once for each: the same one is judged, shown and packaged."""

    def plan() -> tuple[P, Plan[D]]:
        prepared = backend.prepare(situation, kept)
        return prepared, backend.plan(prepared)

    return kept.once(("planned", backend.id, Same(situation)), plan)


def _avoided(before: Iterable[Finding], after: Iterable[Finding], chosen: Chosen) -> tuple[Finding, ...]:
    """Errors and warnings of the model as it was given that the rewritten one no longer has."""
    left = {(finding.code, finding.subject.name) for finding in after}
    gone = [finding for finding in before if (finding.code, finding.subject.name) not in left]
    how = chosen.explains or "the graph is rewritten"
    return tuple(finding.with_handled(how) for finding in gone if finding.severity is not Severity.INFO)


def _rewritten(core: tuple[Finding, ...], after: Iterable[Finding], chosen: Chosen) -> tuple[Finding, ...]:
    """What is wrong with the model as it was given stays said; what the rewritten one lacks is handled."""
    gone = _avoided(core, after, chosen)
    handled = {(finding.code, finding.subject.name): finding for finding in gone}
    return tuple(handled.get((finding.code, finding.subject.name), finding) for finding in core)


def _core_findings(backend: Backend[P, D], situation: Situation, kept: Kept) -> tuple[Finding, ...]:
    """What the core's rules find in a situation, as severe as the backend knows it to be on its devices."""
    key = ("core findings", Same(situation.facts), Same(situation.encodings))
    found = kept.once(key, lambda: _found_in(situation.facts, situation.encodings))
    return tuple(map(backend.rated, found))


def _found_in(facts: GraphFacts, encodings: EncodingSet | None) -> tuple[Finding, ...]:
    """No device and no request is looked at: the same for every target."""
    graph = GRAPH_RULES.run(facts)
    if encodings is None:
        return graph
    return (*graph, *ENCODING_RULES.run(EncodingsOnGraph(encodings=encodings, facts=facts)))


def _each_once(findings: Iterable[Finding]) -> list[Finding]:
    """Two stages may see the same thing; the first word stands."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.code, finding.subject.name, finding.message), finding)
    return list(kept.values())

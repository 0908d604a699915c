"""The stage ``plan``: the decision for the way that was chosen, and everything found on the way, in one list.

It writes nothing; what a device or an SDK can do is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from deploykit.backend.backend import Backend, Progress, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.backend.status import Correctness
from deploykit.findings import Finding, Severity, sort_findings
from deploykit.flow.choose import ChosenWay, choose_way
from deploykit.flow.cure import Cured, JudgedSituation, cure, judge
from deploykit.flow.opinions import second_opinions
from deploykit.flow.rules import RULES as CHOICE_RULES
from deploykit.flow.samples import data_findings
from deploykit.model.changes import GraphChange, changes_between

__all__ = ["Decision", "decide", "plan", "plan_as_given"]

P = TypeVar("P")
D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[P, D]):
    """What was asked for, what is packaged instead where the graph was rewritten or cut, and the plan for that."""

    given: Situation
    chosen: ChosenWay
    prepared: P
    plan: Plan[D]

    @property
    def situation(self) -> Situation:
        """The situation that is packaged."""
        return self.chosen.situation

    @property
    def changes(self) -> tuple[GraphChange, ...]:
        """Where the graph that is packaged differs from the one that was given."""
        return changes_between(self.given.facts, self.situation.facts)

    @property
    def right(self) -> Correctness:
        """What the simulation of the chosen way says; not judged where nothing was simulated."""
        return self.chosen.right


def decide(backend: Backend[P, D], given: Situation, shared: SharedWork, tell: Progress) -> Decision[P, D]:
    """The stages up to the decision: cure, choose, plan."""
    cured = cure(backend, judge(backend, given, shared), shared, tell)
    chosen = choose_way(backend, cured.judged.situation, shared, tell)
    return plan(backend, cured, chosen, shared, tell)


def plan(
    backend: Backend[P, D], cured: Cured[P, D], chosen: ChosenWay, shared: SharedWork, tell: Progress
) -> Decision[P, D]:
    """Plan the way that was chosen; the plan of the cured model stands where that is the way.

    What is wrong with the model as it was given stays visible: its errors are shown as handled by the rewriting.
    """
    tell("planning")
    given, judged = cured.given.situation, cured.judged
    if chosen.situation is not judged.situation:
        judged = judge(backend, chosen.situation, shared)
    judged = _with_opinions(backend, judged, shared, tell)
    chosen = replace(chosen, situation=judged.situation, simplified=cured.steps)
    situation, decided = chosen.situation, judged.plan
    core = cured.judged.core
    avoided: tuple[Finding, ...] = ()
    has_wider_end = chosen.prepared is not None and chosen.prepared.end is not None
    if situation.rewritten or situation.segments or has_wider_end:
        how = chosen.explains or "the graph is rewritten"
        avoided = _avoided(cured.given.plan.findings, decided.findings, how)
        avoided += _avoided(cured.given.core, core, how) if cured.steps else ()
        gone = {(finding.code, finding.subject.name): finding for finding in _avoided(core, judged.core, how)}
        core = tuple(gone.get((finding.code, finding.subject.name), finding) for finding in core)
    made = data_findings(given, shared) if given.quantized is None else given.quantized.findings
    found = (*given.target.findings, *made, *core, *CHOICE_RULES.run(chosen), *decided.findings, *avoided)
    decided = replace(
        decided,
        findings=_settled(found, situation),
        candidates=chosen.candidates,
        right=chosen.right,
        assumed=_assumed(given, decided),
    )
    return Decision(given=given, chosen=chosen, prepared=judged.prepared, plan=decided)


def plan_as_given(backend: Backend[P, D], situation: Situation, shared: SharedWork) -> Plan[D]:
    """The plan for a model, at most cured, nothing chosen; asked for one model under many releases."""
    cured = cure(backend, judge(backend, situation, shared), shared, lambda _: None)
    judged = _with_opinions(backend, cured.judged, shared, lambda _: None)
    found = (*situation.target.findings, *judged.findings)
    return replace(judged.plan, findings=_settled(found, judged.situation))


def _with_opinions(
    backend: Backend[P, D], judged: JudgedSituation[P, D], shared: SharedWork, tell: Progress
) -> JudgedSituation[P, D]:
    """With what a compiler says of findings that would refuse the model; planned anew where it refutes one."""
    opinions = second_opinions(backend, judged.situation, judged.findings, shared, tell)
    if opinions is None:
        return judged
    situation = replace(judged.situation, opinions=opinions)
    return judge(backend, situation, shared) if opinions.any_refuted else replace(judged, situation=situation)


def _settled(findings: Iterable[Finding], situation: Situation) -> tuple[Finding, ...]:
    """In order, with the compiler's word on them, each once: two stages may see the same thing, the first stands."""
    found = tuple(findings) if situation.opinions is None else situation.opinions.applied(findings)
    once: dict[tuple[str, str, str], Finding] = {}
    for finding in found:
        once.setdefault((finding.code, finding.subject.name, finding.message), finding)
    return sort_findings(once.values())


def _avoided(before: Iterable[Finding], after: Iterable[Finding], how: str) -> tuple[Finding, ...]:
    """Errors and warnings of the model as it was given that the rewritten one no longer has."""
    left = {(finding.code, finding.subject.name) for finding in after}
    gone = [finding for finding in before if (finding.code, finding.subject.name) not in left]
    return tuple(finding.with_handled(how) for finding in gone if finding.severity is not Severity.INFO)


def _assumed(given: Situation, decided: Plan[D]) -> str:
    """The precision of a float model that came without a word about it."""
    route = decided.route
    if given.encodings is not None or given.request.precision is not None or given.facts.is_qdq or route is None:
        return ""
    kinds = decided.precision.to_json()["expected"]
    kind = max(kinds, key=lambda name: kinds[name]) if kinds else route.id
    return f"{kind}, since neither encodings nor a precision were given"

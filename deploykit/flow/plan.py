"""The stage ``plan``: the decision for the chosen way, with all findings of the earlier stages in one list.

It writes nothing; the adapter knows what a device or an SDK can do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from packaging.version import InvalidVersion, Version

from deploykit.backend.backend import Backend, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.backend.plugins import load_backends
from deploykit.findings import Answerer, Confidence, Finding, Findings, Severity, each_once, sort_findings
from deploykit.findings.records import Record, Tell, replace, silent
from deploykit.flow.choose import ChosenWay, choose_way
from deploykit.flow.cure import JudgedSituation, cure, judge
from deploykit.flow.rules import RULES as CHOICE_RULES
from deploykit.flow.samples import data_findings

if TYPE_CHECKING:
    from deploykit.backend.opinions import Compiler, Opinions

__all__ = ["Decision", "decide", "plan_as_given"]

SECONDS = 120.0
"""The time limit in seconds for all questions to compilers about one model."""

P = TypeVar("P")
D = TypeVar("D")


class Decision(Record, Generic[P, D]):
    """The request's situation, the way that is packaged (perhaps a rewritten or cut graph), and its plan."""

    given: Situation
    chosen: ChosenWay
    prepared: P
    plan: Plan[D]


# A finding about a range of the file stays, even if a rewrite moves its operator, as to the host.
_LASTING = frozenset({"DK112"})


def decide(backend: Backend[P, D], given: Situation, shared: SharedWork, tell: Tell) -> Decision[P, D]:
    """Cures, chooses, and plans the chosen way; the plan of the cured model is kept if it is that way.

    Errors of the model as given stay visible: they are shown as handled by the rewriting.
    """
    cured = cure(backend, judge(backend, given, shared), shared, tell)
    judged = cured.judged
    chosen = choose_way(backend, judged.situation, shared, tell)
    tell("planning")
    if chosen.situation is not judged.situation:
        judged = judge(backend, chosen.situation, shared)
    judged = _with_opinions(backend, judged, shared, tell)
    chosen = replace(chosen, situation=judged.situation, simplified=cured.steps)
    situation, decided = chosen.situation, judged.plan
    core = cured.judged.core
    avoided: Findings = ()
    won = chosen.explored.winner
    if situation.rewritten or situation.segments or (won is not None and won.end is not None):
        how = chosen.explains or "the graph is rewritten"
        avoided = _avoided(cured.given.plan.findings, decided.findings, how)
        avoided += _avoided(cured.given.core, core, how) if cured.steps else ()
        gone = {finding.about: finding for finding in _avoided(core, judged.core, how)}
        core = tuple(finding if finding.code in _LASTING else gone.get(finding.about, finding) for finding in core)
    assumed, route = "", decided.route
    said = given.encodings is not None or given.request.precision is not None or given.facts.is_qdq
    if route is not None and not said:
        kinds = decided.precision.to_json()["expected"]
        kind = max(kinds, key=lambda name: kinds[name]) if kinds else route.id
        assumed = f"{kind}, since neither encodings nor a precision were given"
    made = data_findings(given, shared) if given.quantized is None else given.quantized.findings
    found = (*given.target.findings, *made, *core, *CHOICE_RULES.run(chosen), *decided.findings, *avoided)
    decided = replace(
        decided,
        findings=_settled(found, situation),
        candidates=chosen.explored.choice.to_json(),
        right=chosen.right,
        assumed=assumed,
    )
    return Decision(given=given, chosen=chosen, prepared=judged.prepared, plan=decided)


def plan_as_given(backend: Backend[P, D], situation: Situation, shared: SharedWork) -> Plan[D]:
    """The plan for a model that is cured but not changed otherwise; asked for one model under many releases."""
    cured = cure(backend, judge(backend, situation, shared), shared, silent)
    judged = _with_opinions(backend, cured.judged, shared, silent)
    found = (*situation.target.findings, *judged.findings)
    return replace(judged.plan, findings=_settled(found, judged.situation))


def _with_opinions(
    backend: Backend[P, D], judged: JudgedSituation[P, D], shared: SharedWork, tell: Tell
) -> JudgedSituation[P, D]:
    """The situation with a compiler's opinions on findings that refuse the model; planned again if one is refuted."""
    opinions = second_opinions(backend, judged.situation, judged.findings, shared, tell)
    if opinions is None:
        return judged
    situation = replace(judged.situation, opinions=opinions)
    return judge(backend, situation, shared) if opinions.any_refuted else replace(judged, situation=situation)


def second_opinions(
    backend: Backend[Any, Any], situation: Situation, findings: Iterable[Finding], shared: SharedWork, tell: Tell
) -> Opinions | None:
    """The opinions of a compiler that is installed here on findings that refuse the model and are not certain.

    With the reason if none could be asked; None if there is nothing to ask. The compiler's backend judges its answers.
    """
    claims = [finding for finding in findings if finding.blocks and finding.claim is not None]
    target, device = situation.target, situation.target.device
    givers = (known for known in load_backends() if known.offers("settle") and known.id in device.backends)
    giver = next(givers, None) if claims else None
    if giver is None:
        return None
    from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState

    compilers = [Compiler(missing="switched off", instead="leave --no-second-opinion out to have it asked")]
    if situation.request.second_opinion:
        compilers = list(giver.compilers(device, "" if target.sdk is None else target.sdk.version))
    usable = [compiler for compiler in compilers if not compiler.missing]
    if not usable:
        missing = compilers[0]
        unasked = tuple(Opinion.on(finding, OpinionState.OPEN, missing.missing) for finding in claims)
        return Opinions(compiler=missing, opinions=unasked)
    own = giver.id == backend.id
    asked = [finding for finding in claims if any(_may_answer(one, finding, own=own) for one in usable)]
    if not asked:
        return None
    # Each finding goes to the nearest compiler, open ones to the next; the nearer compiler's answer counts.
    started, by, left = time.monotonic(), dict[int, Opinion](), list(range(len(asked)))
    for compiler in usable:
        rest = SECONDS - (time.monotonic() - started) if by else SECONDS
        if not left or (by and rest <= 0):
            break
        tell(f"asking {compiler.name} about what is not sure")
        open_ones = [asked[place] for place in left]
        told = giver.settle(situation, open_ones, compiler=compiler, shared=shared, seconds=rest, progress=tell)
        for place, opinion in zip(left, told, strict=True):
            if place not in by or opinion.state is not OpinionState.OPEN:
                by[place] = replace(opinion, by=compiler) if len(usable) > 1 else opinion
        left = [place for place in left if by[place].state is OpinionState.OPEN]
    # The package's SDK is named if the compiler does not belong to it.
    other = "" if target.sdk is None or target.sdk.version == usable[0].release else target.sdk.sdk
    other = f"{other} {target.requested or target.sdk.version}" if other and target.sdk is not None else ""
    return Opinions(compiler=usable[0], opinions=tuple(by[place] for place in range(len(asked))), unasked=other)


def _may_answer(compiler: Compiler, finding: Finding, *, own: bool) -> bool:
    """True if this compiler may answer, and its answer is not already known for its release."""
    claim = finding.claim
    if claim is None or (claim.answered_by is Answerer.TOOLS and not own):
        return False
    if claim.confidence.rank >= Confidence.REPORTED.rank:
        return True
    try:  # by series (2.51 of 2.51.0); without a date, or with another kind of number, a claim counts as older
        return Version(claim.seen_with).release[:2] < Version(compiler.release).release[:2]
    except InvalidVersion:
        return True


def _settled(findings: Iterable[Finding], situation: Situation) -> Findings:
    """The findings in order, with the compiler's opinions, each once: if two stages find the same, the first counts."""
    found = tuple(findings) if situation.opinions is None else situation.opinions.applied(findings)
    return sort_findings(each_once(found))


def _avoided(before: Iterable[Finding], after: Iterable[Finding], how: str) -> Findings:
    """Errors and warnings of the model as given that the rewritten one no longer has."""
    left = {finding.about for finding in after}
    gone = [finding for finding in before if finding.about not in left]
    return tuple(finding.with_handled(how) for finding in gone if finding.severity is not Severity.INFO)

"""Chooses the route and writes it down as a plan: preferred routes are tried in order, the first without an
unhandled error wins. It reads values and tables only and touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deploykit.adapter import MixedSupport, Situation
from deploykit.capabilities import Status
from deploykit.errors import UsageError
from deploykit.findings import Confidence, Finding, exit_status
from deploykit.plan import Plan, Precision, Rejected, Route
from deploykit.target import Target
from deploykit_qnn_htp.commands import Paths, steps
from deploykit_qnn_htp.configs import build_configs, parse_settings
from deploykit_qnn_htp.draft import Candidate, Draft, draft_of
from deploykit_qnn_htp.draft_rules import DRAFT_RULES
from deploykit_qnn_htp.naming import graph_name
from deploykit_qnn_htp.routes import Intent, RouteRow, load_routes, preference, route_row
from deploykit_qnn_htp.rules import ROUTE_RULES

if TYPE_CHECKING:
    from deploykit.encodings.conversion import Conversion

__all__ = ["Details", "make_plan", "mixed_support"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What rendering needs to know beyond the published plan."""

    candidate: Candidate
    paths: Paths
    conversion: Conversion | None


def make_plan(situation: Situation) -> Plan:
    """Decide for one situation."""
    draft = draft_of(situation)
    settings = parse_settings(situation.request.options, draft.sdk, situation.target.device)
    findings = [*DRAFT_RULES.run(draft), *_lint(draft)]
    chosen, rejected, route_findings = _choose(draft)
    findings += route_findings
    device = situation.target.device
    blocked = exit_status(situation.target.findings)
    if chosen is None or blocked:
        return Plan(
            backend="qnn-htp",
            target=device.to_json(),
            sdk=situation.target.sdk_json(),
            route=None if chosen is None else _route(chosen),
            rejected=rejected,
            precision=_precision(draft),
            findings=tuple(findings),
        )
    paths = Paths(graph_name(situation.request.model))
    conversion = _converted(chosen)
    return Plan(
        backend="qnn-htp",
        target=device.to_json(),
        sdk=situation.target.sdk_json(),
        route=_route(chosen),
        rejected=rejected,
        steps=steps(chosen, paths),
        configs=build_configs(settings, draft.sdk, device, paths),
        precision=_precision(draft),
        findings=tuple(findings),
        details=Details(candidate=chosen, paths=paths, conversion=conversion),
    )


def _lint(draft: Draft) -> tuple[Finding, ...]:
    """The shared rules, on the encodings as they will be: what this adapter completes is not worth a warning."""
    from deploykit_qualcomm.lint import run_lint

    situation, source, completed = draft.situation, draft.source, draft.completed
    if source is not None and completed is not None:
        strangers = {entry.name: entry for entry in source if entry.name not in situation.facts.tensors}
        entries = {**completed.entries, **strangers}
        encodings = replace(source, entries=entries, float_tensors=draft.float_set)
        situation = replace(situation, encodings=encodings)
    return run_lint(situation, "qnn-htp")


def _choose(draft: Draft) -> tuple[Candidate | None, tuple[Rejected, ...], list[Finding]]:
    """The first candidate without an unhandled error, the ones rejected before it, and what was found about them."""
    rejected: list[Rejected] = []
    rejections: list[tuple[str, tuple[Finding, ...]]] = []
    for row in _candidates(draft):
        candidate = Candidate(draft=draft, route=row)
        found = ROUTE_RULES.run(candidate)
        blocking = [finding for finding in found if finding.blocks]
        if not blocking:
            handled = [f.with_handled(f"route {row.id} is taken instead") for f in _flat(rejections) if f.blocks]
            return candidate, tuple(rejected), [*handled, *found]
        rejected.append(
            Rejected(
                id=row.id,
                because=tuple(dict.fromkeys(finding.code for finding in blocking)),
                why="; ".join(finding.message for finding in blocking),
            )
        )
        rejections.append((row.id, found))
    # Nothing is left: the findings of the preferred route are the answer.
    return None, tuple(rejected), list(rejections[0][1]) if rejections else []


def _flat(rejections: Iterable[tuple[str, tuple[Finding, ...]]]) -> Iterable[Finding]:
    seen = set()
    for _, found in rejections:
        for finding in found:
            key = (finding.code, finding.subject.name, finding.message)
            if key not in seen:
                seen.add(key)
                yield finding


def _candidates(draft: Draft) -> list[RouteRow]:
    """The routes to try, best first; a route the user named, or an input list the user insists on, is the only one."""
    named = draft.situation.request.adapter_options.get("route")
    if named is not None:
        known = [row.id for row in load_routes().route]
        if named not in known:
            raise UsageError(f"--route {named}: no such route", next=f"one of {', '.join(known)}")
        return [route_row(str(named))]
    calibrated = route_row("legacy-calibrated")
    if draft.input_list_wanted:
        return [calibrated]
    rows = [route_row(name) for name in preference(draft.intent, draft.sdk.parsed).order]
    if draft.intent is Intent.MIXED and draft.calibration is not None:
        # What most people would type; shown as rejected, with what it would have done.
        return [calibrated, *rows]
    if draft.intent is Intent.INTEGER and draft.calibration is None:
        return [row for row in rows if not row.input_list]
    return rows


def _route(candidate: Candidate) -> Route:
    row = candidate.route
    why = row.why
    if candidate.version is not None:
        why += f"; encodings are written as {candidate.version}"
    return Route(id=row.id, why=why, confidence=row.confidence, sources=row.source)


def _converted(candidate: Candidate) -> Conversion | None:
    from deploykit_qnn_htp.encodings import written

    return written(candidate)


def _precision(draft: Draft) -> Precision:
    """Intended and expected type of every tensor that has one."""
    if draft.source is None or draft.after is None or draft.completed is None:
        return _whole(draft)
    intended = {entry.name: entry.dtype for entry in draft.completed}
    intended |= dict.fromkeys(draft.float_set, "float16")
    expected: dict[str, Any] = {entry.name: entry.dtype for entry in draft.completed}
    expected |= dict.fromkeys(draft.after.predicted, "float16")
    return Precision(intended=intended, expected=expected)


def _whole(draft: Draft) -> Precision:
    kinds = {Intent.FLOAT16: "float16", Intent.FLOAT32: "float32"}
    if draft.intent not in kinds:
        return Precision()
    names = [name for name, fact in draft.situation.facts.tensors.items() if fact.is_float and not fact.is_weight]
    types = dict.fromkeys(names, kinds[draft.intent])
    return Precision(intended=types, expected=types)


def mixed_support(target: Target) -> MixedSupport:
    """The kinds of ways for one target; the SDK mixes safely where its preferred route is more than inferred."""
    arch, sdk = str(target.device.fact("arch") or ""), target.sdk
    if sdk is None or sdk.status("fp16", arch=arch) is Status.UNSUPPORTED:
        why = f"{arch} has no float16"
        return MixedSupport(kinds=frozenset({"integer"}), without={"fallback": why, "segments": why})
    safe = preference(Intent.MIXED, sdk.parsed).confidence is not Confidence.INFERRED
    without = {"segments": "not packaged by this backend yet"}
    return MixedSupport(kinds=frozenset({"integer", "fallback"}), safe=safe, without=without)

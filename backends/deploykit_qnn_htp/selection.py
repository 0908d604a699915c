"""Selects the route of one conversion: routes are tried in order, and the first without an unhandled error is taken.

It reads the draft and the tables. The steps of a route are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deploykit.backend.backend import MixedSupport
from deploykit.backend.plans import Alternative, Plan, Rejected
from deploykit.backend.targets import Target
from deploykit.errors import UsageError
from deploykit.findings import Confidence, Finding, Findings
from deploykit.findings.records import Json, Record, replace
from deploykit.tables.capabilities import Status
from deploykit_qnn_htp.draft import (
    ConversionDraft,
    ConverterRoute,
    Intent,
    RouteCandidate,
    load_routes,
    preference,
    route_row,
)
from deploykit_qnn_htp.provider import carried_for
from deploykit_qnn_htp.rules import routes
from deploykit_qualcomm.carriers import RULES as CARRIER_RULES
from deploykit_qualcomm.carriers import Fit, chip_on_arm
from deploykit_qualcomm.devices import arch_of, lacks

__all__ = ["Selection", "alternatives", "mixed_support", "select_route"]


class Selection(Record):
    """The route taken (None if there is none), the routes rejected before it, and the findings about all of them."""

    candidate: RouteCandidate | None
    rejected: tuple[Rejected, ...]
    findings: Findings

    def without(self, plan: Plan[Any]) -> Selection:
        """The selection after the provider's own plan rejected the route: without a candidate."""
        assert self.candidate is not None
        codes = tuple(code for row in plan.rejected for code in row.because)
        no = Rejected(self.candidate.route.id, codes, why="; ".join(row.why for row in plan.rejected))
        return replace(self, candidate=None, rejected=(*self.rejected, no))


def select_route(draft: ConversionDraft) -> Selection:
    """Tries the routes in order and takes the first without an unhandled error."""
    rejected = list[Rejected]()
    blockers = list[Finding]()
    first: Findings = ()
    for row in _candidates(draft):
        candidate = RouteCandidate(draft=draft, route=row)
        found = _judged(candidate)
        blocking = [finding for finding in found if finding.blocks]
        if not blocking:
            handled = [finding.with_handled(f"route {row.id} is taken instead") for finding in blockers]
            return Selection(candidate=candidate, rejected=tuple(rejected), findings=(*handled, *found))
        codes = tuple(dict.fromkeys(finding.code for finding in blocking))
        rejected.append(Rejected(row.id, codes, why="; ".join(finding.message for finding in blocking)))
        first, blockers = first or found, [*blockers, *blocking]
    # No route is left: the findings of the preferred one are given.
    return Selection(candidate=None, rejected=tuple(rejected), findings=first)


def alternatives(draft: ConversionDraft, seen: Iterable[str]) -> tuple[Alternative, ...]:
    """The routes for this intent that were neither taken nor rejected, in order of preference."""
    known, rows = frozenset(seen), [route_row(name) for name in preference(draft.intent, draft.sdk.parsed).order]
    rows += [row for row in load_routes().route if row.dlc and draft.intent in row.intents]
    others = [row for row in rows if row.id not in known and _is_open(row, draft)]
    return tuple(
        Alternative(
            id=row.id,
            why=row.why,
            confidence=row.confidence,
            because=tuple(dict.fromkeys(f.code for f in _judged(RouteCandidate(draft=draft, route=row)) if f.blocks)),
            ask=f"--route {row.id}",
        )
        for row in others
    )


def _judged(candidate: RouteCandidate) -> Findings:
    """The findings about a route, with those about the provider's compiler if the route is its."""
    found = routes.RULES.run(candidate)
    carried = candidate.draft.carried
    return (*found, *CARRIER_RULES.run(carried)) if candidate.route.by_provider and carried is not None else found


def _is_open(row: ConverterRoute, draft: ConversionDraft) -> bool:
    """False for a route that this request cannot take: no data to calibrate with, or no wheel's compiler."""
    if row.by_provider:
        carried = None if draft.is_segment else draft.carried
        return carried is not None and (not row.dlc or carried.wheel.runs_on_linux)
    return not (row.input_list and draft.situation.request.calibration is None)


def _candidates(draft: ConversionDraft) -> list[ConverterRoute]:
    """The routes to try, best first; only one if the user named a route or insists on an input list."""
    request, routes = draft.situation.request, load_routes().route
    named = request.adapter_options.get("route")
    if named is not None:
        row = next((row for row in routes if row.id == named), None)
        if row is None:
            raise UsageError(f"--route {named}: no such route", next=f"one of {', '.join(row.id for row in routes)}")
        serves = draft.intent in row.intents
        # For a mixed model with an input list a rule describes the result.
        if not (serves or draft.is_segment or (row.input_list and draft.intent is Intent.MIXED)):
            raise UsageError(f"--route {row.id}: not for {draft.intent}", next="leave the route out")
        if row.by_provider and not _is_open(row, draft):
            sdk = draft.situation.target.requested or draft.sdk.version
            what = "writes a DLC here" if row.dlc else "carries a compiler for this device"
            why = f"no public wheel that is not newer than {sdk} {what}"
            raise UsageError(f"--route {row.id}: not possible here", why=why, next="leave the route out")
        if draft.is_segment and not serves:
            # A segment of another kind takes the plain route through the same converter.
            plain = [other for other in routes if draft.intent in other.intents and other.tool == row.tool]
            return [next((other for other in plain if not (other.input_list or other.quantizer_v2)), row)]
        return [row]
    calibrated = route_row("legacy-calibrated")
    if draft.input_list_wanted:
        return [calibrated]
    rows = [route_row(name) for name in preference(draft.intent, draft.sdk.parsed).order]
    rows = [row for row in rows if not row.by_provider or _is_open(row, draft)]
    if draft.input_list_wanted is False or (draft.intent is Intent.INTEGER and request.calibration is None):
        rows = [row for row in rows if not row.input_list]
        if not rows:
            raise UsageError(
                f"--no-input-list: no other route makes a model that is {draft.intent}", next="leave it out"
            )
    elif draft.intent is Intent.MIXED and request.calibration is not None:
        # What most people would type is shown as rejected, with its effect.
        return [calibrated, *rows]
    return rows


def mixed_support(target: Target, options: Json) -> MixedSupport:
    """The ways to mix types on one target; mixing is safe if the SDK's preferred route is more than inferred."""
    arch, sdk = arch_of(target.device), target.sdk
    if sdk is None or lacks("fp16", target.device) or sdk.status("fp16", arch=arch) is Status.UNSUPPORTED:
        why = f"{target.device.name if 'fp16' in target.device.facts else arch} has no float16"
        return MixedSupport(kinds=frozenset({"integer"}), without={"fallback": why, "segments": why})
    provider, *others = (row for row in load_routes().route if row.by_provider)
    if options.get("route") in [row.id for row in (provider, *others)]:
        # The provider compiles float16 tensors among integers into one graph, so nothing has to be cut.
        return MixedSupport(
            kinds=frozenset({"integer", "fallback"}),
            safe=True,
            without={"segments": "one graph is compiled, in which float16 tensors may stand among integers"},
            confidence={"fallback": provider.confidence},
        )
    sure = {intent: preference(intent, sdk.parsed).confidence for intent in Intent}
    # Why no public wheel has the right compiler, "" if one has.
    carried, missing = carried_for(target), ""
    if carried is None:
        missing = "no public wheel carries a compiler for this device and release"
    elif carried.fit is not Fit.ITSELF:
        missing = f"the only public compiler of QAIRT {carried.wheel.sdk} compiles for {chip_on_arm().name}"
    return MixedSupport(
        kinds=frozenset({"integer", "fallback", "segments", *(() if missing else ("direct",))}),
        safe=sure[Intent.MIXED] is not Confidence.INFERRED,
        without={"direct": missing} if missing else {},
        confidence={
            "fallback": sure[Intent.MIXED],
            "segments": max(sure[Intent.INTEGER], sure[Intent.FLOAT16], key=lambda confidence: confidence.rank),
            "direct": provider.confidence,
        },
        needs={"direct": {"route": provider.id}},
    )

"""Selects the route of one conversion: preferred ones are tried in order, the first without an unhandled error wins.

It reads the draft and the tables; which steps follow from a route is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deploykit.contract.plans import Rejected
from deploykit.errors import UsageError
from deploykit.findings import Finding
from deploykit_qnn_htp.draft import Candidate, Draft
from deploykit_qnn_htp.routes import Intent, RouteRow, load_routes, preference, route_row
from deploykit_qnn_htp.rules import routes

__all__ = ["Selection", "select_route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The route taken, or None, the ones rejected before it, and what was found about all of them."""

    candidate: Candidate | None
    rejected: tuple[Rejected, ...]
    findings: tuple[Finding, ...]


def select_route(draft: Draft) -> Selection:
    """The first candidate without an unhandled error, the ones rejected before it, and what was found about them."""
    rejected: list[Rejected] = []
    rejections: list[tuple[str, tuple[Finding, ...]]] = []
    for row in _candidates(draft):
        candidate = Candidate(draft=draft, route=row)
        found = routes.RULES.run(candidate)
        blocking = [finding for finding in found if finding.blocks]
        if not blocking:
            handled = [f.with_handled(f"route {row.id} is taken instead") for f in _flat(rejections) if f.blocks]
            return Selection(candidate=candidate, rejected=tuple(rejected), findings=(*handled, *found))
        rejected.append(
            Rejected(
                id=row.id,
                because=tuple(dict.fromkeys(finding.code for finding in blocking)),
                why="; ".join(finding.message for finding in blocking),
            )
        )
        rejections.append((row.id, found))
    # Nothing is left: the findings of the preferred route are the answer.
    return Selection(candidate=None, rejected=tuple(rejected), findings=rejections[0][1] if rejections else ())


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
        return [_serving(route_row(str(named)), draft)]
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


def _serving(row: RouteRow, draft: Draft) -> RouteRow:
    """The route that was named, or for a segment of another kind the plain one through the same converter."""
    if not draft.is_segment or draft.intent in row.intents:
        return row
    plain = (other for other in load_routes().route if draft.intent in other.intents and other.tool == row.tool)
    return next((other for other in plain if not (other.input_list or other.quantizer_v2)), row)

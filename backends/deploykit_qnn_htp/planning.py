"""Writes the decision down as a plan: one conversion for a whole model, one per segment for a cut one.

It reads values and tables only and touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from deploykit.backend.plans import Alternative, Plan, Rejected, Route, Step
from deploykit.errors import UsageError
from deploykit.findings import Confidence, Finding, exit_status
from deploykit_qnn_htp.commands import from_dlc, net_run, shared_steps, steps
from deploykit_qnn_htp.configs import Setting, build_configs, parse_settings, run_configs
from deploykit_qnn_htp.draft import Draft
from deploykit_qnn_htp.joined import explanation, joined_precision, segment_findings
from deploykit_qnn_htp.parts import Part, in_contexts, part_of
from deploykit_qnn_htp.prepare import Prepared
from deploykit_qnn_htp.selection import alternatives

__all__ = ["make_plan"]


def make_plan(prepared: Prepared) -> Plan[tuple[Part, ...]]:
    """Decide for one prepared model."""
    draft, situation = prepared.whole, prepared.situation
    settings = parse_settings(situation.request.options, draft.sdk, situation.target.device)
    parts = tuple(part_of(drafted) for drafted in prepared.parts)
    if situation.request.adapter_options.get("emit") and not any(part.lent for part in parts):
        why = "the SDK's own tools cannot be installed on a hosted machine"
        raise UsageError("--emit: nothing of this route can run there", why=why, next="add --route provider-context")
    cut = bool(parts[0].segment)
    findings = (*segment_findings(parts), *prepared.findings) if cut else parts[0].findings
    plan: Plan[tuple[Part, ...]] = Plan(
        backend="qnn-htp",
        target=situation.target.device.to_json(),
        sdk=situation.target.sdk_json(),
        route=_route(parts),
        rejected=_rejected(parts),
        alternatives=_alternatives(draft, parts),
        precision=joined_precision(draft, parts) if cut else parts[0].precision,
        findings=_each_once(findings),
    )
    if plan.route is None or exit_status(situation.target.findings):
        return plan
    return replace(plan, steps=_steps(parts), configs=_configs(parts, settings, draft), details=parts)


def _each_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Segments may tell the same thing, and once is enough."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.code, finding.subject.name, finding.message), finding)
    return tuple(kept.values())


def _route(parts: Sequence[Part]) -> Route | None:
    """The route of the only conversion, or of all segments together; None when one of them has none."""
    if any(part.selection.candidate is None for part in parts):
        return None
    rows = [part.candidate.route for part in parts]
    written = [part.candidate.version for part in parts if part.candidate.version is not None]
    names = tuple(dict.fromkeys(row.id for row in rows))
    cut_by_type = parts[0].segment and not parts[0].context
    why = explanation(parts) if parts[0].segment else rows[0].why
    if written:
        why += f"; encodings are written as {written[0]}"
    return Route(
        id="segments" if cut_by_type else "-and-".join(names),
        why=why,
        confidence=_least_sure([row.confidence for row in rows]),
        sources=tuple(dict.fromkeys(source for row in rows for source in row.source)),
    )


def _rejected(parts: Iterable[Part]) -> tuple[Rejected, ...]:
    rows = []
    for part in parts:
        where = f"{part.segment}: " if part.segment else ""
        rows += [replace(row, id=f"{where}{row.id}") for row in part.selection.rejected]
    return tuple(rows)


def _alternatives(draft: Draft, parts: Iterable[Part]) -> tuple[Alternative, ...]:
    """The routes for the whole model that the selection did not come to."""
    taken = [part.candidate.route.id for part in parts if part.selection.candidate is not None and not part.segment]
    return alternatives(draft, (*taken, *(row.id for part in parts for row in part.selection.rejected)))


def _steps(parts: Iterable[Part]) -> tuple[Step, ...]:
    """Everything for the host first, then what runs on the device."""
    rows = [step for group in in_contexts(parts) for step in _steps_of(group)]
    return tuple(sorted(rows, key=lambda step: step.where == "device"))


def _steps_of(group: tuple[Part, ...]) -> tuple[Step, ...]:
    """The steps to one context; of one with several graphs, which need an application, none runs on the device."""
    if len(group) > 1:
        return shared_steps([(part.candidate, part.paths) for part in group])
    part = group[0]
    if part.lent is not None and part.lent.dlc:
        return (*part.lent.steps, *from_dlc(part.draft.sdk, part.paths))
    if part.lent is not None:
        return (*part.lent.steps, net_run(part.draft.sdk, part.paths))
    return steps(part.candidate, part.paths)


def _configs(parts: Iterable[Part], settings: Sequence[Setting], draft: Draft) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for group in in_contexts(parts):
        part, lent = group[0], group[0].lent
        graphs = [other.paths.graph for other in group]
        files |= {} if lent is None else lent.decision.configs
        if lent is None or lent.dlc:
            device = draft.situation.target.device
            files |= build_configs(settings, draft.sdk, device, part.paths, named=lent is None, graphs=graphs)
        else:
            files |= run_configs(settings, draft.sdk, part.paths)
    return files


def _least_sure(confidences: Iterable[Confidence]) -> Confidence:
    return max(confidences, key=lambda confidence: confidence.rank)

"""Writes the decision down as a plan: one conversion for a whole model, one per segment for a cut one.

It reads values and tables only and touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from deploykit.contract.backend import MixedSupport
from deploykit.contract.plans import Plan, Rejected, Route, Step
from deploykit.contract.targets import Target
from deploykit.findings import Confidence, Finding, exit_status
from deploykit.tables.capabilities import Status
from deploykit_qnn_htp.commands import steps
from deploykit_qnn_htp.configs import Setting, build_configs, parse_settings
from deploykit_qnn_htp.draft import Draft
from deploykit_qnn_htp.joined import explanation, joined_precision, segment_findings
from deploykit_qnn_htp.parts import Part, part_of
from deploykit_qnn_htp.prepare import Prepared
from deploykit_qnn_htp.routes import Intent, preference

__all__ = ["make_plan", "mixed_support"]


def make_plan(prepared: Prepared) -> Plan[tuple[Part, ...]]:
    """Decide for one prepared model."""
    draft, situation = prepared.whole, prepared.situation
    settings = parse_settings(situation.request.options, draft.sdk, situation.target.device)
    parts = tuple(part_of(drafted) for drafted in prepared.parts)
    cut = bool(situation.segments)
    findings = (*segment_findings(parts), *prepared.findings) if cut else parts[0].findings
    plan: Plan[tuple[Part, ...]] = Plan(
        backend="qnn-htp",
        target=situation.target.device.to_json(),
        sdk=situation.target.sdk_json(),
        route=_route(parts),
        rejected=_rejected(parts),
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
    why = explanation(parts) if parts[0].segment else rows[0].why
    if written:
        why += f"; encodings are written as {written[0]}"
    return Route(
        id="segments" if parts[0].segment else rows[0].id,
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


def _steps(parts: Iterable[Part]) -> tuple[Step, ...]:
    """Everything for the host first, then what runs on the device."""
    rows = [step for part in parts for step in steps(part.candidate, part.paths)]
    return tuple(sorted(rows, key=lambda step: step.where == "device"))


def _configs(parts: Iterable[Part], settings: Sequence[Setting], draft: Draft) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for part in parts:
        files |= build_configs(settings, draft.sdk, draft.situation.target.device, part.paths)
    return files


def _least_sure(confidences: Iterable[Confidence]) -> Confidence:
    return max(confidences, key=lambda confidence: confidence.rank)


def mixed_support(target: Target) -> MixedSupport:
    """The kinds of ways for one target; the SDK mixes safely where its preferred route is more than inferred."""
    arch, sdk = str(target.device.fact("arch") or ""), target.sdk
    if sdk is None or sdk.status("fp16", arch=arch) is Status.UNSUPPORTED:
        why = f"{arch} has no float16"
        return MixedSupport(kinds=frozenset({"integer"}), without={"fallback": why, "segments": why})
    sure = {intent: preference(intent, sdk.parsed).confidence for intent in Intent}
    return MixedSupport(
        kinds=frozenset({"integer", "fallback", "segments"}),
        safe=sure[Intent.MIXED] is not Confidence.INFERRED,
        confidence={
            "fallback": sure[Intent.MIXED],
            "segments": _least_sure((sure[Intent.INTEGER], sure[Intent.FLOAT16])),
        },
    )

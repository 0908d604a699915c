"""Decides how one model is packaged for one chip through the provider, as a plan; it runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit.backend.plans import Plan, Precision, Rejected, Route
from deploykit.findings import Confidence, Finding, exit_status
from deploykit_ort_qnn.commands import steps
from deploykit_ort_qnn.compiler.dlc import DLC
from deploykit_ort_qnn.configs import build_configs
from deploykit_ort_qnn.prepare import Draft
from deploykit_ort_qnn.rules.prepared import RULES as DRAFT_RULES
from deploykit_qualcomm.carriers import forms_of
from deploykit_qualcomm.hosts import machines

__all__ = ["make_plan"]

_ROUTES = {
    "encodings": (
        "qdq-from-encodings",
        "the encodings become Q/DQ of the model, in the form the provider takes",
    ),
    "qdq": ("qdq", "the model's own Q/DQ are kept, in the form the provider takes"),
    "float": ("float16", "the model is float: the compiler makes FP16 of it"),
}

_ANSWERED = {
    "QNN236": "block scales up to 16 are stored as uint8, which the provider takes and computes rightly",
    "QNN241": "both operands are converted to symmetric int16",
    "QNN247": "the scale is written on the same grid, unsigned",
    "QNN248": "the scale is written on the same grid, unsigned",
    "QNN249": "the constant gets a grid of its own, or the sum becomes a layer with an int32 bias",
    "QNN253": "the pairs are completed; what is left is judged from the compiled types (ORT101)",
}
"""Shared rules about the model as given, by what the preparation does about them."""


def make_plan(draft: Draft) -> Plan[None]:
    """Decide for one prepared model."""
    situation = draft.situation
    findings = (*DRAFT_RULES.run(draft), *_answered(draft))
    if situation.opinions is not None:
        findings = situation.opinions.applied(findings)
    name, why = _ROUTES[draft.source]
    blocked = exit_status(findings) or exit_status(situation.target.findings)
    common: dict[str, Any] = {
        "backend": "ort-qnn",
        "target": situation.target.device.to_json(),
        "sdk": _sdk(draft),
        "precision": _precision(draft),
        "findings": findings,
    }
    if blocked:
        codes = tuple(dict.fromkeys(finding.code for finding in findings if finding.blocks))
        return Plan(route=None, rejected=(Rejected(id=name, because=codes, why=why),), **common)
    beside = (DLC,) if draft.options.get("dlc") else ()
    seen = Confidence.OBSERVED if forms_of(draft.wheel) is draft.wheel else Confidence.INFERRED
    return Plan(
        route=Route(id=name, why=why, confidence=seen, sources=draft.wheel.source),
        steps=steps(
            embed=draft.chosen.entries.get("ep.context_embed_mode") == "1",
            machines=machines(draft.wheel),
            beside=beside,
        ),
        configs=build_configs(draft),
        **common,
    )


def _sdk(draft: Draft) -> dict[str, Any]:
    target = draft.situation.target
    return {
        "name": "onnxruntime-qnn",
        "version": draft.wheel.version,
        "requested": target.requested,
        "qairt": draft.wheel.sdk,
        "table": "" if target.sdk is None else target.sdk.version,
        "exact": target.requested in ("", draft.wheel.version),
    }


def _precision(draft: Draft) -> Precision:
    if draft.prepared is None:
        return Precision()
    intended = dict(draft.prepared.intended)
    expected = {name: draft.prepared.placed.get(name, kind) for name, kind in intended.items()}
    return Precision(intended=intended, expected=expected)


def _answered(draft: Draft) -> tuple[Finding, ...]:
    """The shared rules about shapes and operators; what preparation already changed is judged by the compiler."""
    prepared = draft.prepared
    done = None if prepared is None else {step.id: frozenset(step.names) for step in prepared.steps}
    return tuple(
        finding.with_handled("the preparation writes it in a form that the row is not about")
        if finding.code == "QNN320" and finding.subject.name in draft.cleared
        else _handled(finding, done)
        for finding in draft.lint
    )


_BY_STEP = {
    "QNN241": "int16-matmul",
}
"""Of these, what only a step of the preparation answers, which may have been left out."""


def _handled(finding: Finding, done: Mapping[str, frozenset[str]] | None) -> Finding:
    answer = _ANSWERED.get(finding.code, "")
    if answer and done is not None and _BY_STEP.get(finding.code) in (None, *done):
        return finding.with_handled(answer)
    names = frozenset().union(*done.values()) if done else frozenset[str]()
    if finding.blocks and finding.subject.name in names:
        return finding.with_handled("deploykit rewrites it (see the steps in config/intended_types.json)")
    return finding

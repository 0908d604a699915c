"""What stands in the way of a model on one target: the plan's findings, and what running its kernels here adds.

It writes nothing; how a kernel is run, and which are, is the backend's business.
"""

from __future__ import annotations

from typing import Any

from deploykit.backend.audits import settled_findings
from deploykit.backend.backend import AnyBackend, Progress, Request
from deploykit.backend.kept import Kept
from deploykit.backend.options import AUDIT
from deploykit.findings import Finding, sort_findings
from deploykit.flow.decision import Decision, decide
from deploykit.flow.quantizing.step import quantized_situation
from deploykit.flow.reading import read_situation
from deploykit.flow.steps import AUDITING, DECIDING, QUANTIZING, steps_to
from deploykit.model.load import blaming

__all__ = ["check"]


def check(request: Request, *, progress: Progress | None = None) -> tuple[Finding, ...]:
    """The findings of a plan, and those about kernels where the backend runs each by itself here."""
    tell: Progress = progress or _silent
    with blaming(request.model):
        backend, situation = read_situation(request)
        steps = steps_to(AUDITING, backend, situation, tell)
        steps.begin(QUANTIZING)
        quantized = quantized_situation(backend, situation, tell)
        steps.begin(DECIDING)
        decision = decide(backend, quantized, Kept(), tell)
        steps.begin(AUDITING)
        return _with_kernels(backend, decision, tell)


def _with_kernels(backend: AnyBackend, decision: Decision[Any, Any], tell: Progress) -> tuple[Finding, ...]:
    """The plan's findings, those that running kernels settled marked as handled, and what it found."""
    request, findings = decision.given.request, decision.plan.findings
    level = str(request.adapter_options.get(AUDIT.name, "off"))
    forbidden = request.compile is False or (level == AUDIT.default and not request.second_opinion)
    if not backend.offers("audit") or level == "off" or forbidden:
        return findings
    audit = backend.audit(decision.prepared, level=level, progress=tell, given=decision.given)
    return tuple(sort_findings((*settled_findings(findings, audit.settled), *audit.findings)))


def _silent(line: str) -> None:
    del line

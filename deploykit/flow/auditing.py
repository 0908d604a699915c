"""The audit of one model for one target: the same decision as for a package, then each kernel of what was decided on.

It joins the stages; which kernels there are and how one is run is the adapter's business.
"""

from __future__ import annotations

from dataclasses import replace

from deploykit.backend.audits import Audit
from deploykit.backend.backend import Progress, Request
from deploykit.backend.kept import Kept
from deploykit.backend.plugins import load_backends
from deploykit.errors import UsageError
from deploykit.flow.decision import decide
from deploykit.flow.quantizing.step import quantized_situation
from deploykit.flow.reading import read_situation
from deploykit.flow.steps import AUDITING, DECIDING, QUANTIZING, steps_to
from deploykit.model.load import blaming

__all__ = ["audit"]


def audit(request: Request, *, level: str = "full", progress: Progress | None = None) -> Audit:
    """Each kernel of the model as it would be packaged; UsageError for a backend that runs none by itself."""
    tell = progress or _silent
    with blaming(request.model):
        backend, situation = read_situation(replace(request, backend=_auditor(request.backend)))
        steps = steps_to(AUDITING, backend, situation, tell)
        steps.begin(QUANTIZING)
        quantized = quantized_situation(backend, situation, tell)
        steps.begin(DECIDING)
        decision = decide(backend, quantized, Kept(), tell)
        steps.begin(AUDITING)
        return backend.audit(decision.prepared, level=level, progress=tell)


def _auditor(asked: str | None) -> str:
    """The backend that was asked for, or the first that can."""
    able = [backend.id for backend in load_backends() if backend.offers("audit")]
    if asked is not None and asked not in able:
        raise UsageError(f"--backend {asked} runs no kernels by themselves", next=f"one that does: {', '.join(able)}")
    if not able:
        raise UsageError("no installed backend runs kernels by themselves", next="install one that does")
    return asked or able[0]


def _silent(line: str) -> None:
    del line

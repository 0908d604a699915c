"""Runs the lint rules that apply to a backend; what they look for stands in the modules of this package."""

from __future__ import annotations

from deploykit.adapter import Situation
from deploykit.findings import Finding
from deploykit.rules import Registry
from deploykit_qualcomm.lint.registries import EP_LINT, QNN_LINT

__all__ = ["EP_LINT", "QNN_LINT", "lint_registries", "run_lint"]

_PROVIDER = "ort-qnn"


def lint_registries(backend_id: str) -> tuple[Registry[Situation], ...]:
    """The registries that apply to a backend, filled."""
    _fill()
    return (QNN_LINT, EP_LINT) if backend_id == _PROVIDER else (QNN_LINT,)


def run_lint(situation: Situation, backend_id: str) -> tuple[Finding, ...]:
    """Everything the lint rules find for one situation."""
    return tuple(finding for registry in lint_registries(backend_id) for finding in registry.run(situation))


def _fill() -> None:
    """Import the modules that hold the rules."""

"""Runs the lint rules that apply to a backend; what they look for stands in the modules of this package."""

from __future__ import annotations

from importlib import import_module

from deploykit.contract.backend import Situation
from deploykit.findings import Finding
from deploykit.rules import Registry
from deploykit_qualcomm.rules.registries import CONVERTER_LINT, EP_LINT, QNN_LINT

__all__ = ["CONVERTER_LINT", "EP_LINT", "QNN_LINT", "lint_registries", "run_lint"]

_MODULES = ("shapes", "operators", "weights", "ranges", "matmuls", "provider", "attention", "rewriting", "options")
_PROVIDER = "ort-qnn"


def lint_registries(backend_id: str) -> tuple[Registry[Situation], ...]:
    """The registries that apply to a backend, filled."""
    _fill()
    return (QNN_LINT, EP_LINT if backend_id == _PROVIDER else CONVERTER_LINT)


def run_lint(situation: Situation, backend_id: str) -> tuple[Finding, ...]:
    """Everything the lint rules find for one situation."""
    return tuple(finding for registry in lint_registries(backend_id) for finding in registry.run(situation))


def _fill() -> None:
    """Import the modules that hold the rules; each registers its own."""
    for module in _MODULES:
        import_module(f"deploykit_qualcomm.rules.{module}")

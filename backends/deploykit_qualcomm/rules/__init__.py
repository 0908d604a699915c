"""What can be seen of trouble on the HTP before anything is compiled: rules about model, encodings, options, target."""

from __future__ import annotations

from deploykit_qualcomm.rules.running import CONVERTER_LINT, EP_LINT, QNN_LINT, lint_registries, run_lint

__all__ = ["CONVERTER_LINT", "EP_LINT", "QNN_LINT", "lint_registries", "run_lint"]

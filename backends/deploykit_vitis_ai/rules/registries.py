"""Every registry of rules that vitis-ai applies, in one tuple."""

from __future__ import annotations

from typing import Any

from deploykit.findings.rules import Registry
from deploykit_vitis_ai import targets
from deploykit_vitis_ai.draft import QuarkDraft
from deploykit_vitis_ai.rules import execution, model, quantized, request, summary

__all__ = ["DRAFT_REGISTRIES", "REGISTRIES"]

# The rules that judge a draft, before anything is decided.
DRAFT_REGISTRIES: tuple[Registry[QuarkDraft], ...] = (request.RULES, model.RULES)

REGISTRIES: tuple[Registry[Any], ...] = (
    targets.RULES,
    *DRAFT_REGISTRIES,
    quantized.RULES,
    execution.RULES,
    summary.RULES,
)

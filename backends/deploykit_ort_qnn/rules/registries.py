"""Every registry of rules that ort-qnn applies, in one tuple."""

from __future__ import annotations

from typing import Any

from deploykit.findings.rules import Registry
from deploykit_ort_qnn.rules import audit, compiled, numerics, prepared
from deploykit_qualcomm.rules.registries import PROVIDER, SHARED

__all__ = ["REGISTRIES"]

REGISTRIES: tuple[Registry[Any], ...] = (
    *SHARED,
    *PROVIDER,
    prepared.RULES,
    compiled.ENVIRONMENT_RULES,
    compiled.RULES,
    compiled.BUDGET_RULES,
    numerics.PRECISION_RULES,
    numerics.RULES,
    compiled.PACKAGE_RULES,
    compiled.DLC_RULES,
    audit.RULES,
    audit.COUNT_RULES,
)

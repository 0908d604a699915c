"""Every registry of rules that ort-qnn applies, in one tuple."""

from __future__ import annotations

from typing import Any

from deploykit.findings.rules import Registry
from deploykit_ort_qnn.rules import (
    audit,
    compiled,
    counted,
    dlc,
    environment,
    forms,
    numerics,
    package,
    precision,
    prepared,
    release,
)
from deploykit_qualcomm.rules.registries import PROVIDER, SHARED

__all__ = ["REGISTRIES"]

REGISTRIES: tuple[Registry[Any], ...] = (
    *SHARED,
    *PROVIDER,
    prepared.RULES,
    release.RULES,
    forms.RULES,
    environment.RULES,
    compiled.RULES,
    precision.RULES,
    numerics.RULES,
    package.RULES,
    dlc.RULES,
    audit.RULES,
    counted.RULES,
)

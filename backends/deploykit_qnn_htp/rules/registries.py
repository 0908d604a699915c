"""Every registry of rules that qnn-htp applies, in one tuple."""

from __future__ import annotations

from typing import Any

from deploykit.findings.rules import Registry
from deploykit_qnn_htp.rules import opinion, prepared, routes
from deploykit_qualcomm.rules.registries import CONVERTERS, SHARED

__all__ = ["REGISTRIES"]

REGISTRIES: tuple[Registry[Any], ...] = (*SHARED, *CONVERTERS, prepared.RULES, routes.RULES, opinion.RULES)

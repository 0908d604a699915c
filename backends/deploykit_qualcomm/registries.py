"""Every registry of rules that the Qualcomm adapters share; it runs none."""

from __future__ import annotations

from typing import Any

from deploykit.rules import Registry
from deploykit_qualcomm.rules import lint_registries
from deploykit_qualcomm.rules.target import SDK_RULES, TARGET_RULES

__all__ = ["qualcomm_registries"]


def qualcomm_registries(backend_id: str = "qnn-htp") -> tuple[Registry[Any], ...]:
    """The registries that apply to a backend: about the SDK, the target, and the situation as a whole."""
    return (SDK_RULES, TARGET_RULES, *lint_registries(backend_id))

"""Every rule that the Qualcomm adapters share, as explicit tuples, and the codes that are no longer used.

A code in ``RESERVED`` belonged to a rule that another one replaced; it is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploykit.backend.backend import Situation
from deploykit.findings import Findings
from deploykit.findings.rules import Registry
from deploykit_qualcomm import carriers, resolving
from deploykit_qualcomm.rules import (
    atlas,
    converters,
    operators,
    options,
    provider,
    published,
    shapes,
    weights,
)

__all__ = ["CONVERTERS", "PROVIDER", "RESERVED", "SHARED", "run_lint"]

# Limits of the HTP and its compiler, on every route.
_HTP: tuple[Registry[Situation], ...] = (
    shapes.RULES,
    operators.RULES,
    weights.RULES,
    atlas.RULES,
    published.RULES,
)

# The behaviour of QAIRT's own converters.
CONVERTERS: tuple[Registry[Situation], ...] = (converters.RULES,)

# Limits of ONNX Runtime's QNN provider, not necessarily of the hardware.
PROVIDER: tuple[Registry[Situation], ...] = (provider.RULES,)

# The rules of every adapter of this vendor.
SHARED: tuple[Registry[Any], ...] = (
    *(resolving.RULES, resolving.TARGET_RULES, carriers.RULES, converters.FLOAT16_RULES),
    *_HTP,
    options.RULES,
)

# Codes of rules that another rule replaced, with its code.
RESERVED: Mapping[str, str] = {
    "QNN201": "DK001",
    "QNN202": "DK002",
    "QNN203": "DK003",
    "QNN245": "QNN127",
    **dict.fromkeys(("QNN290", "QNN291", "QNN292"), "QNN320"),
}


def run_lint(situation: Situation, way_in: Iterable[Registry[Situation]]) -> Findings:
    """The findings of the rules about the HTP and about one route to it (``CONVERTERS``, ``PROVIDER``),
    sorted by code.
    """
    asked = [*_HTP, *way_in, *([options.RULES] if situation.request.options else [])]
    found = [finding for registry in asked for finding in registry.run(situation)]
    return tuple(sorted(found, key=lambda finding: finding.code))

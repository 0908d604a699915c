"""Every rule that the Qualcomm adapters share, as explicit tuples, and the codes that are no longer given out.

A code in ``RESERVED`` belonged to a rule that another one took over; it is never used again.
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

# Limits of the HTP and its compiler, whatever leads there.
_HTP: tuple[Registry[Situation], ...] = (
    shapes.RULES,
    operators.RULES,
    weights.RULES,
    atlas.RULES,
    published.RULES,
)

# What QAIRT's own converters make of a model.
CONVERTERS: tuple[Registry[Situation], ...] = (converters.RULES,)

# Limits of ONNX Runtime's QNN provider, not necessarily of the hardware.
PROVIDER: tuple[Registry[Situation], ...] = (provider.RULES,)

# What every adapter of this vendor applies.
SHARED: tuple[Registry[Any], ...] = (
    *(resolving.RULES, resolving.TARGET_RULES, carriers.RULES, converters.FLOAT16_RULES),
    *_HTP,
    options.RULES,
)

# Every registry of this package.
REGISTRIES: tuple[Registry[Any], ...] = (*SHARED, *CONVERTERS, *PROVIDER)

# Codes of rules that another rule took over, with its code.
RESERVED: Mapping[str, str] = {
    "QNN201": "DK001",
    "QNN202": "DK002",
    "QNN203": "DK003",
    "QNN245": "QNN127",
    **dict.fromkeys(("QNN290", "QNN291", "QNN292"), "QNN320"),
}


def run_lint(situation: Situation, way_in: Iterable[Registry[Situation]]) -> Findings:
    """What the rules about the HTP and those about one way to it (``CONVERTERS``, ``PROVIDER``) find, by code."""
    asked = [*_HTP, *way_in, *([options.RULES] if situation.request.options else [])]
    found = [finding for registry in asked for finding in registry.run(situation)]
    return tuple(sorted(found, key=lambda finding: finding.code))

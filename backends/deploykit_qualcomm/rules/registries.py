"""The registries of the lint rules: one that every Qualcomm backend applies, and one for each of the two ways in.

Codes QNN200 to QNN399. The rules stand in the modules beside this one; nothing here looks at a model.
"""

from __future__ import annotations

from deploykit.contract.backend import Situation
from deploykit.rules import Registry

__all__ = ["CONVERTER_LINT", "EP_LINT", "QNN_LINT"]

QNN_LINT: Registry[Situation] = Registry("situation")
"""Limits of the HTP and its compiler, whatever leads there."""

EP_LINT: Registry[Situation] = Registry("situation")
"""Limits of ONNX Runtime's QNN provider, not necessarily of the hardware."""

CONVERTER_LINT: Registry[Situation] = Registry("situation")
"""What QAIRT's own converters make of a model."""

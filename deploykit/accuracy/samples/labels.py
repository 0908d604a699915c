"""How much inputs mean: the five labels that every judged number carries; it makes and reads no input."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

__all__ = ["Label", "weakest"]


class Label(StrEnum):
    """Where inputs come from, the strongest first."""

    GIVEN = "given"
    """Calibration data of the user."""
    RECORDED = "recorded"
    """Samples that were given or declared once and are kept in the package."""
    DECLARED = "declared"
    """What the user said about an input (``--input``)."""
    DERIVED = "derived"
    """Points of the input's own encoding, or of the domain that the graph states."""
    ARBITRARY = "arbitrary"
    """Anything else: good for running a graph, no ground for a verdict."""


_STRENGTH = {label: place for place, label in enumerate(Label)}


def weakest(labels: Iterable[Label]) -> Label:
    """The label of several inputs together: that of the least known one.

    Without any label it is ``DERIVED``: a model without inputs has one possible sample, and the graph states it.
    """
    return max(labels, key=_STRENGTH.__getitem__, default=Label.DERIVED)

"""What a quantizer is: it says what it can make, and plans a job as data; the core runs the job in a child process.

A quantizer is found through ``Backend.quantizers``. Nothing here runs anything, and nothing here
knows a quantizer by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from deploykit.backend.options import OptionSpec, OptionValue

if TYPE_CHECKING:
    from deploykit.backend.targets import Target
    from deploykit.findings import Finding

__all__ = [
    "LearnsWeights",
    "QuantizedModel",
    "Quantizer",
    "QuantizerAsked",
    "QuantizerJob",
    "WeightMethod",
    "bits_of",
]

_WIDTHS = re.compile(r"w(\d+)a(\d+)")


def bits_of(precision: str) -> tuple[int, int] | None:
    """The widths of weights and activations that a name like ``w8a16`` says; None for a name that says none."""
    found = _WIDTHS.fullmatch(precision)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerAsked:
    """What a quantizer plans from. ``options`` are its own, checked, defaults filled in."""

    precision: str
    target: Target
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerJob:
    """A plan: which script runs, and what it is told.

    ``script`` is a file that stands by itself beside ``child.py`` of the core (``deploykit.flow.quantizing``), in
    the interpreter of the quantizer's toolchain. It is given the model with the core's ``rewrites`` applied, and
    ``settings``, which are JSON values. It leaves ``out/model.onnx`` with ``out/model.encodings``, or
    ``out/model.qdq.onnx``, and what its own simulation gives for the samples that were held out.
    """

    script: Path
    settings: Mapping[str, Any]
    rewrites: tuple[str, ...] = ()


class Quantizer(Protocol):
    """One quantizer. ``toolchain`` is what ``deploykit toolchain install`` is given, "" where nothing is needed."""

    id: str
    summary: str
    toolchain: str

    def precisions(self, target: Target) -> tuple[str, ...]:
        """The precisions it can make for a target, the one to take where none is asked for first."""

    def options(self) -> tuple[OptionSpec, ...]:
        """What can be set with ``--option NAME=VALUE``."""

    def plan(self, asked: QuantizerAsked) -> QuantizerJob:
        """The job. Pure: opens nothing, runs nothing. Raises UsageError for options that exclude each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMethod:
    """A way to better weights at the same precision: its name, and the quantizer's options that ask for it."""

    name: str
    options: Mapping[str, str]


@runtime_checkable
class LearnsWeights(Protocol):
    """A quantizer that can do more for weights than take their range; ``--precision auto`` then tries it."""

    def weight_methods(self, precision: str) -> tuple[WeightMethod, ...]:
        """What there is for a precision, the quickest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedModel:
    """That a situation's encodings were made here, and from what: the user's float model and calibration data.

    ``record`` is the published account of the run (``report.json`` of ``deploykit quantize``); ``findings`` are what
    there is to say about it.
    """

    model: Path
    calibration: Path
    record: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()

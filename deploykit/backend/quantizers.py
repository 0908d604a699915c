"""What a quantizer is: it says what it can make, and plans a job as data; the core runs the job in a child process.

A quantizer is found through ``Backend.quantizers``. Nothing here runs anything, and nothing here
knows a quantizer by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.backend.options import OptionSpec, OptionValue
from deploykit.findings.records import Json, Names, Record

if TYPE_CHECKING:
    from deploykit.backend.targets import Target
    from deploykit.findings import Findings

__all__ = [
    "QuantizedModel",
    "Quantizer",
    "QuantizerAsked",
    "QuantizerJob",
    "WeightMethod",
]


class QuantizerAsked(Record):
    """What a quantizer plans from. ``options`` are its own, checked, defaults filled in.

    ``floats`` are tensors that no grid holds well.
    """

    precision: str
    target: Target
    options: Mapping[str, OptionValue] = {}
    floats: tuple[str, ...] = ()


class QuantizerJob(Record):
    """A plan: which script runs, and what it is told.

    ``script`` is a file that stands by itself beside ``child.py`` of the core (``deploykit.flow.quantizing``), in
    the interpreter of the quantizer's toolchain. It is given the model with the core's ``rewrites`` applied, and
    ``settings``, which are JSON values. It leaves ``out/model.onnx`` with ``out/model.encodings``, or
    ``out/model.qdq.onnx``, and what its own simulation gives for the samples that were held out.
    """

    script: Path
    settings: Json
    rewrites: Names = ()


class WeightMethod(Record):
    """A way to better weights at the same precision: its name, and the quantizer's options that ask for it."""

    name: str
    options: Mapping[str, str]


class Quantizer(ABC):
    """One quantizer. ``toolchain`` is what ``deploykit toolchain install`` is given, "" where nothing is needed.

    ``whole_ranges`` is the option, with its value, by which a range goes from the least to the greatest value seen.
    """

    id: str
    summary: str
    toolchain: str = ""
    whole_ranges = ("", "")

    @abstractmethod
    def precisions(self, target: Target) -> tuple[str, ...]:
        """The precisions it can make for a target, the one to take where none is asked for first."""

    @abstractmethod
    def options(self) -> tuple[OptionSpec, ...]:
        """What can be set with ``--option NAME=VALUE``."""

    @abstractmethod
    def plan(self, asked: QuantizerAsked) -> QuantizerJob:
        """The job. Pure: opens nothing, runs nothing. Raises UsageError for options that exclude each other."""

    def weight_methods(self, precision: str) -> tuple[WeightMethod, ...]:
        """What it can do for weights beyond taking their range, the quickest first; ``--precision auto`` tries it."""
        del precision
        return ()


class QuantizedModel(Record):
    """That a situation's encodings were made here, and from what: the user's float model and calibration data.

    ``record`` is the published account of the run (``report.json`` of ``deploykit quantize``); ``findings`` are what
    there is to say about it.
    """

    model: Path
    calibration: Path
    record: Json
    findings: Findings = ()

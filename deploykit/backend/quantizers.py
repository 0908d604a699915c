"""The contract of a quantizer: it states what it can make, and plans a job
as data; the core runs it in a child process.

Quantizers are found through ``Backend.quantizers``. Nothing here runs anything or knows a quantizer by name.
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
    """The inputs of a quantizer's plan. ``options`` are its own, checked and with defaults.

    ``floats`` are tensors that no grid holds well.
    """

    precision: str
    target: Target
    options: Mapping[str, OptionValue]
    floats: Names = ()


class QuantizerJob(Record):
    """The plan of a quantizer's run: the script and its settings.

    ``script`` is a file that runs beside the core's ``child.py`` (``deploykit.flow.quantizing``), in the interpreter of
    the quantizer's toolchain. It gets the model with the core's ``rewrites`` applied, and ``settings``, which are JSON
    values. It leaves ``out/model.onnx`` with ``out/model.encodings``, or ``out/model.qdq.onnx``, and the outputs of its
    own simulation on the held-out samples.
    """

    script: Path
    settings: Json
    rewrites: Names = ()


class WeightMethod(Record):
    """A method for better weights at the same precision: its name, and the quantizer's options that select it."""

    name: str
    options: Mapping[str, str]


class Quantizer(ABC):
    """One quantizer. ``toolchain`` is its name for ``deploykit toolchain install``, "" if it needs none.

    ``whole_ranges`` is the option, with its value, that makes ranges reach from the least to the greatest value seen.
    """

    id: str
    summary: str
    toolchain: str = ""
    whole_ranges = ("", "")

    @abstractmethod
    def precisions(self, target: Target) -> Names:
        """The precisions that the quantizer can make for a target, the default first."""

    @abstractmethod
    def options(self) -> tuple[OptionSpec, ...]:
        """The quantizer's options for ``--option NAME=VALUE``."""

    @abstractmethod
    def plan(self, asked: QuantizerAsked) -> QuantizerJob:
        """Plans the job; opens and runs nothing. Raises UsageError for options that exclude each other."""

    def weight_methods(self, precision: str) -> tuple[WeightMethod, ...]:
        """The methods for better weights than by their range alone, the
        quickest first; ``--precision auto`` tries them.
        """
        del precision
        return ()


class QuantizedModel(Record):
    """The origin of encodings that were made here: the user's float model and calibration data.

    ``record`` is the published record of the run (``report.json`` of ``deploykit quantize``), with its ``findings``.
    """

    model: Path
    calibration: Path
    record: Json
    findings: Findings = ()

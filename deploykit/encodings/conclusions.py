"""What is concluded about the range of a tensor, and from what: the words and values that ``inferring`` hands out.

It concludes nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deploykit.encodings.values import EncodingSet
from deploykit.model.range_functions import Interval

__all__ = ["Conclusion", "Evidence", "Inference", "OpenTensor", "Origin"]


class Origin(StrEnum):
    """What a range comes from, the surest first."""

    FILE = "from_file"
    """The tensor's own entry."""
    CONSTANT = "from_constant"
    """Stored values."""
    OPERATOR = "from_operator"
    """The operator bounds it, or only moves, clamps or joins values whose range is known."""
    DECLARED = "from_declaration"
    """What the user said about an input."""
    NEIGHBOURS = "from_neighbours"
    """Interval arithmetic over neighbours, forwards or backwards."""
    SAMPLES = "from_samples"
    """Values seen on data that the user gave or declared."""

    @property
    def described(self) -> str:
        """The origin in words, for a sentence."""
        return str(self).replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The range of one tensor, where it comes from, and why in words.

    ``copies`` names a tensor that has the same grid. A ``wide`` range holds, but is much wider than calibration's would
    be; a ``partial`` one holds what matters to all readers, and what lies outside is clamped by them.
    """

    name: str
    low: float
    high: float
    origin: Origin
    words: str
    copies: str = ""
    wide: bool = False
    partial: bool = False

    @property
    def interval(self) -> Interval:
        """Both ends."""
        return self.low, self.high

    @property
    def is_finite(self) -> bool:
        """True where a grid can be made for it."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"tensor": self.name, "low": self.low, "high": self.high, "origin": str(self.origin), "why": self.words}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTensor:
    """A tensor about whose range nothing is known: the graph inputs it hangs on, and why nothing else tells."""

    name: str
    inputs: tuple[str, ...]
    why: str

    @property
    def ways_out(self) -> tuple[str, ...]:
        """What the user can give to settle it, as options of the command line."""
        return ("--calibration DATA", *(f"--input {name}=VALUE" for name in self.inputs))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"tensor": self.name, "inputs": list(self.inputs), "why": self.why, "ways_out": list(self.ways_out)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the user gave or said about inputs.

    ``inputs`` are those whose values mean something (given, recorded or declared ones; never derived or arbitrary
    ones), ``declared`` the ranges of those that were declared. ``observe`` gives the least and largest finite value
    of tensors on all samples; it is asked only for tensors that hang on ``inputs`` alone.
    """

    inputs: frozenset[str] = frozenset()
    declared: Mapping[str, Interval] = field(default_factory=dict)
    observe: Callable[[Collection[str]], Mapping[str, Interval]] | None = None
    words: str = "the calibration data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Completed encodings, a conclusion for every new entry, and the tensors that stay open."""

    encodings: EncodingSet
    concluded: Mapping[str, Conclusion] = field(default_factory=dict)
    open: tuple[OpenTensor, ...] = ()

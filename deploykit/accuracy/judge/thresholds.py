"""What is asked of an output: per kind of number a limit, its reason and its source, from ``limits.toml``.

Light: no arrays. It compares nothing; whoever measures looks its limits up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from deploykit.tables.reading import read_toml, structure

__all__ = ["ASKED", "Against", "Limit", "Measure", "Thresholds", "limit_for", "limits"]


class Against(StrEnum):
    """What a number was measured against: three reference points that are never mixed."""

    FLOAT = "float"
    """The model without quantization: what is missing was lost by quantization."""
    QUANTIZED = "quantized"
    """The quantized model as its file says, on the CPU: what is missing was lost by the device."""
    DEVICE = "device"
    """What the device or its emulator gave, when something else is held against that."""


class Measure(StrEnum):
    """What a judged number measures."""

    SQNR = "sqnr"
    SLICE = "slice"
    GAIN = "gain"
    SAMPLE = "sample"
    COSINE = "cosine"
    AGREEMENT = "agreement"
    BOX_ERROR = "box-error"
    SCORE_ERROR = "score-error"
    LOST = "lost"
    INVENTED = "invented"
    ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One row of the table. ``at_least`` says in which direction the value must lie; ``unit`` is "" for a ratio."""

    measure: Measure
    value: float
    at_least: bool
    reason: str
    source: str
    unit: str = ""

    def holds(self, value: float) -> bool:
        """True when a value meets the limit; NaN meets none."""
        return value >= self.value if self.at_least else value <= self.value

    def asked(self) -> str:
        """The limit as words: ``at least 20 dB``."""
        return f"at {'least' if self.at_least else 'most'} {self.value:g}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFile:
    """``limits.toml``."""

    schema: int
    limit: Mapping[str, Limit]


@cache
def limits() -> Mapping[str, Limit]:
    """The rows by name; those of ``measure/device`` are for the same graph on another machine."""
    path = Path(__file__).with_name("limits.toml")
    return structure(LimitFile, read_toml(path), where=f"{path.name}:").limit


ASKED = "you asked for it"
"""The reason of a limit that a user set."""

_NARROW = 8
_REFERENCE_SIDE = 640.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the user asks for instead of the table, or beside it; None leaves the table's limit.

    ``min_sqnr`` in dB, ``max_box_error`` in pixels, ``min_cosine`` and ``min_agreement`` as ratios. ``min_psnr`` (dB)
    and ``max_error`` have no row: they are asked of saved outputs only.
    """

    min_sqnr: float | None = None
    max_box_error: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    min_psnr: float | None = None
    max_error: float | None = None
    _by_measure: Mapping[Measure, float | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        asked = {
            Measure.SQNR: self.min_sqnr,
            Measure.BOX_ERROR: self.max_box_error,
            Measure.COSINE: self.min_cosine,
            Measure.AGREEMENT: self.min_agreement,
        }
        object.__setattr__(self, "_by_measure", asked)

    def of(self, measure: Measure) -> float | None:
        """What was asked of one measure."""
        return self._by_measure.get(measure)


def limit_for(
    measure: Measure,
    *,
    same_graph: bool = False,
    bits: int = 0,
    asked: Thresholds | None = None,
    image_side: float = _REFERENCE_SIDE,
) -> Limit:
    """The row that counts. ``same_graph`` asks for what a device must reach that runs the very graph of the reference.

    ``bits`` is the narrowest activation type (0: float); ``image_side`` scales errors of boxes.
    """
    narrow = f"/{_NARROW}" if 0 < bits <= _NARROW else ""
    keys = (f"{measure}/device{narrow}", f"{measure}/device", f"{measure}")
    table = limits()
    row = next(table[key] for key in (keys if same_graph else keys[-1:]) if key in table)
    value = row.value
    if measure is Measure.BOX_ERROR:
        value *= image_side / _REFERENCE_SIDE
    wanted = None if asked is None else asked.of(measure)
    return row if wanted is None and value == row.value else _changed(row, value if wanted is None else wanted, wanted)


def _changed(row: Limit, value: float, wanted: float | None) -> Limit:
    return replace(row, value=value) if wanted is None else replace(row, value=value, reason=ASKED)

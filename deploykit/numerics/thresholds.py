"""The one table of what is asked of an output: per kind of number a limit, its reason and its source.

Light: no arrays. It compares nothing; whoever measures looks its limits up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

__all__ = ["ASKED", "LIMITS", "Against", "Limit", "Measure", "Thresholds", "limit_for"]


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
    unit: str
    at_least: bool
    reason: str
    source: str

    def holds(self, value: float) -> bool:
        """True when a value meets the limit; NaN meets none."""
        return value >= self.value if self.at_least else value <= self.value

    def asked(self) -> str:
        """The limit as words: ``at least 20 dB``."""
        return f"at {'least' if self.at_least else 'most'} {self.value:g}{' ' + self.unit if self.unit else ''}"


_MEASURED = "observed: right and deliberately wrong models of the tests, see docs/numbers.md"
_EMULATED = (
    "observed: right kernels of the test data had 30 dB and more in 8 bits, 45 in 16, 56 in float; wrong ones 22"
)

LIMITS: Mapping[str, Limit] = {
    "sqnr": Limit(
        measure=Measure.SQNR,
        value=12.0,
        unit="dB",
        at_least=True,
        reason="noise of a quarter of the signal; four-bit weights that are as good as they can be have 14 to 17 dB",
        source=_MEASURED,
    ),
    "gain": Limit(
        measure=Measure.GAIN,
        value=0.1,
        unit="",
        at_least=False,
        reason="all values too large or too small by one share is a wrong scale: rounding is independent of the signal",
        source="the projection on the reference; quantized models of the tests have 0.02 at most",
    ),
    "sqnr/device/8": Limit(
        measure=Measure.SQNR,
        value=20.0,
        unit="dB",
        at_least=True,
        reason="a device that rounds 8 bits another way stays well above it, a wrong kernel does not",
        source=_EMULATED,
    ),
    "sqnr/device": Limit(
        measure=Measure.SQNR,
        value=35.0,
        unit="dB",
        at_least=True,
        reason="a device that rounds 16 bits or float16 another way stays well above it, a wrong kernel does not",
        source=_EMULATED,
    ),
    "slice": Limit(
        measure=Measure.SLICE,
        value=3.0,
        unit="dB",
        at_least=True,
        reason="half the energy of what varies in a slice is noise; a dead slice has 0 dB whatever the whole has",
        source="a constant in place of a varying signal leaves at most 0 dB of it, by the definition of variance",
    ),
    "sample": Limit(
        measure=Measure.SAMPLE,
        value=10.0,
        unit="dB",
        at_least=True,
        reason="the worst sample beside the mean energy: one wrong sample of eight has 9 dB more in the whole",
        source="eight samples share one mean: 10 log10 of 8, by the definition of the mean",
    ),
    "cosine": Limit(
        measure=Measure.COSINE,
        value=0.99,
        unit="",
        at_least=True,
        reason="embeddings are compared by angle; 0.99 is 8 degrees, less than neighbours of one class differ by",
        source=_MEASURED,
    ),
    "agreement": Limit(
        measure=Measure.AGREEMENT,
        value=0.95,
        unit="",
        at_least=True,
        reason="labels are right or wrong; near ties may fall the other way after quantization",
        source=_MEASURED,
    ),
    "agreement/device": Limit(
        measure=Measure.AGREEMENT,
        value=0.98,
        unit="",
        at_least=True,
        reason="the same integers on another device: only exact ties may differ",
        source=_MEASURED,
    ),
    "box-error": Limit(
        measure=Measure.BOX_ERROR,
        value=8.0,
        unit="px",
        at_least=False,
        reason="8 pixels of 640: 1.25 % of the image's longer side, scaled with it",
        source="observed: right W8A16 builds of a decoder detector had 6.1 to 8.0 px, broken ones 838 and more",
    ),
    "score-error": Limit(
        measure=Measure.SCORE_ERROR,
        value=0.05,
        unit="",
        at_least=False,
        reason="mean over matched detections; a twentieth rarely moves one across a working threshold",
        source=_MEASURED,
    ),
    "lost": Limit(
        measure=Measure.LOST,
        value=0.1,
        unit="",
        at_least=False,
        reason="share of the reference's detections without a partner, near misses of the threshold forgiven",
        source=_MEASURED,
    ),
    "invented": Limit(
        measure=Measure.INVENTED,
        value=0.1,
        unit="",
        at_least=False,
        reason="detections that the reference does not have, as a share of those it has, near misses forgiven",
        source=_MEASURED,
    ),
    "rows": Limit(
        measure=Measure.ROWS,
        value=0.5,
        unit="",
        at_least=True,
        reason="two sides that share less than half of the rows they chose did not choose the same things",
        source="of rows picked from a few near ties a third may differ; of independent picks nearly all do",
    ),
}
"""``measure/device`` rows, by bits or not, are for the same graph on another machine; ``measure`` rows for all else."""

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
    row = next(LIMITS[key] for key in (keys if same_graph else keys[-1:]) if key in LIMITS)
    value = row.value
    if measure is Measure.BOX_ERROR:
        value *= image_side / _REFERENCE_SIDE
    wanted = None if asked is None else asked.of(measure)
    return row if wanted is None and value == row.value else _changed(row, value if wanted is None else wanted, wanted)


def _changed(row: Limit, value: float, wanted: float | None) -> Limit:
    return replace(row, value=value) if wanted is None else replace(row, value=value, reason=ASKED)

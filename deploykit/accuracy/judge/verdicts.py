"""What a judgement says: numbers beside what is asked, and right, wrong or not judged. Plain values, no arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deploykit.accuracy.judge.kept_counts import KeptCount
from deploykit.accuracy.judge.thresholds import Against, Limit, Measure, Thresholds, limit_for
from deploykit.errors import InputError
from deploykit.system.published import Published

__all__ = ["NOT_JUDGED", "Context", "JudgedNumber", "Oddity", "Verdict"]

NOT_JUDGED = "not judged: give --calibration or --input"
"""Why there is no verdict on inputs that mean nothing."""

_ARBITRARY = "arbitrary"
_SAME_SHARE, _SAME_DB = 0.01, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedNumber:
    """One number about one output, with what is asked of it and what it was measured on.

    ``kind`` is the kind of output; ``where`` a part of it ("" for all). ``note`` says why it counts for nothing, "" for
    one that counts. ``value`` may be infinite (no difference at all).
    """

    output: str
    kind: str
    value: float
    limit: Limit
    label: str
    count: int
    against: Against
    where: str = ""
    note: str = ""

    @property
    def passes(self) -> bool | None:
        """Whether the limit is met; None for a number that counts for nothing."""
        return None if self.note or self.label == _ARBITRARY else self.limit.holds(self.value)

    @property
    def subject(self) -> str:
        """What it is about: the output, the measure, and the part."""
        part = f" ({self.where})" if self.where else ""
        return f"{self.output or 'the output'} {self.limit.measure}{part}"

    def to_json(self) -> dict[str, Any]:
        """The published shape; a value that is not finite is None."""
        return {
            "output": self.output,
            "measure": str(self.limit.measure),
            "where": self.where,
            "value": _finite(self.value),
            "exact": self.value == math.inf,
            "unit": self.limit.unit,
            "threshold": self.limit.value,
            "kind": self.kind,
            "samples": {"label": str(self.label), "count": self.count},
            "against": str(self.against),
            "passes": self.passes,
            "note": self.note,
        }

    def __str__(self) -> str:
        """For people: ``0.9998 where at least 0.99 is asked``."""
        unit = f" {self.limit.unit}" if self.limit.unit else ""
        shown = "no difference" if self.value == math.inf else f"{self.value:.4g}{unit}"
        return f"{shown} where {self.limit.asked()} is asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every number of one judgement has in common. ``same_graph``: the reference is the same graph elsewhere."""

    label: str
    count: int
    against: Against
    bits: int
    thresholds: Thresholds | None
    same_graph: bool = False

    def number(
        self,
        output: str,
        kind: str,
        measure: Measure,
        value: float,
        *,
        where: str = "",
        note: str = "",
        side: float = 640.0,
    ) -> JudgedNumber:
        """A number with the row of the table that counts for it; ``side`` is the image's, for errors in pixels."""
        return JudgedNumber(
            output=output,
            kind=kind,
            value=value,
            limit=self.limit(measure, side),
            label=self.label,
            count=self.count,
            against=self.against,
            where=where,
            note=note,
        )

    def limit(self, measure: Measure, side: float = 640.0) -> Limit:
        """The row of the table."""
        return limit_for(measure, same_graph=self.same_graph, bits=self.bits, asked=self.thresholds, image_side=side)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity(Published):
    """Values of an output that are not finite although the reference's are, and the operator that made them."""

    output: str
    operator: str
    what: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``right`` is None when it was not judged, and then ``reason`` says why.

    ``overall_db`` and ``sqnr_db`` are signal to noise over all outputs and per output, rows matched; ``lost`` is the
    largest share of rows without a partner in any output. ``detections`` are counted strictly, beside the numbers: no
    near miss is forgiven, and nothing is asked of them here.
    """

    right: bool | None
    reason: str = ""
    numbers: tuple[JudgedNumber, ...] = ()
    oddities: tuple[Oddity, ...] = ()
    overall_db: float = math.inf
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    lost: float = 0.0
    detections: KeptCount | None = None

    @property
    def failures(self) -> tuple[JudgedNumber, ...]:
        """The numbers that miss what is asked."""
        return tuple(number for number in self.numbers if number.passes is False)

    @property
    def kept(self) -> float | None:
        """The least share of the reference's detections that are there, at any working score; None without any."""
        lost = [number.value for number in self.numbers if number.limit.measure is Measure.LOST]
        return 1 - max(lost) if lost else None

    @property
    def described(self) -> str:
        """In a few words: right or wrong, the share of detections lost where there are any, and the noise."""
        right = {True: "right", False: "wrong", None: "not judged"}[self.right]
        lost = "" if self.kept is None else f"{1 - self.kept:.1%} of the detections lost, "
        return f"{right}, {lost}{self.overall_db:.1f} dB"

    def is_better_than(self, other: Verdict) -> bool:
        """True where this one is right and the other not, else where it keeps clearly more detections, else by noise.

        A hundredth of the detections and a decibel are no difference.
        """
        if (self.right is True) is not (other.right is True):
            return self.right is True
        kept = (self.kept or 0.0) - (other.kept or 0.0)
        if abs(kept) > _SAME_SHARE:
            return kept > 0
        return self.overall_db > other.overall_db + _SAME_DB

    def lines(self) -> tuple[str, ...]:
        """For people: the answer with its samples, then every number that counts, misses first."""
        word = {True: "yes", False: "no", None: "not judged"}[self.right]
        first = next(iter(self.numbers), None)
        samples = "" if first is None else f", on {first.count} {first.label} sample{'s' if first.count != 1 else ''}"
        reason = f": {self.reason.removeprefix('not judged: ')}" if self.reason else ""
        counting = sorted((n for n in self.numbers if n.passes is not None), key=lambda number: number.passes is True)
        return (f"right: {word}{samples}{reason}", *(f"  {number.subject}: {number}" for number in counting))

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None."""
        return {
            "right": self.right,
            "reason": self.reason,
            "numbers": [number.to_json() for number in self.numbers],
            "not_finite": [oddity.to_json() for oddity in self.oddities],
            "sqnr_db": _finite(self.overall_db),
            "outputs": {name: _finite(value) for name, value in self.sqnr_db.items()},
            "lost_rows": round(self.lost, 4),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Verdict:
        """Back from ``to_json``; raises InputError for anything else. Totals that were not finite are NaN."""
        try:
            return cls(
                right=value["right"],
                reason=value["reason"],
                numbers=tuple(_number(entry) for entry in value["numbers"]),
                oddities=tuple(Oddity(**entry) for entry in value["not_finite"]),
                overall_db=_number_or(value["sqnr_db"], math.nan),
                sqnr_db={name: _number_or(entry, math.nan) for name, entry in value["outputs"].items()},
                lost=value["lost_rows"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("not a verdict", why=repr(error)) from None


def _number(entry: Mapping[str, Any]) -> JudgedNumber:
    against = Against(entry["against"])
    row = limit_for(Measure(entry["measure"]))
    return JudgedNumber(
        output=entry["output"],
        kind=entry["kind"],
        value=_number_or(entry["value"], math.inf if entry["exact"] else math.nan),
        limit=replace(row, value=float(entry["threshold"])),
        label=entry["samples"]["label"],
        count=int(entry["samples"]["count"]),
        against=against,
        where=entry["where"],
        note=entry["note"],
    )


def _number_or(value: Any, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def _finite(value: float) -> float | None:
    """Six digits: what lies beyond differs between machines, and the same inputs give the same bytes."""
    return float(f"{value:.6g}") if math.isfinite(value) else None

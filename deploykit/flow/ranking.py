"""Chooses among ways to deploy: from judged numbers where there are any, else by structure alone.

Pure: no graph, no runtime. It says of every way why it won or lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploykit.findings import Confidence

__all__ = ["Choice", "Way", "choose", "choose_unjudged", "is_proven"]

_EQUAL_DB = 0.05
"""A difference that is none: simulations of the same thing on the same samples agree better than that."""

_TIE_DB = 1.0
"""Ways that are closer than this are equally good: the less intrusive one wins."""

_ENOUGH_DB = 80.0
"""Better than this no application notices: what is above is no reason to change more of a model."""

_BEYOND_DOUBT_DB = 70.0
"""What 16-bit integers reach where nothing is lost."""

_SAME_SHARE = 0.01
"""A hundredth of the detections is no difference between ways that are wrong."""

_SMALL_LOSS_DB = 3.0
"""What may be lost against the encodings' own simulation before float16 is worth its risks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to deploy, with its simulated quality. ``sqnr_db`` is per output of the original model.

    ``overall_db`` is NaN for a way that was not judged; ``right`` is the judge's word, None where there is none.
    ``kept`` is the share of detections that are still there, None without any.

    ``lost_rows`` is the share of rows behind a TopK that only one side chose: they are not part of the numbers.
    ``kind`` is ``integer`` (no float16 left), ``fallback`` (the SDK mixes), ``segments`` or ``direct`` (another
    compiler than the SDK's takes the mix as it is meant). ``intrusion`` orders ways by how much they change: 0 nothing,
    1 rewrites or another compiler, 2 other outputs, 3 a host tail.
    """

    id: str
    kind: str
    overall_db: float = math.nan
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    float16_tensors: int = 0
    borders: int = 0
    segments: int = 1
    rewrites: tuple[str, ...] = ()
    intrusion: int = 0
    confidence: Confidence = Confidence.INFERRED
    unavailable: str = ""
    lost_rows: float = 0.0
    right: bool | None = None
    kept: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The published shape of a plan's candidate, without the verdict."""
        return {
            "id": self.id,
            "float16_tensors": self.float16_tensors,
            "borders": self.borders,
            "segments": self.segments,
            "rewrites": list(self.rewrites),
            "overall_db": _finite(self.overall_db),
            "sqnr_db": {name: _finite(value) for name, value in self.sqnr_db.items()},
            "lost_rows": round(self.lost_rows, 4),
            "right": self.right,
            "confidence": str(self.confidence),
        }


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The winner, or None when no way is available, and the verdict on every way by id."""

    winner: Way | None
    verdicts: Mapping[str, str]
    ways: tuple[Way, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """The candidates in the published shape."""
        won = self.winner.id if self.winner is not None else None
        return [{**way.to_json(), "won": way.id == won, "why": self.verdicts[way.id]} for way in self.ways]


def is_proven(way: Way, reference_db: float, *, reference_right: bool) -> bool:
    """True for an integer way that is right and as good as the encodings' own simulation: no other is needed.

    That simulation holds what was meant as float in float, so reaching it costs nothing against float16 either. Where
    it is not right itself it is no measure, and a way must be beyond doubt.
    """
    wanted = min(reference_db, _ENOUGH_DB) if reference_right else _BEYOND_DOUBT_DB
    reaches = way.overall_db >= wanted - _EQUAL_DB
    return way.kind == "integer" and way.right is True and not way.unavailable and reaches


def choose_unjudged(
    ways: Sequence[Way], *, sdk_mixes_safely: bool = False, mixed: str = "auto", means_floats: bool = True
) -> Choice:
    """Pick a way by structure: what was meant, by the surest means, with the least change.

    Where float16 was meant (``means_floats``) it stays float16, for without numbers nobody knows what integers would
    cost there.
    """
    open_ways = [way for way in ways if not way.unavailable and _wanted(way, mixed)]
    mixing = [way for way in open_ways if way.kind != "integer"]
    fallback = [way for way in mixing if way.kind == "fallback"]
    integer = [way for way in open_ways if way.kind == "integer"]
    proven = [way for way in integer if way.rewrites]
    stages = (
        (
            [] if means_floats else proven or integer,
            "the file means no float16, and every range follows from what it says",
        ),
        (fallback if sdk_mixes_safely else [], "this SDK mixes float16 and integers safely"),
        (_surest(mixing), "float16 was meant, and this is the surest way to it"),
        (proven, "its rewrites are proven equal, and each answers a trouble in the graph"),
        (integer, "no other way is available"),
    )
    for members, why in stages:
        if members:
            winner = min(members, key=lambda way: (way.intrusion, way.borders + way.segments, way.id))
            others = {way.id: way.unavailable or f"not judged; {winner.id} was chosen on structure" for way in ways}
            return Choice(winner=winner, verdicts={**others, winner.id: f"not judged; {why}"}, ways=tuple(ways))
    verdicts = {way.id: way.unavailable or f"not asked for (--mixed {mixed})" for way in ways}
    return Choice(winner=None, verdicts=verdicts, ways=tuple(ways))


def choose(ways: Sequence[Way], *, reference_db: float, sdk_mixes_safely: bool = False, mixed: str = "auto") -> Choice:
    """Pick a way. ``reference_db`` is the simulation of the encodings as they were given.

    ``mixed`` is ``auto``, or ``fallback`` or ``segments`` to insist on that kind, or ``refuse`` to take integer ways
    only. In ``auto``: integer ways that reach the reference; then the SDK's own mix where that is safe; then integer
    ways that lose little; then float16 by confidence and quality.
    """
    open_ways = [way for way in ways if not way.unavailable and _wanted(way, mixed)]
    integer = [way for way in open_ways if way.kind == "integer"]
    mixing = [way for way in open_ways if way.kind != "integer"]
    fallback = [way for way in mixing if way.kind == "fallback"]
    stages = (
        (_reaching(integer, reference_db), "it needs no float16 and is as good as the encodings' own simulation"),
        (fallback if sdk_mixes_safely else [], "this SDK mixes float16 and integers safely"),
        (_reaching(integer, reference_db - _SMALL_LOSS_DB), "it needs no float16 and loses little"),
        (_surest(mixing), "float16 is needed, and this is the surest way to it"),
        (integer, "no other way is available"),
    )
    for members, why in stages:
        winner = _best(members)
        if winner is not None:
            return Choice(winner=winner, verdicts=_verdicts(ways, winner, why, reference_db, mixed), ways=tuple(ways))
    verdicts = {way.id: way.unavailable or f"not asked for (--mixed {mixed})" for way in ways}
    return Choice(winner=None, verdicts=verdicts, ways=tuple(ways))


def _wanted(way: Way, mixed: str) -> bool:
    if mixed in ("fallback", "segments"):
        return way.kind == mixed
    return mixed == "auto" or way.kind == "integer"


def _reaching(ways: list[Way], least_db: float) -> list[Way]:
    return [way for way in ways if way.overall_db >= min(least_db, _ENOUGH_DB) - _EQUAL_DB]


def _surest(ways: list[Way]) -> list[Way]:
    rank = min((way.confidence.rank for way in ways), default=0)
    return [way for way in ways if way.confidence.rank == rank]


def _best(ways: list[Way]) -> Way | None:
    """The least intrusive of those within a decibel of the best, or good enough; then fewer borders and segments.

    A way that is right goes before any that is not, whatever the numbers of outputs that are wrong; where none is, one
    that clearly keeps more detections.
    """
    ways = [way for way in ways if way.right] or _keeping(ways)
    if not ways:
        return None
    top = min(max(way.overall_db for way in ways), _ENOUGH_DB + _TIE_DB)
    close = [way for way in ways if way.overall_db >= top - _TIE_DB]
    return min(close, key=lambda way: (way.intrusion, way.borders + way.segments, -way.overall_db, way.id))


def _keeping(ways: list[Way]) -> list[Way]:
    """Those that lose hardly more detections than the best."""
    most = max((way.kept for way in ways if way.kept is not None), default=None)
    return ways if most is None else [way for way in ways if way.kept is None or way.kept >= most - _SAME_SHARE]


def _verdicts(ways: Sequence[Way], winner: Way, why: str, reference_db: float, mixed: str) -> dict[str, str]:
    return {way.id: why if way is winner else _lost(way, winner, reference_db, mixed) for way in ways}


def _lost(way: Way, winner: Way, reference_db: float, mixed: str) -> str:
    if way.unavailable:
        return way.unavailable
    if not _wanted(way, mixed):
        return f"not asked for (--mixed {mixed})"
    if way.kind != "integer" and winner.kind == "integer":
        return f"{way.float16_tensors} float16 tensors and {way.borders} borders that {winner.id} does without"
    if way.overall_db < min(winner.overall_db, _ENOUGH_DB) - _TIE_DB:
        return f"{_db(way.overall_db)} against {_db(winner.overall_db)} of {winner.id}"
    if winner.kind == "integer" and way.overall_db < reference_db - _EQUAL_DB:
        return f"{_db(way.overall_db)} is less than the encodings' own simulation has ({_db(reference_db)})"
    if way.confidence.rank > winner.confidence.rank:
        return f"{winner.id} is surer to work"
    return f"{winner.id} is as good and changes less"


def _db(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else ("no error" if value > 0 else "no signal")

"""Lowers what a feature row says to an inference for the releases of which its sources do not speak.

A status is never changed here: a row that should say unknown beyond its sources says so in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from packaging.version import Version

from deploykit.findings import Confidence
from deploykit.tables.capabilities import Feature

__all__ = ["beyond_sources", "judged_features"]


def beyond_sources(row: Feature, version: str) -> bool:
    """True when the row's sources are bound to releases and this is none of them."""
    if not row.extent:
        return False
    first, last = row.extent
    return _before(version, first) or bool(last and _before(last, version))


def judged_features(stated: Mapping[Any, Feature], parent: Mapping[Any, Feature], version: str) -> dict[Any, Feature]:
    """The rows as they hold at one release; a row that did not change is the very object of the parent release."""
    found = {}
    for key, row in stated.items():
        made = _lowered(row) if beyond_sources(row, version) else row
        before = parent.get(key)
        if before is made:
            found[key] = before
            continue
        same = before is not None and _say_the_same(made, before)
        found[key] = before if same and before is not None else replace(made, since=version) if before else made
    return found


@cache
def _say_the_same(one: Feature, other: Feature) -> bool:
    """Equal but for when that began; release after release asks it of the same two."""
    return replace(one, since=other.since) == other


@cache
def _lowered(row: Feature) -> Feature:
    if row.confidence is Confidence.INFERRED:
        return row
    first, last = row.extent
    seen = f"its sources speak of {first}{'' if last == first else f' to {last}' if last else ' and later'}"
    note = "; ".join(part for part in (row.confidence_note, f"{seen}; for this release by inference") if part)
    return replace(row, confidence=Confidence.INFERRED, confidence_note=note)


def _before(version: str, other: str) -> bool:
    """Older, as far as both have numbers: 2.36 is not older than 2.36.1, it is the series."""
    one, two = _release(version), _release(other)
    length = min(len(one), len(two))
    return one[:length] < two[:length]


@cache
def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version; the same few are asked about for every row of every release."""
    return Version(version).release

"""What became of the atlas's rows on other chips and releases: the case of each, run there.

Of some chips the cases behind the conditions were run as well: ``drawn`` of them. It reads data and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from deploykit.tables.reading import parse_rows, read_toml
from deploykit_qualcomm.atlas.rows import Row

__all__ = ["PLACES", "Place", "place_of", "places", "told_elsewhere", "verdict_at", "verdict_in"]

PLACES = Path(__file__).parents[1] / "data" / "atlas" / "elsewhere.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One release for one chip, how many rows' cases ran for it, and the verdicts that differ from the rows'.

    ``drawn`` is how many cases of the sweep ran beside those, and ``turned`` names each that is otherwise here.
    """

    sdk: str
    soc: int
    asked: int
    drawn: int = 0
    otherwise: Mapping[str, str] = field(default_factory=dict)
    turned: Mapping[str, str] = field(default_factory=dict)

    def verdict(self, row: Row) -> str:
        """What the row's case is here."""
        return self.otherwise.get(row.id, row.verdict)


@cache
def places(path: Path = PLACES) -> tuple[Place, ...]:
    """In the order of the file; InputError where it is damaged."""
    return parse_rows(Place, read_toml(path).get("place", []), where=path.name)


def place_of(sdk: str, soc: int | None) -> Place | None:
    """What ran for a chip by exactly this release; None where nothing did."""
    return next((place for place in places() if (place.sdk, place.soc) == (sdk, soc)), None)


def verdict_at(row: Row, soc: int | None) -> str:
    """The verdict of a row's case for a chip, by the row's own release; "" where it did not run for that chip."""
    if soc == row.soc:
        return row.verdict
    place = place_of(row.sdk, soc)
    return "" if place is None else place.verdict(row)


def verdict_in(row: Row, release: str) -> str:
    """The verdict of a row's case by a release of the same series, for the row's chip; "" where none of it ran that."""
    if _is_of_series(release, row.sdk):
        return row.verdict
    of_chip = (place for place in places() if place.soc == row.soc and _is_of_series(release, place.sdk))
    return next((place.verdict(row) for place in of_chip), "")


def _is_of_series(release: str, sdk: str) -> bool:
    """2.51 and 2.51.3 are of the series of 2.51.0; 2.5 is not."""
    return release.split(".")[:2] == sdk.split(".")[:2]


def told_elsewhere(row: Row) -> str:
    """In words: on which chips and in which releases its case is the same, and where not."""
    chips = [(str(place.soc), place.verdict(row)) for place in places() if place.sdk == row.sdk]
    releases = [(place.sdk, place.verdict(row)) for place in places() if place.soc == row.soc]
    told = [_told(name, found, row.verdict) for name, found in (("soc_model", chips), ("QAIRT", releases)) if found]
    return "; ".join(told)


def _told(name: str, found: Iterable[tuple[str, str]], verdict: str) -> str:
    by_verdict: dict[str, list[str]] = {}
    for where, said in found:
        by_verdict.setdefault(said, []).append(where)
    same = by_verdict.pop(verdict, [])
    parts = [f"the same for {name} {', '.join(same)}"] if same else []
    return ", ".join([*parts, *(f"{said} for {name} {', '.join(where)}" for said, where in by_verdict.items())])

"""Runs the case of every row, or those behind the conditions, for another chip or release; minutes long."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from atlas.cases import case_of
from atlas.folding import verdict_of_point
from atlas.measuring import Point, measure
from deploykit.errors import UsageError
from deploykit_ort_qnn.compiler.hosts import Host
from deploykit_qualcomm.atlas.rows import KernelVerdict, MeasuredPlace, atlas_rows, place_of

__all__ = ["drawn_cases", "run_cases", "run_rows"]

_SEED = 1206
_REFUSED = 400


def run_rows(*, sdk: str, soc: int, host: Host | None, progress: Callable[[str], None]) -> MeasuredPlace:
    """Every row's case there; UsageError where that is the place of the rows themselves."""
    rows = [row for row in atlas_rows() if (row.sdk, row.soc) != (sdk, soc)]
    if not rows:
        raise UsageError(f"QAIRT {sdk} for soc_model {soc} is where the rows are from", next="another chip or release")
    progress(f"{len(rows)} rows for soc_model {soc} by QAIRT {sdk}")
    points = measure([case_of(row.example) for row in rows], host=host, soc_model=soc)
    found = {point.case: str(verdict_of_point(point)) for point in points}
    otherwise = {row.id: found[row.example] for row in rows if found[row.example] != row.verdict}
    before = place_of(sdk, soc) or MeasuredPlace(sdk=sdk, soc=soc, asked=0)
    return replace(before, asked=len(rows), otherwise=otherwise)


def drawn_cases(points: Sequence[Point]) -> dict[str, str]:
    """All that are wrong or narrowed, as many right ones of the same operators, some refused; each with its verdict."""
    verdicts = {point.case: verdict_of_point(point) for point in points}
    off = [case for case, verdict in verdicts.items() if verdict is KernelVerdict.WRONG]
    off += [case for case, verdict in verdicts.items() if verdict is KernelVerdict.NARROWED]
    operators = {_operator(case) for case in off}
    right = [
        case for case, verdict in verdicts.items() if verdict is KernelVerdict.RIGHT and _operator(case) in operators
    ]
    refused = [case for case, verdict in verdicts.items() if verdict is KernelVerdict.REFUSED]
    chance = random.Random(_SEED)
    some = chance.sample(right, min(len(off), len(right)))
    some += chance.sample(refused, min(_REFUSED, len(refused)))
    return {case: str(verdicts[case]) for case in (*off, *some)}


def run_cases(
    points: Sequence[Point], *, sdk: str, soc: int, host: Host | None, progress: Callable[[str], None]
) -> MeasuredPlace:
    """The cases drawn from a sweep there; UsageError where the rows' own cases did not run there before."""
    place = place_of(sdk, soc)
    if place is None:
        raise UsageError(f"the rows did not run for soc_model {soc} by QAIRT {sdk}", next="the same with --rows first")
    drawn = drawn_cases(points)
    progress(f"{len(drawn)} cases for soc_model {soc} by QAIRT {sdk}")
    points_here = measure([case_of(case) for case in drawn], host=host, soc_model=soc)
    here = {point.case: str(verdict_of_point(point)) for point in points_here}
    turned = {case: f"{was}, here {here[case]}" for case, was in drawn.items() if here[case] != was}
    return replace(place, drawn=len(drawn), turned=turned)


def _operator(case: str) -> str:
    return case.partition(":")[0]

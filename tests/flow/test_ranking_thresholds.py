"""Both sides of every threshold by which one way wins over another, and what the losers hear."""

import math
from dataclasses import replace
from typing import Any

import pytest

from deploykit.findings import Confidence
from deploykit.flow.choose import choose, is_proven
from deploykit.flow.ways import Way
from tables import each_row


def at(db: float, identity: str = "rewrite", kind: str = "integer", **more: object) -> Way:
    """A way of this quality, without any change to the model where nothing more is said."""
    return Way(id=identity, kind=kind, overall_db=db, **more)  # type: ignore[arg-type]


AS_IS, REWRITE, CUT = at(10.0, "as-is"), at(77.0, intrusion=1), at(78.5, "cut", intrusion=3)
FALLBACK = at(76.0, "fallback", "fallback", float16_tensors=5, borders=6, confidence=Confidence.REPORTED)
SEGMENTS = at(74.0, "segments", "segments", segments=3, borders=5, confidence=Confidence.OBSERVED)


@each_row(
    ("ways", "reference", "safe", "winner"),
    # Reaching the reference beats a safe SDK; five hundredths of a decibel are no difference.
    ((at(69.96), FALLBACK), 70, True, "rewrite"),
    ((at(69.94), FALLBACK), 70, True, "fallback"),
    # Beyond 80 dB nobody asks for more.
    ((at(79.96), FALLBACK), 95, True, "rewrite"),
    ((at(79.94), FALLBACK), 95, True, "fallback"),
    # Three decibels are a small loss.
    ((at(66.96), FALLBACK), 70, False, "rewrite"),
    ((at(66.94), FALLBACK), 70, False, "fallback"),
    # A decibel decides against the less intrusive, and above eighty more is not better.
    ((at(77.0, intrusion=1), at(77.99, "cut", intrusion=3)), 60, False, "rewrite"),
    ((at(77.0, intrusion=1), at(78.01, "cut", intrusion=3)), 60, False, "cut"),
    ((at(77.0, intrusion=1), at(75.0, "cut", intrusion=3)), 60, False, "rewrite"),
    ((at(80.01, intrusion=1), at(120.0, "cut", intrusion=3)), 60, False, "rewrite"),
    ((at(79.99, intrusion=1), at(120.0, "cut", intrusion=3)), 60, False, "cut"),
)
def test_which_way_wins(ways: tuple[Way, ...], reference: float, safe: bool, winner: str) -> None:
    choice = choose(ways, reference_db=reference, sdk_mixes_safely=safe)
    assert choice.winner is not None and choice.winner.id == winner


@each_row(
    ("one", "other", "winner"),
    ({"borders": 3}, {"borders": 2}, "b"),
    ({"borders": 2, "segments": 3}, {"borders": 3, "segments": 1}, "b"),
    ({}, {}, "a"),
)
def test_of_two_equals_fewer_borders_and_segments_win(one: dict[str, int], other: dict[str, int], winner: str) -> None:
    ways = (at(75.0, "a", "segments", **one), at(75.0, "b", "segments", **other))
    for choice in (choose(ways, reference_db=60), choose(ways), choose(ways[::-1])):
        assert choice.winner is not None and choice.winner.id == winner


@each_row(
    ("changes", "reference", "proven"),
    ({"overall_db": 60.0}, 60.0, True),
    ({"overall_db": 59.96}, 60.0, True),
    ({"overall_db": 59.94}, 60.0, False),
    ({"overall_db": 79.96}, 95.0, True),
    ({"overall_db": 79.94}, 95.0, False),
    *(({"right": right}, 60.0, False) for right in (False, None)),
    *((changes, 60.0, False) for changes in ({"overall_db": math.nan}, {"unavailable": "no"}, {"kind": "segments"})),
)
def test_what_is_proven(changes: dict[str, Any], reference: float, proven: bool) -> None:
    assert is_proven(replace(at(60.0, right=True), **changes), reference, reference_right=True) is proven


@pytest.mark.parametrize(("db", "proven"), [(69.9, False), (69.96, True), (75.0, True)])
def test_a_reference_that_is_wrong_is_no_measure(db: float, proven: bool) -> None:
    assert is_proven(at(db, right=True), 8.0, reference_right=False) is proven


def test_where_nobody_meant_float16_unjudged_ways_stay_integer() -> None:
    choice = choose((AS_IS, FALLBACK, SEGMENTS), sdk_mixes_safely=True, means_floats=False)
    assert choice.winner is AS_IS


@each_row(
    ("loser", "winner", "why"),
    (FALLBACK, REWRITE, "5 float16 tensors and 6 borders that rewrite does without"),
    (at(74.0, "cut", intrusion=3), REWRITE, "74.0 dB against 77.0 dB of rewrite"),
    (at(math.nan, "cut", "integer", unavailable="broken"), REWRITE, "broken"),
    (at(76.5, "cut", intrusion=3), REWRITE, "rewrite is as good and changes less"),
    (at(74.0, "fallback", "fallback"), SEGMENTS, "segments is surer to work"),
    (at(-math.inf, "cut"), REWRITE, "no signal against 77.0 dB of rewrite"),
    (
        at(76.4, intrusion=1),
        at(77.3, "cut", intrusion=3),
        "76.4 dB is less than the encodings' own simulation has (76.5 dB)",
    ),
)
def test_the_loser_hears_why(loser: Way, winner: Way, why: str) -> None:
    choice = choose((loser, winner), reference_db=76.5)
    assert choice.winner is winner and choice.verdicts[loser.id] == why


@each_row(
    ("ways", "safe", "winner", "why"),
    ((AS_IS, FALLBACK, SEGMENTS), True, "fallback", "this SDK mixes float16 and integers safely"),
    ((AS_IS, FALLBACK, SEGMENTS), False, "segments", "float16 was meant, and this is the surest way to it"),
    (
        (AS_IS, at(1.0, rewrites=("fold",), intrusion=1)),
        True,
        "rewrite",
        "its rewrites are proven equal, and each answers a trouble in the graph",
    ),
    ((AS_IS, CUT), False, "as-is", "no other way is available"),
)
def test_unjudged_ways_go_by_structure(ways: tuple[Way, ...], safe: bool, winner: str, why: str) -> None:
    choice = choose(ways, sdk_mixes_safely=safe)
    assert choice.winner is not None and choice.winner.id == winner
    assert choice.verdicts[winner] == f"not judged; {why}"
    others = {way.id for way in ways} - {winner}
    assert {choice.verdicts[other] for other in others} == {f"not judged; {winner} was chosen on structure"}


def test_unjudged_ways_that_nobody_asked_for_are_none() -> None:
    choice = choose((AS_IS, replace(CUT, unavailable="broken")), mixed="segments")
    assert choice.winner is None
    assert dict(choice.verdicts) == {"as-is": "not asked for (--mixed segments)", "cut": "broken"}


def test_a_candidate_is_published_with_rounded_numbers() -> None:
    way = at(76.54321, sqnr_db={"y": 1.23456, "z": math.inf}, lost_rows=0.123456, borders=2, right=True)
    row = choose((way,), reference_db=70).to_json()[0]
    assert (row["overall_db"], row["sqnr_db"], row["lost_rows"]) == (76.543, {"y": 1.235, "z": None}, 0.1235)
    assert row["won"] is True and row["right"] is True

"""Goals: what the judge's own limits, kept detections and measures ask for, and what cannot be told."""

from __future__ import annotations

import math

import pytest

from deploykit.accuracy.judge.verdict import Against, Context, KeptCount, Measure, Verdict
from deploykit.accuracy.search.goals import Reached, goal_for, parse_goal
from deploykit.errors import UsageError
from tables import each_row

ENOUGH = KeptCount(wanted=(100, 100), made=(100, 100), kept=(99, 99))
SHORT = KeptCount(wanted=(100, 100), made=(100, 100), kept=(96, 95))
FEW = KeptCount(wanted=(15,), made=(15,), kept=(15,))
NONE = KeptCount(wanted=(0,), made=(0,), kept=(0,))


@each_row(
    ("goal", "reached", "met"),
    [
        ("right", Reached(right=True, detections=ENOUGH, sqnr_db=20), True),
        ("right", Reached(right=False, detections=ENOUGH, sqnr_db=80), False),
        ("right", Reached(right=None, detections=ENOUGH, sqnr_db=80), None),
        ("right", Reached(right=True, detections=SHORT, sqnr_db=80), False),
        ("right", Reached(right=True, detections=FEW, sqnr_db=80), None),
        ("right", Reached(right=True, detections=NONE, sqnr_db=31), True),
        ("right", Reached(right=True, sqnr_db=29), False),
        ("right", Reached(right=True), None),
        ("kept>=95%", Reached(right=False, detections=ENOUGH), True),
        ("kept>=0.95", Reached(detections=SHORT), False),
        ("kept>=95%", Reached(detections=FEW), None),
        ("kept>=95%", Reached(sqnr_db=90), None),
        ("kept>=80%", Reached(detections=FEW), True),
        ("lost<=5%", Reached(detections=ENOUGH), True),
        ("lost<=5%", Reached(detections=SHORT), False),
        ("rise<=1%", Reached(metric=5.04, reference=5.0), True),
        ("rise<=1%", Reached(metric=5.06, reference=5.0), False),
        ("rise<=1%", Reached(metric=4.0, reference=5.0), True),
        ("drop<=1%", Reached(metric=4.0, reference=5.0), False),
    ],
)
def test_what_meets_a_goal(goal: str, reached: Reached, met: bool | None) -> None:
    assert parse_goal(goal).is_met(reached) is met


def test_why_it_cannot_be_told_names_the_number_that_is_needed() -> None:
    assert parse_goal("right").why_open(Reached(right=True, detections=FEW)) == (
        "15 detections show no share of 95%: at least 52 are needed"
    )
    assert "detects nothing" in parse_goal("kept>=95%").why_open(Reached(detections=NONE))


def test_the_usual_goal() -> None:
    assert str(goal_for(None, has_metric=False)) == "right"
    assert str(goal_for(None, has_metric=True)) == "drop <= 1%"
    assert str(goal_for(None, has_metric=False, may_judge=False)) == "sqnr >= 30 dB"
    with pytest.raises(UsageError, match="asks about a measure"):
        goal_for("drop<=1%", has_metric=False)


@each_row("text", ["kept>=100%", "kept>=95", "lost<=0%", "lost<=2", "kept<=5%", "kept>=95db"])
def test_shares_that_nobody_can_show(text: str) -> None:
    with pytest.raises(UsageError, match="--goal"):
        parse_goal(text)


def test_more_is_better_whatever_is_measured() -> None:
    assert parse_goal("right").quality(Reached(sqnr_db=40, detections=ENOUGH)) == 100 * ENOUGH.surely
    assert parse_goal("right").quality(Reached(sqnr_db=40)) == 40
    assert parse_goal("rise<=1%").quality(Reached(metric=5.0)) == -5.0
    assert parse_goal("metric<=3").quality(Reached(metric=5.0)) == -5.0
    assert math.isnan(parse_goal("metric>=3").quality(Reached()))


@pytest.mark.parametrize(("label", "met"), [("given", True), ("derived", None)])
def test_made_up_inputs_reach_no_goal(label: str, met: bool | None) -> None:
    number = Context(label=label, count=8, against=Against.FLOAT).number("y", "dense", Measure.SQNR, 60.0)
    verdict = Verdict(right=True, numbers=(number,), overall_db=60.0)
    assert parse_goal("right").is_met(Reached.of(verdict)) is met

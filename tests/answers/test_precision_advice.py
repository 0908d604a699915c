"""Goals as people write them."""

import math

import pytest

from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.errors import UsageError
from tables import each_row


@each_row(
    ("text", "shown"),
    ("sqnr>=30", "sqnr >= 30 dB"),
    ("SQNR >= 30 dB", "sqnr >= 30 dB"),
    ("drop<=1%", "drop <= 1%"),
    ("drop<=.5", "drop <= 0.5"),
    ("metric>=0.75", "metric >= 0.75"),
    ("metric<=5e-2", "metric <= 0.05"),
)
def test_goals(text: str, shown: str) -> None:
    assert str(parse_goal(text)) == shown


@each_row(
    ("text", "says"),
    *((text, "not understood") for text in ("", "sqnr", "sqnr>=thirty")),
    ("sqnr<=30", "goes with >="),
    ("drop>=1%", "goes with <="),
    ("drop<=1db", "not in db"),
    ("sqnr>=30%", "not in %"),
    ("quality>=3", "not known"),
    ("metric=3", "goes with"),
)
def test_goals_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_goal(text)
    assert "sqnr>=30" in caught.value.next


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert parse_goal("sqnr>=30").is_met(Reached(metric=0.7)) is None
    assert parse_goal("drop<=1%").is_met(Reached(metric=0.7)) is None
    assert parse_goal("drop<=1%").is_met(Reached(metric=0.7, reference=0.0)) is None
    assert parse_goal("sqnr>=30").is_met(Reached(sqnr_db=math.inf)) is True

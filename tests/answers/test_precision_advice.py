"""Conclusions from accuracies: the words of the workflow page for its cases, and none where the numbers forbid one."""

import json
import math
from pathlib import Path

import pytest

import deploykit
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.answers.precision_advice import Advice
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.errors import InputError, UsageError
from tables import each_row

CASES = [
    ({"fp32": 76.1, "w8a8": 75.9}, ["w8a8 is good"], "w8a8"),
    ({"fp32": 76.1, "w8a16": 75.9, "w8a8": 40}, ["activations are sensitive"], "w8a16"),
    ({"fp32": 76.1, "fp16": 76.0, "w16a16": 75.8, "w8a16": 60, "w8a8": 40}, ["weights are sensitive"], "w16a16"),
    ({"fp32": 76.1, "fp16": 76.0, "w16a16": 50, "w8a16": 40}, ["only fp16"], "fp16"),
    ({"fp32": 76.1, "fp16": 30, "bf16": 76.0, "w8a8": 20}, ["half precision already loses"], "bf16"),
    ({"fp32": 76.1, "w8a8": 40}, ["w8a8 poor: activations or weights"], ""),
    ({"fp32": 76.1, "w8a16": 40}, ["it is not known which"], ""),
    ({"fp16": 76.1, "w8a16": 76.0}, ["8-bit activations are enough was not measured"], "w8a16"),
    ({"fp32": 76.1, "w16a16": 10}, ["fp16 was not measured"], ""),
    ({"fp32": 76.1, "w16a16": 76.0}, ["fewer bits were not measured"], "w16a16"),
    ({"fp32": 76.1, "w8a16": 76.0, "w8a8": 75.9, "w4a16": 50}, ["w8a8 is good", "too coarse"], "w8a8"),
    ({"fp32": 76.1, "w8a16": 76.0, "w8a8": 50, "w4a16": 76.0}, ["activations are sensitive", "in 4 bits"], "w4a16"),
    ({"fp32": 50.0, "bf16": 49.9, "vint8": 0.0}, ["power-of-two"], "bf16"),
]


def _says(found: Advice) -> str:
    return " | ".join(item.says for item in found.conclusions)


@each_row(("accuracies", "says", "best"), *CASES)
def test_conclusions(accuracies: dict[str, float], says: list[str], best: str) -> None:
    found = deploykit.advise(accuracies=accuracies)
    assert len(found.conclusions) == len(says)
    for item, words in zip(found.conclusions, says, strict=True):
        assert words in item.says and item.because and item.next
    assert found.best == best


def test_more_bits_that_are_worse_forbid_a_conclusion() -> None:
    """As in qualcomm/aimet#4108, where raising everything to 16 bits made it worse."""
    found = deploykit.advise(accuracies={"fp32": 76.1, "w16a16": 30, "w8a16": 75.9, "w8a8": 40})
    assert [one.says for one in found.conclusions] == [
        "w16a16 is worse than w8a16, which cannot come from the bits alone"
    ]


@each_row(("accuracy", "met"), (6.0, False), (4.0, True))
def test_errors_that_should_be_low(accuracy: float, met: bool) -> None:
    """A word error rate that rises by a fifth is a loss, one that falls is none."""
    found = deploykit.advise(accuracies={"fp32": 5.0, "w8a8": accuracy}, lower_is_better=True)
    assert found.met == {"w8a8": met}


def test_decibels_need_no_reference() -> None:
    found = deploykit.advise(accuracies={"w8a16": 35.0, "w8a8": 12.0}, goal="sqnr>=30")
    assert found.reference == "" and "activations are sensitive" in _says(found)


def test_a_table_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "accuracy.toml"
    path.write_text('goal = "drop<=0.5"\n\n[accuracy]\nfp32 = 76.1\nw8a16 = 75.9\nw8a8 = 40\n')
    assert run(cli, ["accuracy", "ladder", str(path)]) == 0
    said = capsys.readouterr().out
    assert "w8a8 poor, w8a16 good: activations are sensitive" in said and "drop <= 0.5" in said
    (tmp_path / "accuracy.json").write_text(json.dumps({"accuracy": {"fp32": 76.1, "w8a8": 75}}))
    assert run(cli, ["--json", "accuracy", "ladder", str(tmp_path / "accuracy.json"), "--goal", "drop<=0.5"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["candidates"][1] == {"precision": "w8a8", "value": 75, "meets_goal": False}
    assert value["schema"] == 1
    path.write_text("[acuracy]\nfp32 = 1\n")
    with pytest.raises(InputError, match="acuracy"):
        deploykit.advise(path)


def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["advise"]) == 2 and run(cli, ["accuracy", "ladder", "--accuracy", "w8a8"]) == 2
    assert run(cli, ["accuracy", "ladder", "--accuracy", "w8a8=good"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no conclusion is known"):
        deploykit.advise(accuracies={"fp32": 1, "w3a9": 1})
    with pytest.raises(UsageError, match="nothing to compare"):
        deploykit.advise(accuracies={"fp32": 1})


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

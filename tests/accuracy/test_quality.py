"""How good a model is on labels, with its interval, and what meets a goal."""

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from deploykit.accuracy.judge.measures import (
    embeddings,
    gain_error,
    max_error,
    measure,
    overall_db,
    picture_db,
    psnr_db,
    relative_error,
    ssim,
)
from deploykit.accuracy.judge.verdict import KeptCount
from deploykit.accuracy.search.goals import Reached, goal_for, parse_goal
from deploykit.errors import UsageError
from tables import each_row

DATA = Path(__file__).parents[1] / "data" / "quark"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())


@each_row("name", *EXPECTED)
def test_same_numbers_as_the_evaluate_tool(name: str) -> None:
    case = EXPECTED[name]
    files = sorted((DATA / case["baseline"]).glob("*.npy"))
    measured = [measure(np.load(file), np.load(DATA / case["candidate"] / file.name)) for file in files]
    names = {"cos similarity": "cosine", "l2 distance": "l2", "psnr": "psnr_db", "ssim": "ssim"}
    columns = {name: [getattr(q, field) for q in measured] for name, field in names.items()}
    mine = {f"Mean {name}": fmean(column) for name, column in columns.items()}
    mine |= {f"Min {name}": min(column) for name, column in columns.items() if name != "l2 distance"}
    mine["Max l2 distance"] = max(columns["l2 distance"])
    for metric, theirs in case["metrics"].items():
        if theirs is None:
            assert math.isnan(mine[metric])
        else:
            assert mine[metric] == pytest.approx(theirs, rel=1e-6, abs=1e-6)


def test_empty_tensors_have_no_numbers() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert math.isnan(psnr_db(empty, empty)) and math.isnan(ssim(empty, empty))
    assert max_error(empty, empty) == 0
    told = json.loads(json.dumps(measure(np.zeros(4), np.zeros(4)).to_json(), allow_nan=False))
    assert told["cosine"] is None and told["sqnr_db"] == "infinite"


def test_a_gain_is_told_from_noise() -> None:
    values = np.tile([1.0, -1.0], 50)
    noise = np.repeat([0.5, -0.5], 50)
    assert gain_error([(values, values + noise)]) == pytest.approx(0)
    assert gain_error([(values, 0.8 * values), (values, 0.8 * values)]) == pytest.approx(0.2)
    assert gain_error([(np.zeros(3), np.ones(3))]) == 0
    assert relative_error([(values, values + noise)]) == pytest.approx(0.5)
    assert picture_db([(values, values + noise)]) == pytest.approx(10 * math.log10(4 / 0.25))
    lost = np.eye(4)
    lost[0] = 0
    assert embeddings([(np.eye(4), lost)])[0] == 0.75, "what lost its direction counts 0"
    assert math.isnan(embeddings([(np.zeros((2, 4)), lost[:2])])[0])
    angles = np.radians([0.0, 20.0, 50.0])  # the middle one's nearest is the first: 0.94 against 0.87
    turned = np.radians([0.0, 35.0, 50.0])
    sides = [np.stack([np.cos(each), np.sin(each)], 1) for each in (angles, turned)]
    assert embeddings([(sides[0], sides[1])])[1:] == (2, 3)
    assert overall_db([(np.asarray([1.0, np.inf, np.nan]), np.asarray([1.0, 5.0, 5.0]))]) == math.inf


ENOUGH = KeptCount(wanted=(100, 100), made=(100, 100), kept=(99, 99))
SHORT = KeptCount(wanted=(100, 100), made=(100, 100), kept=(96, 95))
FEW = KeptCount(wanted=(15,), made=(15,), kept=(15,))
NONE = KeptCount(wanted=(0,), made=(0,), kept=(0,))


@each_row(
    ("goal", "reached", "met"),
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


@each_row("text", "kept>=100%", "kept>=95", "lost<=0%", "lost<=2", "kept<=5%", "kept>=95db")
def test_shares_that_nobody_can_show(text: str) -> None:
    with pytest.raises(UsageError, match="--goal"):
        parse_goal(text)


def test_more_is_better_whatever_is_measured() -> None:
    assert parse_goal("right").quality(Reached(sqnr_db=40, detections=ENOUGH)) == 100 * ENOUGH.surely
    assert parse_goal("right").quality(Reached(sqnr_db=40)) == 40
    assert parse_goal("rise<=1%").quality(Reached(metric=5.0)) == -5.0
    assert parse_goal("metric<=3").quality(Reached(metric=5.0)) == -5.0
    assert math.isnan(parse_goal("metric>=3").quality(Reached()))

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
    ssim,
)
from deploykit.accuracy.judge.verdict import KeptCount
from deploykit.accuracy.search.goals import Reached, goal_for, parse_goal
from deploykit.errors import UsageError
from tables import each_row
from told import check_file

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
    values, noise = np.tile([1.0, -1.0], 50), np.repeat([0.5, -0.5], 50)
    assert gain_error([(values, values + noise)]) == pytest.approx(0)
    assert gain_error([(values, 0.8 * values), (values, 0.8 * values)]) == pytest.approx(0.2)
    assert gain_error([(np.zeros(3), np.ones(3))]) == 0
    for second, told in ((0.4, (10.03, 12.04, 6.02, 12.04)), (0, (13.8, 12.04, math.inf, 12.04))):
        pictures = np.outer([1, 0.2, 0.02], values)
        mean, alone = picture_db([(pictures, pictures + np.outer([1, second, 1], noise))])
        assert (mean, *alone) == pytest.approx(told, abs=0.01)
    lost = np.diag([0.0, 1, 1, 1])
    assert embeddings([(np.eye(4), lost)])[0] == 0.75, "what lost its direction counts 0"
    assert math.isnan(embeddings([(np.zeros((2, 4)), lost[:2])])[0])
    # The middle one's nearest is the first: 0.94 against 0.87.
    sides = [np.stack([np.cos(each), np.sin(each)], 1) for each in np.radians(np.asarray([[0.0, 20, 50], [0, 35, 50]]))]
    assert embeddings([(sides[0], sides[1])])[1:] == (2, 3)
    assert overall_db([(np.asarray([1.0, np.inf, np.nan]), np.asarray([1.0, 5.0, 5.0]))]) == math.inf


ALL = (100, 100)
REACHED = {
    "99 %, right": Reached(right=True, detections=KeptCount(wanted=ALL, made=ALL, kept=(99, 99)), sqnr_db=20),
    "99 %, wrong": Reached(right=False, detections=KeptCount(wanted=ALL, made=(100, 101), kept=(99, 99)), sqnr_db=80),
    "95.5 %": Reached(right=True, detections=KeptCount(wanted=ALL, made=ALL, kept=(96, 95)), sqnr_db=80),
    "all 15": Reached(right=True, detections=KeptCount(wanted=(15,), made=(15,), kept=(15,)), sqnr_db=80),
    "7 of 15": Reached(right=True, detections=KeptCount(wanted=(15,), made=(15,), kept=(7,)), sqnr_db=80),
    "all 52": Reached(right=True, detections=KeptCount(wanted=(52,), made=(52,), kept=(52,)), sqnr_db=80),
    "none": Reached(right=True, detections=KeptCount(wanted=(0,), made=(0,), kept=(0,)), sqnr_db=30),
    "29.9 dB": Reached(right=True, sqnr_db=29.9),
    "not judged": Reached(right=None, reason="not judged: made up", sqnr_db=45),
    "nothing": Reached(right=True),
    "5.25 of 5": Reached(metric=5.25, reference=5.0),
    "4.75 of 5": Reached(metric=4.75, reference=5.0),
    "0.5 of 0": Reached(metric=0.5, reference=0.0),
    "-5.1 of -5": Reached(metric=-5.1, reference=-5.0),
}


def _goal(question: str) -> list[str]:
    """A goal, which may say that lower is better, and which of these reach it."""
    text = question.removesuffix(", lower is better")
    try:
        goal = parse_goal(text, lower_is_better=question != text)
    except UsageError as error:
        return [f"{error.what}; {error.why}; {'the known ones' if 'known are right' in error.next else error.next}"]
    asks = (
        f"a metric: {goal.needs_metric}, outputs: {goal.asks_outputs}, a share of {goal.share:g}, {goal.decibels:g} dB"
    )
    lines = [f"{goal}: {goal.in_words}; asks {asks}"]
    for name, reached in REACHED.items():
        met, why = goal.is_met(reached), goal.why_open(reached)
        if name == "nothing" or goal.needs_metric is not math.isnan(reached.metric):
            lines.append(
                f"  {name}: {met}, {goal.quality(reached):.6g}, {goal.evidence(reached)}{'; ' * bool(why)}{why}"
            )
    return lines


def test_what_meets_a_goal() -> None:
    check_file(Path(__file__).with_name("goals.told"), _goal)


def test_the_usual_goal() -> None:
    assert str(goal_for(None, has_metric=False)) == "right"
    assert str(goal_for(None, has_metric=True)) == "drop <= 1%"
    assert str(goal_for(None, has_metric=False, may_judge=False)) == "sqnr >= 30 dB"
    assert goal_for("drop<=2", has_metric=True, lower_is_better=True).lower_is_better
    with pytest.raises(UsageError, match="asks about a measure"):
        goal_for("drop<=1%", has_metric=False)

"""Detections are counted as a user would count them: over the score, of one class, overlapping by half, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deploykit.graph import load_model
from deploykit.graph.collect import collect_facts
from deploykit.graph.facts import GraphFacts
from deploykit.numerics.kept_detections import Kept, count_kept

YOLO = Path(__file__).parents[1] / "data" / "quark" / "fp32.onnx"
"""One output [1, 8, 64]: four numbers of a box over four scores."""

ENLARGER = Path(__file__).parents[1] / "data" / "zoo" / "superres" / "model.onnx"

Rows = list[tuple[float, float, float, float, int, float]]


@pytest.fixture(scope="module")
def facts() -> GraphFacts:
    return collect_facts(load_model(YOLO))


def sample(rows: Rows) -> dict[str, npt.NDArray[Any]]:
    """Rows of (four numbers, class, score) as the output; all other rows have no score."""
    values = np.zeros((1, 8, 64), np.float32)
    for place, (*box, label, score) in enumerate(rows):
        values[0, :4, place] = box
        values[0, 4 + label, place] = score
    return {"output0": values}


FAR = (500.0, 300.0, 40.0, 60.0)
NEAR = (100.0, 80.0, 40.0, 60.0)


def counted(facts: GraphFacts, one: Rows, two: Rows) -> Kept | None:
    return count_kept(facts, [sample(one)], [sample(two)])


def test_the_same_detections_are_all_kept(facts: GraphFacts) -> None:
    rows: Rows = [(*FAR, 0, 0.9), (*NEAR, 1, 0.3)]
    assert counted(facts, rows, rows[::-1]) == Kept(kept=2, every=2, score=0.25)


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        ((*FAR, 0, 0.26), 1),
        ((*FAR, 0, 0.24), 0),
        ((*FAR, 1, 0.9), 0),
        ((510.0, 300.0, 40.0, 60.0, 0, 0.9), 1),
        ((520.0, 300.0, 40.0, 60.0, 0, 0.9), 0),
        ((500.0, 300.0, 0.0, 60.0, 0, 0.9), 0),
    ],
    ids=["barely over the score", "barely under it", "other class", "0.6 of it", "a third of it", "no area"],
)
def test_near_misses_are_misses(
    facts: GraphFacts, other: tuple[float, float, float, float, int, float], kept: int
) -> None:
    assert counted(facts, [(*FAR, 0, 0.3)], [other]) == Kept(kept=kept, every=1, score=0.25)


def test_one_box_is_not_the_partner_of_two(facts: GraphFacts) -> None:
    two: Rows = [(*FAR, 0, 0.9), (502.0, 300.0, 40.0, 60.0, 0, 0.8)]
    assert counted(facts, two, two[:1]) == Kept(kept=1, every=2, score=0.25)


def test_boxes_by_their_corners_are_understood(facts: GraphFacts) -> None:
    """As centre and size the second would lie within the first."""
    one: Rows = [(10.0, 10.0, 200.0, 200.0, 0, 0.9), (30.0, 30.0, 260.0, 300.0, 1, 0.9)]
    shifted: Rows = [(10.0, 10.0, 100.0, 90.0, 0, 0.9), (30.0, 30.0, 260.0, 290.0, 1, 0.9)]
    assert counted(facts, one, shifted) == Kept(kept=1, every=2, score=0.25)


def test_without_a_detection_in_the_reference_there_is_nothing_to_keep(facts: GraphFacts) -> None:
    assert counted(facts, [(*FAR, 0, 0.2)], [(*FAR, 0, 0.9)]) is None


def test_a_graph_without_detections_has_none() -> None:
    enlarger = collect_facts(load_model(ENLARGER))
    assert count_kept(enlarger, [], []) is None

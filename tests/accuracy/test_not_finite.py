"""NaN and infinity on either side: named with the operator, never compared as if they were numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from deploykit.accuracy.judge.judge import OutputJudge
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.model.facts import GraphFacts
from sample_models.tiny_graphs import TinyGraph


@pytest.fixture(scope="module")
def facts() -> GraphFacts:
    from pathlib import Path

    from deploykit.model import wrap_proto
    from deploykit.model.collect import collect_facts

    graph = TinyGraph()
    made = graph.op("Log", [graph.input("x", (1, 64))], "y")
    return collect_facts(wrap_proto(graph.model(made), path=Path("log.onnx")))


REFERENCE = np.random.default_rng(2).normal(size=(1, 64)).astype(np.float32)


def _verdict(facts: GraphFacts, one: np.ndarray, two: np.ndarray) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return OutputJudge(facts, label="given").compare([{"y": one}], [{"y": two}])


def _with(value: Any, *places: int) -> np.ndarray:
    made = REFERENCE.copy()
    made[0, list(places)] = value
    return made


def test_nan_in_the_reference_leaves_nothing_to_hold_the_other_against(facts: GraphFacts) -> None:
    verdict = _verdict(facts, _with(np.nan, 3, 4), REFERENCE)
    assert verdict.right is None
    assert "gives 2 NaN in the reference" in verdict.reason


def test_beside_nan_a_wrong_value_is_still_wrong(facts: GraphFacts) -> None:
    assert _verdict(facts, _with(np.nan, 3), -REFERENCE).right is False


@pytest.mark.parametrize("other", [np.inf, 65504.0])
def test_an_infinity_of_the_reference_may_be_the_largest_number(facts: GraphFacts, other: float) -> None:
    assert _verdict(facts, _with(np.inf, 5), _with(other, 5)).right is True


def test_nan_beside_an_infinity_is_named(facts: GraphFacts) -> None:
    verdict = _verdict(facts, _with(-np.inf, 5), _with(np.nan, 5))
    assert verdict.right is False
    assert [(odd.what, odd.count) for odd in verdict.oddities] == [("NaN", 1)]

"""Detections are matched as detections where nobody shows what was chosen: behind 16-bit Q/DQ, on another machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.judge.judge import OutputJudge
from deploykit.accuracy.judge.rows import ChosenRows
from deploykit.accuracy.judge.verdict import Measure
from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.model.facts import GraphFacts


@pytest.fixture(scope="module")
def quantized(decoder_detector: Any) -> onnx.ModelProto:
    """The detector with Q/DQ pairs whose 16-bit types come from the contributed domain."""
    return insert_qdq(decoder_detector.model, decoder_detector.encodings).model


def test_chosen_rows_are_known_behind_contributed_pairs(quantized: onnx.ModelProto, collect: Any) -> None:
    assert {n.domain for n in quantized.graph.node if n.op_type == "QuantizeLinear"} == {"com.microsoft"}
    rows = ChosenRows(collect(quantized))
    assert all(rows.is_behind(name) for name in ("labels", "boxes", "scores"))


def _shuffled(outputs: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    return {name: value[:, order] for name, value in outputs.items()}


def _verdict(facts: GraphFacts, one: dict[str, np.ndarray], two: dict[str, np.ndarray], feed: Any) -> Any:
    return OutputJudge(facts, label="given").compare([one], [two], [feed])


def test_detections_in_another_order_are_the_same(decoder_detector: Any) -> None:
    feed = decoder_detector.feeds[0]
    outputs = Session(decoder_detector.model).run(feed)
    order = np.random.default_rng(3).permutation(outputs["scores"].shape[1])
    assert _verdict(decoder_detector.facts, outputs, _shuffled(outputs, order), feed).right


def test_without_shapes_rows_are_not_taken_to_be_in_order(decoder_detector: Any, collect: Any) -> None:
    """An operator nobody knows hides every shape behind it; a choice before it still makes the order mean nothing."""
    hidden = onnx.ModelProto()
    hidden.CopyFrom(decoder_detector.model)
    for node in hidden.graph.node:
        if node.op_type == "TopK":
            node.domain = "nobody.knows"
    hidden.opset_import.add(domain="nobody.knows", version=1)
    hidden.graph.ClearField("value_info")
    facts = collect(hidden)
    feed = decoder_detector.feeds[0]
    outputs = Session(decoder_detector.model).run(feed)
    order = np.random.default_rng(3).permutation(outputs["scores"].shape[1])
    verdict = _verdict(facts, outputs, _shuffled(outputs, order), feed)
    box = [n for n in verdict.numbers if n.limit.measure is Measure.BOX_ERROR]
    assert box and all(number.passes for number in box)

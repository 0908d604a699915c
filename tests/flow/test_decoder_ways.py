"""A small deformable decoder (GridSample, TopK, GatherElements, inverse sigmoids, huge anchors) through all ways."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.simulation import simulate
from deploykit.backend.backend import MixedSupport
from deploykit.flow.choose import Explored, explore
from deploykit.flow.cure import rewrite
from deploykit.flow.ways import Ground
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.rewrites import SAFE_REWRITES
from deploykit.rewrites.contract import load_transform

SENSITIVE = ("anchors", "enc.boxes", "enc.chosen", *(f"l{n}.{part}" for n in (0, 1) for part in ("ratio", "logit")))
EVERY_KIND = MixedSupport(kinds=frozenset({"integer", "fallback", "segments"}))


def ground_of(detector: Any, *, mixed: bool) -> Ground:
    encodings = detector.without(*SENSITIVE) if mixed else detector.encodings
    given = {name: InputSource(label=Label.GIVEN, why="given") for name in detector.feeds[0]}
    samples = Samples(feeds=tuple(detector.feeds), of_inputs=given)
    return Ground.of(detector.model, encodings, detector.facts, samples)


@pytest.fixture(scope="module")
def explored(decoder_detector: Any) -> Any:
    @cache
    def look(*, mixed: bool, how: str = "auto") -> Explored:
        return explore(ground_of(decoder_detector, mixed=mixed), EVERY_KIND, mixed=how, tell=lambda line: None)

    return look


def test_as_given_it_loses_everything(explored: Any, decoder_detector: Any) -> None:
    """What the simulation of the encodings shows, and what it shows of the rewritten model another order hides."""
    assert explored(mixed=False).reference.overall_db < 5
    detector = decoder_detector
    done = rewrite(detector.model, detector.encodings, SAFE_REWRITES, detector.feeds)
    assert done.kept == ("saturating-constant", "logit-of-sigmoid")
    assert [len(step.sites) for step in done.steps if step.kept] == [1, 2]
    assert "Log" not in {node.op_type for node in done.model.graph.node} and done.encodings is not None
    facts = collect_facts(wrap_proto(done.model, path=Path("decoder.onnx")))
    result = simulate(done.model, done.encodings, detector.feeds, facts=facts)
    assert result.reordered is not None
    assert result.sqnr_db < 5 and result.reordered.overall_db > 35
    assert result.to_json()["reordered"]["sqnr_db"] > 35


@pytest.mark.parametrize("mixed", [False, True])
def test_no_float16_is_needed(mixed: bool, explored: Any) -> None:
    found = explored(mixed=mixed)
    way = found.winner.way
    assert (way.kind, way.right, found.winner.encodings.floats) == ("integer", True, frozenset())
    assert way.overall_db >= 36.5
    assert way.overall_db - found.reference.overall_db >= (0 if mixed else 35)


def test_what_was_left_out_is_float_where_ways_in_float16_are_asked_for(explored: Any, decoder_detector: Any) -> None:
    assert set(SENSITIVE[1:]) <= ground_of(decoder_detector, mixed=True).prediction.intended
    way = explored(mixed=True, how="fallback").winner.way
    assert way.float16_tensors == len(ground_of(decoder_detector, mixed=True).prediction.intended)
    assert way.borders >= 4
    cut = explored(mixed=True, how="segments").winner
    assert cut.proof.holds
    assert [segment.is_float for segment in cut.segments] == [False, True] * 3 + [False]


def test_a_tail_is_cut_and_a_saturating_constant_follows_the_gather(decoder_detector: Any) -> None:
    detector = decoder_detector
    done = rewrite(detector.model, detector.encodings, [*SAFE_REWRITES, "cut-tail"], detector.feeds)
    assert "cut-tail" in done.kept and done.tail is not None
    assert "TopK" in {node.op_type for node in done.tail.graph.node}
    onnx.checker.check_model(done.tail)
    matched = load_transform("saturating-constant").match(detector.model)
    assert {"enc.boxes", "enc.chosen"} <= set(matched.sites[0].tensors)

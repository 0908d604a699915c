"""Ways for detectors: a wider end, anchors in floats, and detections that are kept."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from deploykit.accuracy.judge.verdict import Context, Measure, Verdict
from deploykit.accuracy.samples.gathering import InputSource, Samples, gather
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate import sessions
from deploykit.accuracy.simulate.sessions import Known, Session
from deploykit.accuracy.simulate.simulation import Simulator, simulate
from deploykit.backend.backend import MixedSupport, Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.place import place
from deploykit.findings.records import Feeds
from deploykit.flow.choose import BuiltWays, explore
from deploykit.flow.cure import rewrite
from deploykit.flow.pipeline import make_plan
from deploykit.flow.ways import WIDER_END, BuiltWay, WayInputs
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.load import wrap_proto
from deploykit.rewrites import SAFE_REWRITES
from sample_models.finished_detectors import DETECTORS, count_kept, scenes
from sample_models.min_max import min_max_encodings
from tables import each_row
from text_models import text_model

INTEGERS = MixedSupport(kinds=frozenset({"integer"}))
COUNT = 12
"""Scenes: enough for detections by the dozen, and few enough for a second."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "scenes"
    data.mkdir()
    for index, feed in enumerate(scenes(COUNT)):
        np.save(data / f"{index:02}.npy", feed["images"])
    return data


def kept(name: str, way: BuiltWay) -> float:
    """The share of detections that a way's simulation keeps on scenes that nothing was calibrated on."""
    fresh = scenes(COUNT, seed=1)
    simulator, tail = Simulator(way.model, way.encodings), None if way.tail is None else Session(way.tail)
    outputs: list[Any] = []
    for feed in fresh:
        values = simulator.run(feed)
        outputs.append(values if tail is None else {**values, **tail.run({**feed, **values})})
    found, every = count_kept([Session(DETECTORS[name]()).run(feed) for feed in fresh], outputs)
    assert every > 50
    return found / every


def gives_what_is_known(way: BuiltWay, known: Known, feeds: Feeds) -> bool:
    """Without a session for anything, bit for bit as the whole model gives it."""
    whole, again = Simulator(way.model, way.encodings).runs(feeds), Simulator(way.model, way.encodings, known=known)
    with patch.object(sessions, "CpuSession", side_effect=AssertionError("opened again")):
        pairs = zip(whole, again.runs(feeds), strict=True)
        return all(one[name].tobytes() == two[name].tobytes() for one, two in pairs for name in one)


@pytest.mark.parametrize("name", ["yolo", pytest.param("ssd", marks=pytest.mark.heavy)])
def test_the_end_gets_wider_grids_and_keeps_nearly_everything(name: str, folder: Path) -> None:
    model = DETECTORS[name]()
    facts = facts_of(model)
    encodings = place(min_max_encodings(model, scenes(COUNT)), facts)
    samples = gather(model, facts, calibration=folder, encodings=encodings)
    ground = WayInputs.of(model, encodings, facts, samples)
    made = explore(ground, INTEGERS, mixed="auto", tell=lambda line: None)
    ways = {way.way.id: way for way in made.built}
    assert made.winner is ways[WIDER_END]
    assert all(gives_what_is_known(way, made.known, ground.samples.feeds[:3]) for way in made.built)
    assert kept(name, ways["as-is"]) < 0.85 and kept(name, ways[WIDER_END]) >= 0.95
    assert {"rewrite-split", "rewrite-cut"} <= ways.keys(), "all of them were measured"
    won = ways[WIDER_END]
    assert won.way.right is True and won.model is ways["as-is"].model
    assert {won.encodings.entries[tensor].dtype for tensor in won.widened} <= {"uint16", "int16"}
    untouched = won.encodings.entries.keys() - set(won.widened)
    assert all(won.encodings.entries[tensor] is ways["as-is"].encodings.entries[tensor] for tensor in untouched)


def request(tmp_path: Path, data: Path | None, **options: Any) -> Request:
    model = DETECTORS["yolo"]()
    (tmp_path / "yolo.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "yolo.encodings").write_text(write_encodings(min_max_encodings(model, scenes(COUNT)), "1.0.0"))
    asked: Any = {"model": tmp_path / "yolo.onnx", "target": "sm8650", "backend": "qnn-htp"}
    return Request(encodings=tmp_path / "yolo.encodings", calibration=data, **options, **asked)


def test_the_plan_says_what_was_done_and_what_it_brought(tmp_path: Path, folder: Path) -> None:
    plan = make_plan(request(tmp_path, folder))
    told = {finding.code: finding for finding in plan.findings}
    assert "get 16-bit grids, 26 tensors, 64% of the nodes (unlike" in told["DK251"].message  # 21 of 33
    assert "get 16-bit grids" in told["DK251"].message and "unlike-ranges" in told["DK251"].message
    assert told["DK250"].handled is not None and "scores (0..0.99" in told["DK250"].message
    assert plan.right.state == "yes" and plan.precision.expected["output0"] == "uint16"


def test_the_user_may_keep_the_grids(tmp_path: Path, folder: Path) -> None:
    names = (WIDER_END, "split-output", "scale-last", "cut-tail")
    plan = make_plan(request(tmp_path, folder, no_rewrite=names))
    told = {finding.code: finding for finding in plan.findings}
    assert "DK251" not in told and told["DK250"].handled is None
    assert plan.right.state == "yes" and "in your encodings, not in the package" in plan.right.why
    assert plan.precision.expected["output0"] == "uint8"


SENSITIVE = ("anchors", "enc.boxes", "enc.chosen", *(f"l{n}.{part}" for n in (0, 1) for part in ("ratio", "logit")))
EVERY_KIND = MixedSupport(kinds=frozenset({"integer", "fallback", "segments"}))


def detector_ground(detector: Any, *, mixed: bool) -> WayInputs:
    encodings = detector.without(*SENSITIVE) if mixed else detector.encodings
    given = {name: InputSource(label=Label.GIVEN, why="given") for name in detector.feeds[0]}
    samples = Samples(feeds=tuple(detector.feeds), of_inputs=given)
    return WayInputs.of(detector.model, encodings, detector.facts, samples)


@pytest.fixture(scope="module")
def found_ways(decoder_detector: Any) -> Any:
    @cache
    def look(*, mixed: bool, how: str = "auto") -> BuiltWays:
        return explore(detector_ground(decoder_detector, mixed=mixed), EVERY_KIND, mixed=how, tell=lambda line: None)

    return look


def test_as_given_it_loses_everything(found_ways: Any, decoder_detector: Any) -> None:
    """What the simulation of the encodings shows, and what it shows of the rewritten model another order hides."""
    assert found_ways(mixed=False).reference.overall_db < 5
    detector = decoder_detector
    done = rewrite(detector.model, detector.encodings, SAFE_REWRITES, detector.feeds)
    assert done.kept == ("saturating-constant", "logit-of-sigmoid")
    assert [len(step.sites) for step in done.steps if step.kept] == [1, 2]
    assert "Log" not in {node.op_type for node in done.model.graph.node} and done.encodings is not None
    facts = collect_facts(wrap_proto(done.model, path=Path("decoder.onnx")))
    result = simulate(done.model, done.encodings, detector.feeds, facts=facts)
    assert result.reordered is not None and result.sqnr_db < 5 and result.reordered.overall_db > 35
    assert result.to_json()["reordered"]["sqnr_db"] > 35


@pytest.mark.parametrize("mixed", [False, True])
def test_no_float16_is_needed(mixed: bool, found_ways: Any) -> None:
    found = found_ways(mixed=mixed)
    way = found.winner.way
    assert (way.kind, way.right, found.winner.encodings.floats) == ("integer", True, frozenset())
    assert way.overall_db >= 36.5
    assert way.overall_db - found.reference.overall_db >= (0 if mixed else 35)


pytest.importorskip("onnxruntime_qnn")

SEEN, FRESH = 32, 24


@each_row(
    ("kept", "noted", "says"), (8, False, "keep it"), (7, True, "keep more, simulated: 7 of 8"), (7, False, "no wider")
)
def test_what_keeps_more_is_named_where_the_last_may_be_lost_by_chance(kept: int, noted: bool, says: str) -> None:
    def read(of: int, note: str = "") -> Verdict:
        words = f"{of} of 8 texts equal"
        number = Context(label="given", count=8).number(
            "y", "scores", Measure.TEXT, of / 8, items=8, words=words, note=note
        )
        return Verdict(right=number.passes is not False, numbers=(number,), overall_db=float(of))

    model = text_model("float[1,2] x", "y = Relu(x)")
    encodings = min_max_encodings(model, [{"x": np.ones((1, 2), np.float32)}])
    judge = SimpleNamespace(feeds=[], compare=lambda outputs: read(kept, "decibels decide" * noted))
    samples = SimpleNamespace(label=Label.GIVEN)
    given: Any = SimpleNamespace(samples=samples, judge=judge, reference=read(6), encodings=encodings, model=model)
    assert says in WayInputs.wider(given, has_float16=True)

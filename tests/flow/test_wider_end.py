"""Detectors with 8-bit encodings: their ends get wider grids or go to the host, whichever keeps most detections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.accuracy.samples.gathering import gather
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.accuracy.simulate.simulation import FIRST, Simulator
from deploykit.backend.backend import MixedSupport, Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.place import place
from deploykit.flow.choose import Explored, choose, explore
from deploykit.flow.pipeline import make_plan
from deploykit.flow.ways import WIDER_END, BuiltWay, Ground, Way
from deploykit.model.collect import facts_of
from sample_models.finished_detectors import DETECTORS, count_kept, scenes
from sample_models.min_max import min_max_encodings

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


def ground_of(name: str, data: Path, *, bits: int = 8, banned: tuple[str, ...] = ()) -> Ground:
    model = DETECTORS[name]()
    facts = facts_of(model)
    encodings = place(min_max_encodings(model, scenes(COUNT), bits=bits), facts)
    samples = gather(model, facts, calibration=data, encodings=encodings)
    return Ground.of(model, encodings, facts, samples, banned=banned)


def explored(ground: Ground) -> Explored:
    return explore(ground, INTEGERS, mixed="auto", tell=lambda line: None)


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


def drawn_is_what_it_gives(way: BuiltWay, feeds: Sequence[Feed]) -> bool:
    simulator, tail = Simulator(way.model, way.encodings), None if way.tail is None else Session(way.tail)
    for feed, drawn in zip(feeds, way.drawn, strict=False):
        values = simulator.run(feed)
        values = values if tail is None else {**values, **tail.run({**feed, **values})}
        if not drawn or not all(np.array_equal(values[name], array) for name, array in drawn.items()):
            return False
    return len(way.drawn) == FIRST


@pytest.mark.parametrize("name", ["yolo", "ssd"])
def test_the_end_gets_wider_grids_and_keeps_nearly_everything(name: str, folder: Path) -> None:
    ground = ground_of(name, folder)
    made = explored(ground)
    ways = {way.way.id: way for way in made.built}
    assert made.winner is ways[WIDER_END]
    assert all(drawn_is_what_it_gives(way, ground.samples.feeds) for way in made.built), "a page simulates none again"
    assert kept(name, ways["as-is"]) < 0.85
    assert kept(name, ways[WIDER_END]) >= 0.95
    assert {"rewrite-split", "rewrite-cut"} <= ways.keys(), "all of them were measured"
    won = ways[WIDER_END]
    assert won.way.right is True
    assert won.model is ways["as-is"].model
    assert {won.encodings.entries[tensor].dtype for tensor in won.widened} <= {"uint16", "int16"}
    untouched = won.encodings.entries.keys() - set(won.widened)
    assert all(won.encodings.entries[tensor] is ways["as-is"].encodings.entries[tensor] for tensor in untouched)


def test_without_it_the_end_goes_to_the_host(folder: Path) -> None:
    made = explored(ground_of("yolo", folder, banned=(WIDER_END,)))
    assert made.winner is not None
    assert made.winner.way.id in ("rewrite-split", "rewrite-cut")
    assert kept("yolo", made.winner) >= 0.95


def test_among_wrong_ways_the_one_that_keeps_more_wins() -> None:
    """The energy of boxes says nothing about scores that are all zero."""
    good = Way(id="good", kind="integer", overall_db=40.0, right=False, kept=0.8, intrusion=3)
    dead = Way(id="dead", kind="integer", overall_db=43.0, right=False, kept=0.1)
    assert choose([good, dead], reference_db=40.0).winner is good


def request(tmp_path: Path, data: Path | None, **options: Any) -> Request:
    model = DETECTORS["yolo"]()
    (tmp_path / "yolo.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "yolo.encodings").write_text(write_encodings(min_max_encodings(model, scenes(COUNT)), "1.0.0"))
    return Request(
        model=tmp_path / "yolo.onnx",
        target="sm8650",
        backend="qnn-htp",
        encodings=tmp_path / "yolo.encodings",
        calibration=data,
        **options,
    )


def test_the_plan_says_what_was_done_and_what_it_brought(tmp_path: Path, folder: Path) -> None:
    plan = make_plan(request(tmp_path, folder))
    told = {finding.code: finding for finding in plan.findings}
    assert "get 16-bit grids" in told["DK251"].message
    assert "unlike-ranges" in told["DK251"].message
    assert told["DK250"].handled is not None
    assert "scores (0..0.99" in told["DK250"].message
    assert plan.right.state == "yes"
    assert plan.precision.expected["output0"] == "uint16"


def test_the_user_may_keep_the_grids(tmp_path: Path, folder: Path) -> None:
    names = (WIDER_END, "split-output", "scale-last", "cut-tail")
    plan = make_plan(request(tmp_path, folder, no_rewrite=names))
    told = {finding.code: finding for finding in plan.findings}
    assert "DK251" not in told
    assert told["DK250"].handled is None
    assert plan.right.state == "yes"
    assert "in your encodings, not in the package" in plan.right.why
    assert plan.precision.expected["output0"] == "uint8"

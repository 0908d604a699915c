"""``--precision auto`` on detectors that decode in the graph: its choice keeps detections on scenes never seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.graph import load_model
from deploykit.graph.collect import collect_facts
from deploykit.numerics.sessions import Session
from deploykit.numerics.simulation import Simulator
from deploykit.quantization.placed_encodings import read_placed
from sample_models.finished_detectors import DETECTORS, count_kept, scenes

SEEN, FRESH = 32, 24


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder = tmp_path / "frames"
    folder.mkdir()
    for index, feed in enumerate(scenes(SEEN)):
        np.save(folder / f"{index:02}.npy", feed["images"])
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["yolo", "ssd"])
def test_what_is_chosen_keeps_detections_on_fresh_scenes(name: str, frames: Path, tmp_path: Path) -> None:
    """Thirty decibels, which was enough once, would have taken W8A8, and that loses more than a twentieth of them."""
    onnx.save(DETECTORS[name](), tmp_path / "model.onnx")
    done = deploykit.quantize(
        tmp_path / "model.onnx",
        target="sm8650",
        calibration=frames,
        out=tmp_path / "out",
        precision="auto",
        quantizer="ort",
    )
    ladder = done.record["ladder"]
    rows = {row["precision"]: row for row in (*ladder["candidates"], *(step["candidate"] for step in ladder["steps"]))}
    chosen = rows[ladder["chosen"]]
    assert chosen["detections"]["at_least"] >= 0.95
    assert rows["w8a8"]["detections"]["share"] < 0.95
    read = load_model(tmp_path / "out" / "model.onnx")
    model = onnx.load(tmp_path / "out" / "model.onnx")
    simulator = Simulator(model, read_placed(tmp_path / "out" / "model.encodings", collect_facts(read)))
    fresh = scenes(FRESH, seed=1)
    exact = Session(DETECTORS[name]())
    found, every = count_kept([exact.run(feed) for feed in fresh], [simulator.run(feed) for feed in fresh])
    assert every > 100
    assert found / every >= 0.95

"""``--precision auto`` on detectors that decode in the graph: what it packages keeps detections on the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.accuracy.simulate.sessions import Session
from sample_models.finished_detectors import DETECTORS, count_kept, scenes

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.heavy

SEEN, FRESH = 32, 24
SOC = {"soc_model": "57"}


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder = tmp_path / "frames"
    folder.mkdir()
    for index, feed in enumerate(scenes(SEEN)):
        np.save(folder / f"{index:02}.npy", feed["images"])
    return folder


def _emulated(package: Path, feeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the compiled package gives for scenes that nothing was calibrated or judged on."""
    from emulator import execute_model

    arrays: dict[str, Any] = {f"{index}:images": feed["images"] for index, feed in enumerate(feeds)}
    np.savez(package.parent / "fresh.npz", **arrays)
    context = next((package / "artifacts").glob("*_ctx.onnx")).relative_to(package)
    made = execute_model(package, str(context), package.parent / "fresh.npz", provider="npu", options=SOC)
    return [
        {key.split(":", 1)[1]: value for key, value in made.items() if key.startswith(f"{index}:")}
        for index in range(len(feeds))
    ]


@pytest.mark.parametrize("name", ["yolo", "ssd"])
def test_what_is_packaged_keeps_detections_on_fresh_scenes(name: str, frames: Path, tmp_path: Path) -> None:
    """Thirty decibels, which were enough once, would have taken W8A8, and that loses more than a twentieth of them."""
    onnx.save(DETECTORS[name](), tmp_path / "model.onnx")
    made = deploykit.package(
        tmp_path / "model.onnx",
        target="sm8650",
        backend="ort-qnn",
        calibration=frames,
        out=tmp_path / "out",
        precision="auto",
        quantizer="ort",
    )
    assert made.exit_status == 0
    ladder = json.loads((tmp_path / "out" / "manifest.json").read_text())["quantization"]["ladder"]
    rows = {row["precision"]: row for row in (*ladder["candidates"], *(step["candidate"] for step in ladder["steps"]))}
    assert rows[ladder["chosen"]]["detections"]["at_least"] >= 0.95
    assert rows["w8a8"]["sqnr_db"] > 30
    assert rows["w8a8"]["meets_goal"] is False
    fresh, exact = scenes(FRESH, seed=1), Session(DETECTORS[name]())
    reference, emulated = [exact.run(feed) for feed in fresh], _emulated(tmp_path / "out", fresh)
    found, every = count_kept(reference, emulated)
    _, given = count_kept(emulated, reference)
    assert every > 100
    assert min(found / every, found / given) >= 0.95

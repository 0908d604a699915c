"""``--precision auto``: the quantizer's candidates walked, the best one written or packaged, the story beside it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import deploykit
from deploykit.errors import ToolError, UsageError

AIMET = Path(__file__).parents[1] / "data" / "aimet"
MLP, DETR = AIMET / "mlp" / "model.onnx", AIMET / "detr" / "model.onnx"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "rows.npz", hidden_states=rng.normal(size=(10, 1, 8, 64)).astype(np.float32))
    return tmp_path / "rows.npz"


def test_the_cheapest_that_is_good_is_written_with_its_story(rows: Path, tmp_path: Path) -> None:
    done = deploykit.quantize(
        MLP, target="sm8650", calibration=rows, out=tmp_path / "out", precision="auto", quantizer="ort", goal="sqnr>=25"
    )
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    ladder = record["ladder"]
    assert {row["precision"] for row in ladder["candidates"]} == {"fp16", "w16a16", "w8a16", "w8a8"}
    assert ladder["chosen"] == record["precision"]
    assert record["numbers"]["sqnr_db"] >= 25
    assert "The candidates" in (tmp_path / "out" / done.files["ladder"]).read_text("utf-8")
    again = deploykit.simulate(tmp_path / "out" / "model.onnx", tmp_path / "out" / "model.encodings", data=rows)
    assert again.sqnr_db >= 20


def test_a_goal_that_nothing_reaches_is_said(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = partial(
        deploykit.quantize, MLP, target="sm8650", calibration=rows, out=out, precision="auto", quantizer="ort"
    )
    with pytest.raises(ToolError, match="no precision was chosen"):
        asked(goal="sqnr>=150")
    with pytest.raises(UsageError, match="not understood"):
        asked(goal="good")
    assert not out.exists()


@pytest.mark.heavy
def test_the_detector_of_the_2_33_user_is_packaged_at_seventy_decibels(tmp_path: Path) -> None:
    """qualcomm/aimet#4102: a detector with decoding inside, on 2.33, from the float model and samples alone."""
    with np.load(AIMET / "detr" / "w8a8.io.npz") as stored:
        names = {key.removeprefix("input."): stored[key] for key in stored.files if key.startswith("input.")}
        np.savez(tmp_path / "data.npz", **names)
    made = deploykit.package(
        DETR,
        target="sm8650",
        sdk="2.33",
        calibration=tmp_path / "data.npz",
        out=tmp_path / "package",
        precision="auto",
        quantizer="ort",
        goal="sqnr>=60",
    )
    assert made.package is not None
    record = json.loads((made.package / "manifest.json").read_text())["quantization"]
    assert record["numbers"]["sqnr_db"] >= 70
    assert record["ladder"]["chosen"].endswith("in float16")

"""``--precision auto``: the quantizer's candidates walked, the best one written or packaged, the story beside it."""

from __future__ import annotations

import json
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import ToolError, UsageError

AIMET = Path(__file__).parents[1] / "data" / "aimet"
MLP, DETR = AIMET / "mlp" / "model.onnx", AIMET / "detr" / "model.onnx"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "rows.npz", hidden_states=rng.normal(size=(10, 1, 8, 64)).astype(np.float32))
    return tmp_path / "rows.npz"


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


def _packaged(rows: Path, out: Path, **asked: Any) -> tuple[dict[str, Any], str]:
    """The manifest and the report of the network of the fixtures, packaged from its float form."""
    made = deploykit.package(MLP, target="sm8650", sdk="2.37", calibration=rows, out=out, quantizer="ort", **asked)
    assert made.package is not None
    return json.loads((out / "manifest.json").read_text()), unescape((out / "report.html").read_text("utf-8"))


def test_the_report_of_a_package_tells_the_ladder_of_its_manifest(rows: Path, tmp_path: Path) -> None:
    manifest, report = _packaged(rows, tmp_path / "out", precision="auto", goal="sqnr>=45")
    ladder = manifest["quantization"]["ladder"]
    story = report.split("How the precision was chosen")[1].split("<h2>")[0]
    steps = [step["candidate"] for step in ladder["steps"]]
    assert steps
    for row in (*ladder["candidates"], *steps):
        shown = next(line for line in story.splitlines() if f">{row['precision']} <span" in line and "<tr" in line)
        assert f"{row['sqnr_db']:.1f} dB" in shown
        assert f"{row['cost']['weight_bytes']:,} bytes" in shown
        assert f"{row['cost']['activation_bytes']:,} bytes" in shown
        assert f"{row['cost']['bit_operations']:.3g}" in shown
        assert ('class="chosen"' in shown) == (row["precision"] == ladder["chosen"])
    told = [ladder["goal"], ladder["why"], *(item["says"] for item in ladder["conclusions"])]
    told += [name for step in ladder["steps"] for name in step["raised"]["best"]["layers"]]
    assert [words for words in told if words not in story] == []
    trials = [trial for step in ladder["steps"] for trial in step["raised"]["trials"]]
    candidates = len(ladder["candidates"]) + len(steps)
    assert story.count("<circle") == candidates + len(trials)
    assert story.count('class="bar s-quality"') == 1 + candidates
    assert story.count('class="joins"') >= 1
    assert "<dt>Executed here</dt><dd>quantize" in report


def test_where_a_precision_was_asked_for_there_is_no_ladder(rows: Path, tmp_path: Path) -> None:
    manifest, report = _packaged(rows, tmp_path / "out", precision="w8a16")
    assert "ladder" not in manifest["quantization"]
    assert "How the precision was chosen" not in report
    made = report.split("Where the encodings come from")[1].split("<h2>")[0]
    assert f"<dd>{manifest['quantization']['numbers']['sqnr_db']:.1f} dB</dd>" in made
    assert "onnxruntime" in made
    assert 'class="bar s-quality"' not in report


def test_the_users_measure_decides_and_the_cheapest_that_is_good_is_written_with_its_story(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References tell each sample's own outputs: at any other place nothing would come near one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def closeness(outputs, references):\n"
        "    pairs = [(a[name], b[name]) for a, b in zip(outputs, references) for name in a]\n"
        "    return 1.0 - max(float(np.abs(one - two).max()) for one, two in pairs)\n"
    )
    session = Session(onnx.load(MLP))
    with np.load(rows) as stored:
        made = [session.run({"hidden_states": row}) for row in stored["hidden_states"]]
    truth: dict[str, Any] = {name: np.stack([row[name] for row in made]) for name in made[0]}
    np.savez(tmp_path / "truth.npz", **truth)
    asked = partial(deploykit.quantize, MLP, target="sm8650", calibration=rows, quantizer="ort", precision="auto")
    done = asked(out=tmp_path / "out", metric="mine:closeness", references=tmp_path / "truth.npz", goal="metric>=0.9")
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    ladder = record["ladder"]
    reached = {row["precision"]: row["metric"] for row in ladder["candidates"]}
    assert set(reached) == {"fp16", "w16a16", "w8a16", "w8a8"}
    assert 0.5 < reached["w8a8"] < reached["w8a16"] < reached["w16a16"] <= 1.0
    assert (ladder["goal"], ladder["chosen"]) == ("metric >= 0.9", record["precision"])
    assert "The candidates" in (tmp_path / "out" / done.files["ladder"]).read_text("utf-8")
    again = deploykit.simulate(tmp_path / "out" / "model.onnx", tmp_path / "out" / "model.encodings", data=rows)
    assert again.sqnr_db >= record["numbers"]["sqnr_db"] - 5


def test_a_goal_without_anything_to_choose_is_refused() -> None:
    with pytest.raises(UsageError, match="--goal: nothing is chosen by it"):
        deploykit.check(MLP, target="sm8650", precision="w8a8", goal="sqnr>=30")
    with pytest.raises(UsageError, match="--metric-command: nothing is chosen by it"):
        deploykit.check(MLP, target="sm8650", metric_command="score {outputs}")


def test_without_samples_the_way_out_is_said() -> None:
    with pytest.raises(UsageError, match="nothing to measure the candidates on") as caught:
        deploykit.check(AIMET / "cnn" / "model.onnx", target="sm8650", sdk="2.33", precision="auto")
    assert "--calibration" in caught.value.next

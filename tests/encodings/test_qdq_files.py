"""``encodings apply`` and ``extract`` on files: there and back, nothing lost in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from deploykit.cli.encodings import apply, extract
from deploykit.encodings.files import apply_encodings, extract_encodings
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import InputError, UsageError

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def run(path: Path) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    feed = {"hidden_states": np.random.default_rng(1).normal(size=(1, 8, 64)).astype(np.float32)}
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feed)[0]


@pytest.mark.parametrize("variant", ["w8a8", "w8a16", "w4a8", "bq-w4a16", "lpbq-w4a16"])
def test_there_and_back_and_there_again(tmp_path: Path, variant: str) -> None:
    source = AIMET / "mlp" / f"{variant}.v2.0.0.encodings"
    applied = apply_encodings(AIMET / "mlp/model.onnx", source, tmp_path / "q.onnx", bias="encoded")
    assert not applied.skipped
    taken = extract_encodings(tmp_path / "q.onnx", tmp_path / "f.onnx")
    (tmp_path / "e.encodings").write_text(taken.encodings)
    assert not taken.kept
    before, after = read_encodings(source), read_encodings(tmp_path / "e.encodings")
    assert set(after.entries) == set(before.entries)
    for name, entry in before.entries.items():
        assert after.entries[name].dtype == entry.dtype
    again = apply_encodings(tmp_path / "f.onnx", tmp_path / "e.encodings", tmp_path / "q2.onnx", bias="encoded")
    assert again.placed == applied.placed
    np.testing.assert_array_equal(run(tmp_path / "q.onnx"), run(tmp_path / "q2.onnx"))


def test_what_onnx_cannot_store_is_named(tmp_path: Path) -> None:
    source = AIMET / "mlp/bq-w2a16-zpshift.v2.0.0.encodings"
    applied = apply_encodings(AIMET / "mlp/model.onnx", source, tmp_path / "q.onnx")
    assert set(applied.skipped) >= {"fc1.weight", "lm_head.weight"}
    onnx.checker.check_model(str(tmp_path / "q.onnx"))


def test_files_that_stand_there_are_kept(tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        apply_encodings(AIMET / "mlp/model.onnx", AIMET / "mlp/w8a8.v2.0.0.encodings", tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").read_text() == "mine"


def test_wrong_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already"):
        apply_encodings(AIMET / "mlp/w8a8.qdq.onnx", AIMET / "mlp/w8a8.v2.0.0.encodings", tmp_path / "q.onnx")
    with pytest.raises(InputError, match="no Q/DQ"):
        extract_encodings(AIMET / "mlp/model.onnx")


def test_the_commands(tmp_path: Path) -> None:
    arguments = [str(AIMET / "cnn/w8a8.v1.0.0.encodings"), "--model", str(AIMET / "cnn/model.onnx")]
    result = CliRunner().invoke(apply, [*arguments, "-o", str(tmp_path / "q.onnx"), "--json"], standalone_mode=False)
    assert result.return_value == 0 and json.loads(result.stdout)["placed"]["input"] == "uint8"
    out = ["-o", str(tmp_path / "e.encodings"), "--to", "1.0.0"]
    result = CliRunner().invoke(extract, [str(tmp_path / "q.onnx"), *out], standalone_mode=False)
    assert result.return_value == 0 and "entries written" in result.output
    assert read_encodings(tmp_path / "e.encodings").version == "1.0.0"

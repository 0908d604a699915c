"""``deploykit inspect`` and ``deploykit lpbq`` from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploykit.cli import cli
from deploykit.errors import InputError
from deploykit_ort_qnn.compiler import CompileJob, compile_model
from deploykit_ort_qnn.inspection import inspect_context

AIMET = Path(__file__).parents[1] / "data" / "aimet"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compiled")
    shutil.copy(AIMET / "cnn_bnfold/w8a8.qdq.onnx", root / "model.onnx")
    for name, embed in (("beside", False), ("inside", True)):
        job = CompileJob(
            root=root, model="model.onnx", context=f"{name}.onnx", options={"soc_model": "57"}, embed=embed
        )
        assert compile_model(job).ok
    return root


def call(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(cli, [*arguments, "--json"], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return int(result.return_value or 0), json.loads(result.stdout)


@pytest.mark.parametrize("file", ["beside_qnn.bin", "beside.onnx", "inside.onnx"])
def test_a_context_tells_its_maker_and_chip(compiled: Path, file: str) -> None:
    status, info = call("inspect", str(compiled / file))
    assert status == 0 and info["release"] == "2.51.0" and info["soc_model"] == 57 and info["arch"] == "v75"
    assert info["carrier"] == "onnxruntime-qnn 2.7.0"
    assert "sm8650" in info["devices"] and info["graph_count"] == 1
    (graph,) = info["graphs"]
    assert [(t["name"], t["dtype"], t["shape"]) for t in graph["inputs"]] == [("input", "float32", [1, 3, 16, 16])]
    assert [t["name"] for t in graph["outputs"]] == ["logits"]
    if file.endswith(".onnx"):
        assert info["onnx"]["embedded"] == (file == "inside.onnx")


def test_whether_it_loads_is_answered_with_a_confidence(compiled: Path) -> None:
    status, info = call("inspect", str(compiled / "beside.onnx"), "--sdk", "2.51.0", "--target", "sm8650")
    assert status == 0 and info["loads"][0]["status"] == "supported" and info["loads"][0]["confidence"]
    status, info = call("inspect", str(compiled / "beside.onnx"), "--sdk", "2.48.40", "--target", "sm8650")
    assert status == 1 and info["loads"][0]["status"] == "unsupported"


def test_what_is_no_context_is_an_input_error(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x02" * 5000)
    with pytest.raises(InputError, match="not readable as a context binary"):
        inspect_context(tmp_path / "x.bin")
    cut = tmp_path / "cut.bin"
    cut.write_bytes((compiled / "beside_qnn.bin").read_bytes()[:20000])
    with pytest.raises(InputError, match="not readable as a context binary"):
        inspect_context(cut)
    with pytest.raises(InputError, match="holds no EPContext"):
        inspect_context(compiled / "model.onnx")
    shutil.copy(compiled / "beside.onnx", tmp_path / "alone.onnx")
    with pytest.raises(InputError, match="is not beside it"):
        inspect_context(tmp_path / "alone.onnx")
    with pytest.raises(InputError, match="no such file"):
        inspect_context(tmp_path / "nothing.bin")


@pytest.mark.parametrize("option", ["--refine", "--lpbq-refine"])
def test_lpbq_reports_loss_and_path_per_weight(tmp_path: Path, option: str) -> None:
    status, report = call("lpbq", str(AIMET / "mlp/bq-w4a16.qdq.onnx"), "-o", str(tmp_path / "out.onnx"), option)
    assert status == 0 and report["converted"] == 5
    for weight in report["weights"]:
        assert weight["loss"]["refined_sqnr_db"] >= weight["loss"]["sqnr_db"] and weight["path"]
    assert any("bias dropped" in weight["path"] for weight in report["weights"])


def test_lpbq_weights_are_left_alone(tmp_path: Path) -> None:
    _, report = call("lpbq", str(AIMET / "mlp/lpbq-w4a16.qdq.onnx"), "-o", str(tmp_path / "out.onnx"))
    assert {weight["reason"] for weight in report["weights"]} == {"it is LPBQ already"}

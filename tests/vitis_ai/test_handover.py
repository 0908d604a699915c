"""What a trial made is taken by the same run, and by no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploykit_vitis_ai.runner import keep_run, run_key, take_run

TOOL = "quark==0.13"
RECIPE: dict[str, Any] = {"output": "m.onnx", "calibration": {"kind": "arrays"}}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, content in (("model/m.onnx", "model"), ("calibration/a.npy", "data")):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    return tmp_path / "package"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    outputs = tmp_path / "outputs"
    (outputs / "baseline").mkdir(parents=True)
    (outputs / "baseline" / "0.npz").write_text("values")
    (tmp_path / "quantized.onnx").write_text("quantized")
    return {"model": tmp_path / "quantized.onnx", "compared": outputs}


def test_the_same_run_takes_it_and_no_other(tmp_path: Path, package: Path, made: dict[str, Path]) -> None:
    keep_run(run_key(TOOL, package, RECIPE), made)
    wanted = {"model": tmp_path / "here" / "m.onnx", "compared": tmp_path / "there"}
    assert take_run(run_key(TOOL, package, RECIPE), wanted)
    assert wanted["model"].read_text() == "quantized"
    assert (wanted["compared"] / "baseline" / "0.npz").read_text() == "values"
    other = {**RECIPE, "precision": "vint8"}
    assert not take_run(run_key(TOOL, package, other), wanted)
    keep_run(run_key(TOOL, package, other), {"model": made["model"]})
    assert not take_run(run_key(TOOL, package, other), wanted), "it wants more than was kept"
    (package / "calibration" / "a.npy").write_text("other")
    assert not take_run(run_key(TOOL, package, RECIPE), wanted)
    reader = {**RECIPE, "calibration": {"kind": "reader"}}  # whose data nobody knows
    keep_run(run_key(TOOL, package, reader), made)
    assert not take_run(run_key(TOOL, package, reader), made)

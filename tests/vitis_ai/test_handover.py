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


def test_the_same_run_takes_it(tmp_path: Path, package: Path, made: dict[str, Path]) -> None:
    keep_run(run_key(TOOL, package, RECIPE), made)
    wanted = {"model": tmp_path / "here" / "m.onnx", "compared": tmp_path / "there"}
    assert take_run(run_key(TOOL, package, RECIPE), wanted)
    assert wanted["model"].read_text() == "quantized"
    assert (wanted["compared"] / "baseline" / "0.npz").read_text() == "values"


def test_another_recipe_or_other_data_take_nothing(tmp_path: Path, package: Path, made: dict[str, Path]) -> None:
    keep_run(run_key(TOOL, package, RECIPE), made)
    wanted = {"model": tmp_path / "m.onnx"}
    assert not take_run(run_key(TOOL, package, {**RECIPE, "precision": "vint8"}), wanted)
    (package / "calibration" / "a.npy").write_text("other")
    assert not take_run(run_key(TOOL, package, RECIPE), wanted)


def test_a_run_that_wants_more_takes_nothing(tmp_path: Path, package: Path, made: dict[str, Path]) -> None:
    keep_run(run_key(TOOL, package, RECIPE), {"model": made["model"]})
    wanted = {"model": tmp_path / "m.onnx", "compared": tmp_path / "there"}
    assert not take_run(run_key(TOOL, package, RECIPE), wanted)


def test_the_data_of_a_reader_is_not_known(tmp_path: Path, package: Path, made: dict[str, Path]) -> None:
    recipe = {**RECIPE, "calibration": {"kind": "reader"}}
    keep_run(run_key(TOOL, package, recipe), made)
    assert not take_run(run_key(TOOL, package, recipe), made)

"""The real AIMET, in the environment that deploykit makes, against deploykit's own simulation. Minutes: heavy."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.cli import cli
from deploykit.cli.frame import run

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("aimet")]

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """As a user would; found again where it is there already."""
    assert run(cli, ["toolchain", "install", "aimet"]) == 0


def unpacked(name: str, folder: Path) -> tuple[Path, Path]:
    """A model of the zoo, and all ten of its samples in one file."""
    with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as archive:
        archive.extractall(folder)
    with np.load(folder / "calibration.npz") as seen, np.load(folder / "held_out.npz") as held:
        together: dict[str, Any] = {key: np.concatenate([seen[key], held[key]]) for key in seen.files}
    np.savez(folder / "ten.npz", **together)
    return folder / "model.onnx", folder / "ten.npz"


def test_both_simulations_are_the_same_to_the_bit(tmp_path: Path) -> None:
    model, samples = unpacked("superres", tmp_path)
    done = deploykit.quantize(
        model, target="sm8550", precision="w8a16", quantizer="aimet", calibration=samples, out=tmp_path / "out"
    )
    own = done.record["numbers"]["quantizers_own"]
    assert own["exact"], own
    assert own["largest_difference"] == 0
    assert done.record["versions"]["aimet-onnx"] == "2.42.0"
    assert done.record["numbers"]["sqnr_db"] > 30
    assert "DK222" not in {finding.code for finding in done.findings}
    folded = {node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node}
    assert "BatchNormalization" not in folded


def test_package_takes_aimet_by_itself_and_adds_int32_biases(tmp_path: Path) -> None:
    model = DATA / "aimet" / "cnn" / "model.onnx"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10, 1, 3, 16, 16)).astype(np.float32))
    made = deploykit.package(
        model,
        target="sm8650",
        backend="qnn-htp",
        sdk="2.33",
        precision="w8a8",
        calibration=tmp_path / "x.npy",
        options=[("aimet.cle", "true"), ("aimet.scheme", "tf_enhanced")],
        out=tmp_path / "out",
    )
    assert made.package is not None
    assert made.executed[0] == "quantize"
    codes = {finding.code for finding in made.findings}
    assert "DK221" in codes
    assert not codes & {"DK220", "DK222"}
    told = json.loads((made.package / "manifest.json").read_text("utf-8"))["quantization"]
    assert told["toolchain"] == "aimet==2.42.0"
    assert told["options"]["cle"] is True

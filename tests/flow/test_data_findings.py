"""What is said about samples by every command that is given some: wrong ones are told, right ones bring no warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import deploykit
from deploykit.findings import Finding, Severity
from sample_models.tiny_graphs import TinyGraph

ABOUT_DATA = {f"DK{number}" for number in (*range(230, 236), 252, *range(621, 629))}


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small classifier as exporters leave it: no BatchNormalization is left to tell how its data was prepared."""
    rng = np.random.default_rng(3)
    graph = TinyGraph()
    x = graph.input("x", (1, 3, 16, 16))
    y = graph.op("Conv", [x, graph.stored("w", rng.normal(size=(8, 3, 3, 3)) / 5)], "c", pads=[1, 1, 1, 1])
    y = graph.op("Relu", [y], "r")
    y = graph.op("Conv", [y, graph.stored("v", rng.normal(size=(4, 8, 3, 3)) / 8)], "d", pads=[1, 1, 1, 1])
    onnx.save(graph.model(graph.op("GlobalAveragePool", [y], "y")), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def pictures(count: int) -> npt.NDArray[np.float32]:
    """Large patches of every colour with some noise, normalised."""
    rng = np.random.default_rng(11)
    patches = np.kron(rng.normal(size=(count, 1, 3, 4, 4)), np.ones((1, 1, 1, 4, 4)))
    return np.clip(patches + rng.normal(scale=0.1, size=patches.shape), -2.1, 2.6).astype(np.float32)


def in_folders(folder: Path, values: npt.NDArray[Any], rare: int) -> Path:
    """One file each, the first ``rare`` of them of another class."""
    for place, value in enumerate(values):
        home = folder / ("rare" if place < rare else "often")
        home.mkdir(parents=True, exist_ok=True)
        np.save(home / f"s{place:03}.npy", value)
    return folder


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {one.code for one in findings if one.severity is not Severity.INFO} & ABOUT_DATA


def test_right_samples_bring_no_warning_from_any_command(model: Path, tmp_path: Path) -> None:
    data = in_folders(tmp_path / "data", pictures(32), rare=16)
    asked: dict[str, Any] = {"target": "sm8650", "sdk": "2.37", "calibration": data}
    assert codes(deploykit.check(model, precision="w8a8", **asked)) == set()
    assert codes(deploykit.check(model, **asked)) == set()
    done = deploykit.quantize(model, precision="w8a8", out=tmp_path / "quantized", **asked)
    assert codes(done.findings) == set()


def test_every_command_says_what_is_wrong_with_them(model: Path, tmp_path: Path) -> None:
    """Bytes where normalised colours belong, seven of one class for one of the other."""
    wrong = np.round((pictures(32) + 2.1) / 4.7 * 255).astype(np.float32)
    asked: dict[str, Any] = {
        "target": "sm8650",
        "sdk": "2.37",
        "precision": "w8a8",
        "calibration": in_folders(tmp_path / "data", wrong, rare=4),
    }
    wanted = {"DK235", "DK252"}
    assert codes(deploykit.check(model, **asked)) == wanted
    assert codes(deploykit.plan(model, **asked).findings) == wanted
    assert codes(deploykit.package(model, out=tmp_path / "package", **asked).findings) == wanted
    assert codes(deploykit.quantize(model, out=tmp_path / "quantized", **asked).findings) == wanted
    told = json.loads((tmp_path / "quantized" / "report.json").read_text("utf-8"))["findings"]
    assert wanted <= {row["code"] for row in told}
    # In float16 no range comes from them: their scale still matters to whoever judges on them, their number does not.
    assert codes(deploykit.check(model, **{**asked, "precision": "fp16"})) == {"DK252"}


def test_where_the_target_calibrates_it_is_said_as_well(model: Path, tmp_path: Path) -> None:
    """Nothing is quantized here, and the same data goes to the quantizer of the target."""
    data = in_folders(tmp_path / "data", pictures(32), rare=4)
    found = deploykit.check(model, target="vek385", precision="vint8", calibration=data)
    assert "DK235" in codes(found)
    native = deploykit.check(model, target="sm8650", sdk="2.37", precision="w8a8", quantizer="none", calibration=data)
    assert "DK235" in codes(native)


def test_few_samples_are_told_with_a_number(model: Path, tmp_path: Path) -> None:
    """Half of them is dark: what one half shows is not what the other has."""
    few = pictures(4)
    few[1::2] *= 0.2
    np.savez(tmp_path / "few.npz", x=few)
    found = deploykit.check(model, target="sm8650", sdk="2.37", precision="w8a8", calibration=tmp_path / "few.npz")
    assert codes(found) <= {"DK234", "DK621"}
    hints = [one.hint for one in found if one.code in ("DK234", "DK621")]
    assert any("100" in hint for hint in hints)

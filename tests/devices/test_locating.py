"""The operator at which a device parts from the CPU, found through pieces that are run there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit
from deploykit.accuracy.simulate.sessions import Session
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.devices import locating
from deploykit.devices.places import DeviceRow

AIMET = Path(__file__).parents[1] / "data" / "aimet"
WRONG = "layer1.0.conv2.weight"
"""What the device of these tests reads wrongly: the weights of one convolution."""


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("locating") / "package"
    asked: dict[str, Any] = {"encodings": AIMET / "cnn/w8a8.v1.0.0.encodings", "backend": "ort-qnn", "compile": False}
    deploykit.package(AIMET / "cnn/model.onnx", target="sm8650", out=out, **asked)
    return out


def make(path: Path, manifest: Mapping[str, Any], out: Path) -> None:
    del manifest
    out.mkdir()
    shutil.copyfile(path, out / "model.onnx")


def device(spoiled: bool) -> Any:
    """Plays the device: the CPU, with one set of weights turned round."""

    def outputs(package: Path, row: DeviceRow, feeds: Sequence[Mapping[str, Any]], tell: object) -> list[Any]:
        del row, tell
        model = onnx.load(package / "model.onnx")
        for tensor in model.graph.initializer:
            if spoiled and tensor.name.startswith(WRONG) and tensor.data_type == onnx.TensorProto.INT8:
                values = numpy_helper.to_array(tensor)
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[::-1]), tensor.name))
        session = Session(model)
        return [session.run(feed) for feed in feeds]

    return outputs


def test_the_first_operator_that_differs_there_is_named(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"threshold_db": 20.0, "samples": None}
    row = DeviceRow(at="local")
    monkeypatch.setattr(locating, "_outputs_on", device(spoiled=False))
    assert locating.locate_on(packaged, row, make, print, **asked).first is None
    monkeypatch.setattr(locating, "_outputs_on", device(spoiled=True))
    found = locating.locate_on(packaged, row, make, print, **asked).first
    assert found is not None and found.node in ("/layer1/0/conv2/Conv", "/layer1/layer1.0/Add")
    assert all(view.sqnr_db > 60 for view in found.inputs)


def test_the_command_takes_a_package_and_no_second_model(packaged: Path) -> None:
    for more in (["other.onnx"], ["--encodings", "x"], ["--data", "x"]):
        assert run(cli, ["accuracy", "locate", str(packaged), *more, "--on", "local"]) == 2
    assert run(cli, ["accuracy", "locate", str(packaged), "--on", "nowhere"]) == 2


@pytest.mark.heavy
def test_the_emulator_agrees_with_the_cpu(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime_qnn")
    assert run(cli, ["accuracy", "locate", str(packaged), "--on", "local"]) == 0
    assert "no output is below 20 dB" in capsys.readouterr().out
    # Held to more than an emulator promises, the quantization of the input is where both part.
    assert run(cli, ["accuracy", "locate", str(packaged), "--on", "local", "--threshold", "60"]) == 1
    assert "first divergence" in capsys.readouterr().out

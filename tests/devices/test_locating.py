"""Places in a file, and the device that a package is for."""

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

import deploykit
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.on_device import Place
from deploykit.backend.plugins import load_backend
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.devices import locating
from deploykit.devices.places import DeviceRow, draft_device
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.findings import Confidence
from deploykit.tables.devices import Fact
from deploykit_qualcomm.devices import device_of_id, qualcomm_device, qualcomm_devices
from tables import each_row
from told import check_told

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


@each_row(("samples", "given"), (None, 2), (1, 1), (3, 3))
def test_so_many_samples_are_run_there(samples: int | None, given: int, packaged: Path, monkeypatch: Any) -> None:
    plays = Mock(side_effect=device(spoiled=False))
    monkeypatch.setattr(locating, "_outputs_on", plays)
    asked: dict[str, Any] = {"threshold_db": 35.0, "samples": samples}
    found = locating.locate_on(packaged, DeviceRow(at="local"), make, print, **asked)
    assert (found.first, found.threshold_db) == (None, 35.0)
    assert {len(call.args[2]) for call in plays.call_args_list} == {given}


def test_what_cannot_be_asked_of_a_device(packaged: Path, tmp_path: Path) -> None:
    asked: Any = {"row": DeviceRow(at="local"), "tell": print, "threshold_db": 20.0, "samples": None}
    with pytest.raises(ToolError, match="the model with more outputs cannot be packaged"):
        locating.locate_on(packaged, make=lambda *_: None, **asked)
    two = shutil.copytree(packaged, tmp_path / "two")
    shutil.copyfile(two / "model/model.onnx", two / "model/tail.onnx")
    with pytest.raises(UsageError, match="is run in pieces"):
        locating.locate_on(two, make=make, **asked)


@pytest.mark.heavy
def test_the_emulator_agrees_with_the_cpu(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime_qnn")
    assert run(cli, ["accuracy", "locate", str(packaged), "--on", "local"]) == 0
    assert "no output is below 20 dB" in capsys.readouterr().out
    # Held to more than an emulator promises, the quantization of the input is where both part.
    assert run(cli, ["accuracy", "locate", str(packaged), "--on", "local", "--threshold", "60"]) == 1
    assert "first divergence" in capsys.readouterr().out


def place(soc: str) -> Place:
    return Place(kind="adb", system="Android", machine="aarch64", folder="/data/local/tmp/x", soc=soc)


@pytest.mark.parametrize("soc", ["", "SM8650", "sm8650", "SM8750-AC"])
def test_a_chip_that_is_known_has_no_draft(soc: str) -> None:
    assert draft_device(place(soc), load_backend("qnn-htp"), "sm8650") == ""


def test_a_draft_says_what_is_known_of_the_chip_it_was_taken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load_backend("qnn-htp")
    base = replace(
        next(iter(backend.devices())),
        id="base",
        name="Base 1",
        aliases=("BASE-1A",),
        vendor="V",
        backends=("qnn-htp",),
        facts={
            name: Fact(value=value, source=("s",), confidence=Confidence.DOCUMENTED) for name, value in FACTS.items()
        },
    )
    monkeypatch.setattr(type(backend), "devices", lambda _: [base])
    assert [draft_device(place(soc), backend, "base") for soc in ("", "BASE", "base 1", "base-1a")] == [""] * 4
    assert draft_device(place("New"), backend, "other") == ""
    told = draft_device(place(" New/Chip! "), backend, "base").splitlines()
    check_told(Path(__file__).with_name("draft.told"), {"a chip that no table has": told})


FACTS: dict[str, Any] = {"arch": "v99", "marketing": "Best", "soc_model": 7, "precisions": ("w8a8",)}


def test_a_draft_is_a_device_that_is_known_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = draft_device(place('SM8750P "x"'), load_backend("qnn-htp"), "sm8750")
    told = tomllib.loads(text)
    assert (told["id"], told["name"], told["facts"]["arch"]["value"]) == ("sm8750p-x", 'SM8750P "x"', "v79")
    assert {fact["confidence"] for fact in told["facts"].values()} == {"inferred"}
    (tmp_path / "sm8750p-x.toml").write_text(text, "utf-8")
    monkeypatch.setenv("DEPLOYKIT_DEVICES", str(tmp_path))
    qualcomm_devices.cache_clear()
    try:
        assert qualcomm_device("SM8750P-x").fact("soc_model") == 69
        found = device_of_id("sm8750p-x")
        assert found is not None and "w8a16" in found.fact("precisions")
        assert draft_device(place("SM8750P-X"), load_backend("ort-qnn"), "sm8750") == ""
        (tmp_path / "sm8650.toml").write_text("schema = 1\n", "utf-8")
        with pytest.raises(InputError, match=r"sm8650\.toml"):
            device_of_id("sm8650")
        monkeypatch.setenv("DEPLOYKIT_DEVICES", str(tmp_path / "absent"))
        with pytest.raises(InputError, match="no such folder"):
            device_of_id("sm8650")
    finally:
        qualcomm_devices.cache_clear()

"""Bad input through the front door: one clear message, the right exit status, nothing half written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.cli import cli
from deploykit.cli.frame import run

DATA = Path(__file__).parent / "data" / "aimet" / "cnn"


def package(model: Path, tmp_path: Path, *more: str) -> int:
    return run(cli, ["package", str(model), "--target", "sm8650", "--sdk", "2.33", "-o", str(tmp_path / "out"), *more])


def refused(capsys: pytest.CaptureFixture[str], status: int, wanted: int, *says: str) -> None:
    captured = capsys.readouterr()
    assert status == wanted, captured.err
    for word in says:
        assert word in captured.err + captured.out
    assert "Traceback" not in captured.err


def relu(dim: int | str = 4) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, dim]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def external(location: str, length: int = 64) -> onnx.ModelProto:
    model = relu(16)
    weight = numpy_helper.from_array(np.zeros((1, 16), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    model.graph.initializer.append(weight)
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("w")
    return model


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


BAD_MODELS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "absent": (lambda p: p / "m.onnx", ("m.onnx",)),
    "a folder": (lambda p: p, ("folder",)),
    "empty": (lambda p: _bytes(p, b""), ("m.onnx",)),
    "text": (lambda p: _bytes(p, b"this is not a model at all, is it?"), ("m.onnx",)),
    "json": (lambda p: _bytes(p, b'{"a": 1}'), ("m.onnx",)),
    "truncated": (lambda p: _bytes(p, (DATA / "model.onnx").read_bytes()[:9000]), ("m.onnx",)),
    "without a graph": (lambda p: saved(onnx.ModelProto(ir_version=8), p / "m.onnx"), ("m.onnx",)),
    "external data missing": (lambda p: saved(external("w.bin"), p / "m.onnx"), ("m.onnx", "w.bin", "w")),
    "external data too short": (lambda p: _short(p), ("w.bin",)),
    "external data above the folder": (lambda p: saved(external("../w.bin"), p / "m.onnx"), ("../w.bin",)),
    "external data at an absolute path": (lambda p: saved(external("/etc/passwd"), p / "m.onnx"), ("/etc/passwd",)),
    "external data behind a link": (lambda p: _link(p), ("w.bin",)),
}


def _bytes(folder: Path, data: bytes) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(data)
    return path


def _short(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(b"\0" * 63)
    return saved(external("w.bin"), folder / "m.onnx")


def _link(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "w.bin").write_bytes(b"\0" * 64)
    (inner / "w.bin").symlink_to(folder / "w.bin")
    return saved(external("w.bin"), inner / "m.onnx")


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_model(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, says = BAD_MODELS[case]
    refused(capsys, package(make(tmp_path), tmp_path), 3, *says)
    assert not (tmp_path / "out").exists()


def test_external_data_outside_is_refused_before_it_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target exists and would block for ever if anything opened it."""
    os.mkfifo(tmp_path / "w.bin")
    folder = tmp_path / "model"
    folder.mkdir()
    refused(capsys, package(saved(external("../w.bin"), folder / "m.onnx"), tmp_path), 3, "../w.bin")


def test_a_dynamic_shape_names_the_input_the_size_chosen_and_how_to_choose_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("DK212", "input x is 1 x 1", "next:", "--input x=1,1")
    refused(capsys, package(saved(relu("batch"), tmp_path / "m.onnx"), tmp_path), 0, *told)


GOOD = json.loads((DATA / "w8a8.v0.6.1.encodings").read_text())
NEWEST = json.loads((DATA / "w8a8.v2.0.0.encodings").read_text())


def changed(**item: object) -> bytes:
    """The good file with one value of one entry replaced."""
    data = json.loads(json.dumps(GOOD))
    data["activation_encodings"]["input"][0] |= item
    return json.dumps(data).encode()


BAD_ENCODINGS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("empty",)),
    "not JSON": (b"hello", ("not JSON",)),
    "not UTF-8": (b'{"version": "\xff"}', ("UTF-8",)),
    "truncated": (json.dumps(GOOD).encode()[:4000], ("not JSON",)),
    "unknown version": (json.dumps(GOOD | {"version": "9.9.9"}).encode(), ("9.9.9",)),
    "version against content": (json.dumps(GOOD | {"version": "2.0.0"}).encode(), ("2.0.0",)),
    "content against version": (json.dumps(NEWEST | {"version": "0.6.1"}).encode(), ("0.6.1",)),
    "NaN": (changed(scale=float("nan")), ("NaN",)),
    "infinity": (changed(scale=float("inf")), ("scale is inf",)),
    "zero scale": (changed(scale=0.0), ("input", "scale")),
    "negative scale": (changed(scale=-1.0), ("input", "scale")),
    "absurd width": (changed(bitwidth=77), ("input", "bitwidth")),
    "wrong type": (changed(bitwidth="eight"), ("input", "bitwidth")),
    "null entry": (json.dumps(GOOD | {"activation_encodings": {"input": None}}).encode(), ("input",)),
    "duplicate key": (json.dumps(GOOD).encode().replace(b'"logits"', b'"input"'), ("twice",)),
    "deep nesting": (b"[" * 100_000 + b"]" * 100_000, ("nested",)),
    "a list": (b"[]", ("e.json",)),
    "null": (b"null", ("e.json",)),
}


@pytest.mark.parametrize("case", BAD_ENCODINGS)
def test_bad_encodings(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, says = BAD_ENCODINGS[case]
    (tmp_path / "e.json").write_bytes(data)
    status = package(DATA / "model.onnx", tmp_path, "--encodings", str(tmp_path / "e.json"))
    refused(capsys, status, 3, "e.json", *says)
    assert not (tmp_path / "out").exists()


def test_a_channel_count_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(json.dumps(GOOD))
    data["param_encodings"]["conv1.weight"].pop()
    (tmp_path / "e.json").write_text(json.dumps(data))
    status = package(DATA / "model.onnx", tmp_path, "--encodings", str(tmp_path / "e.json"))
    refused(capsys, status, 3, "e.json", "conv1.weight", "16")


def test_names_of_another_model_are_listed_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(json.dumps(GOOD))
    data["activation_encodings"]["inputt"] = data["activation_encodings"].pop("input")
    (tmp_path / "e.json").write_text(json.dumps(data))
    package(DATA / "model.onnx", tmp_path, "--encodings", str(tmp_path / "e.json"))
    text = "".join(capsys.readouterr())
    assert "inputt" in text
    assert "input" in text.replace("inputt", "")


def test_encodings_of_another_model_altogether(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = DATA.parent / "vit" / "w8a8.v0.6.1.encodings"
    refused(capsys, package(DATA / "model.onnx", tmp_path, "--encodings", str(other)), 1, "DK101", "next:")


def test_an_output_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encodings = str(DATA / "w8a8.v0.6.1.encodings")
    assert package(DATA / "model.onnx", tmp_path, "--encodings", encodings) == 0
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    capsys.readouterr()
    refused(capsys, package(DATA / "model.onnx", tmp_path, "--encodings", encodings), 6, "--force")
    assert package(DATA / "model.onnx", tmp_path, "--encodings", encodings, "--force") == 0
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("change", ["changed", "missing", "extra"])
def test_verify_finds_any_change(change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encodings = str(DATA / "w8a8.v0.6.1.encodings")
    assert package(DATA / "model.onnx", tmp_path, "--encodings", encodings) == 0
    out = tmp_path / "out"
    assert run(cli, ["verify", str(out)]) == 0
    path = out / "config" / ("new.json" if change == "extra" else "backend_config.json")
    if change == "missing":
        path.unlink()
    else:
        path.write_text("{}")
    capsys.readouterr()
    assert run(cli, ["verify", str(out)]) == 6
    assert path.name in capsys.readouterr().out


def test_no_path_of_this_machine_gets_into_a_package(tmp_path: Path) -> None:
    assert package(DATA / "model.onnx", tmp_path, "--encodings", str(DATA / "w8a8.v0.6.1.encodings")) == 0
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and path.suffix != ".onnx":
            text = path.read_text("utf-8")
            assert str(tmp_path) not in text, path
            assert str(DATA) not in text, path

"""Files that no text can hold: each is answered in a few lines, never with a traceback or a defect."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def packaged(**changed: str) -> list[str]:
    """The main command with other words in it."""
    words = {"model": "m.onnx", "target": "sm8650", "sdk": "2.33", "out": "out"} | changed
    model = words.pop("model")
    return ["package", model, *(word for name, value in words.items() for word in (f"--{name}", value))]


MISTAKES: Mapping[str, tuple[list[str], int, str]] = {
    "half a model": (packaged(model="half.onnx"), 3, "half.onnx"),
    "an empty model": (packaged(model="empty.onnx"), 3, "the file is empty"),
    "a zip as model": (packaged(model="zip.onnx"), 3, "looks like a zip archive"),
    "weights left behind": (packaged(model="weights.onnx"), 3, "'weights.data' is missing"),
    "samples that are text": (packaged(precision="w8a8", calibration="text.npy"), 3, "does not fit the input"),
    "a line break in a name": (packaged(input="one\ntwo=1"), 2, "one\\ntwo=1: the model"),
    "a file of PyTorch": (packaged(model="model.pt"), 3, "a PyTorch checkpoint"),
    "samples of Python objects": (packaged(precision="w8a8", calibration="objects.npy"), 3, "plain arrays of numbers"),
    "no sample in the file": (packaged(precision="w8a8", calibration="zero.npy"), 3, "holds no sample"),
    "a name that is no text": (packaged(model="m\udcff.onnx"), 2, "is not UTF-8"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which somebody types."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copy(AIMET / "cnn/model.onnx", desk / "m.onnx")
    half = (desk / "m.onnx").read_bytes()[:9000]
    files = {"empty.onnx": b"", "half.onnx": half, "zip.onnx": b"PK\x03\x04 and so on", "model.pt": b"PK\x03\x04"}
    for name, data in files.items():
        (desk / name).write_bytes(data)
    model = onnx.load(desk / "m.onnx")
    onnx.save(model, desk / "weights.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    (desk / "weights.data").unlink()
    np.save(desk / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(desk / "zero.npy", np.zeros((0, 3, 16, 16), np.float32))
    np.save(desk / "text.npy", np.full((4, 3, 16, 16), "a"))
    return desk


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered(
    mistake: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, status, says = MISTAKES[mistake]
    monkeypatch.chdir(desk)
    assert run(cli, words) == status
    said = capsys.readouterr()
    answer = said.out + said.err
    assert not said.out
    assert says in answer and "Traceback" not in answer and "a defect of deploykit" not in answer
    lines = answer.splitlines()
    assert len(lines) <= 3, answer
    assert all(len(line) < 400 for line in lines)
    assert not (desk / "out").exists()

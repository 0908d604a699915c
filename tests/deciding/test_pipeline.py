"""The main job over several targets: one package each, model and encodings read once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.graph import Model, load_model

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


def package(out: Path, *targets: str) -> int:
    words = [word for target in targets for word in ("--target", target)]
    encodings = str(CNN / "w8a8.v0.6.1.encodings")
    return run(cli, ["package", str(CNN / "model.onnx"), *words, "--encodings", encodings, "-o", str(out), "--json"])


def test_several_targets_are_several_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[Path] = []

    def recording(path: Path) -> Model:
        read.append(path)
        return load_model(path)

    monkeypatch.setattr("deploykit.deciding.reading.load_model", recording)
    assert package(tmp_path / "out", "sm8550", "sm8650", "sm8350") == 0
    packages = json.loads(capsys.readouterr().out)["packages"]
    assert [made["target"]["id"] for made in packages] == ["sm8550", "sm8650", "sm8350"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sm8350", "sm8550", "sm8650"]
    assert read.count(CNN / "model.onnx") == 1


def test_one_target_goes_to_the_folder_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert package(tmp_path / "out", "sm8550") == 0
    assert json.loads(capsys.readouterr().out)["package"] == str(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert manifest["route"]["id"]
    assert [(row["role"], row["name"]) for row in manifest["inputs"]] == [
        ("model", "model.onnx"),
        ("encodings", "w8a8.v0.6.1.encodings"),
    ]


def test_a_target_that_is_unknown_stops_before_anything_is_written(tmp_path: Path) -> None:
    assert package(tmp_path / "out", "sm8550", "sm9999") == 4
    assert not (tmp_path / "out").exists()


def test_a_precision_that_nobody_asked_for_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["package", str(CNN / "model.onnx"), "--backend", "qnn-htp", "--target", "sm8550", "-o"]
    assert run(cli, [*words, str(tmp_path / "assumed")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "assumed    float16, since neither encodings nor a precision were given"
    assert "* **assumed**: float16" in (tmp_path / "assumed" / "README.md").read_text()
    assert run(cli, [*words, str(tmp_path / "asked"), "--precision", "fp16"]) == 0
    assert "assumed" not in capsys.readouterr().out

"""``deploykit build``: what it says when the script ends before it starts a tool, and when a tool fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("build") / "p"
    asked = ["--target", "sm8650", "--sdk", "2.33", "--no-compile", "-o", str(out)]
    assert run(cli, ["-q", "package", str(next(CNN.glob("*.qdq.onnx"))), *asked]) == 0
    return out


def test_without_an_sdk_nothing_is_to_be_collected(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tool ran, so that there is nothing to diagnose: the script's own words are all there is."""
    for name in ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    capsys.readouterr()
    assert run(cli, ["build", str(made), "--json"]) == 5
    report = json.loads(capsys.readouterr().out)
    assert report["diagnosis"] is None
    assert any("QAIRT_SDK_ROOT" in line for line in report["said"])
    assert run(cli, ["-q", "build", str(made)]) == 5
    said = capsys.readouterr().out
    assert "export QAIRT_SDK_ROOT" in said
    assert "collect" not in said


def sdk_of(folder: Path, package: Path, tool: str) -> str:
    """An SDK all of whose tools are this shell script."""
    tools = folder / "2.33.0" / "bin" / "x86_64-linux-clang"
    tools.mkdir(parents=True)
    (folder / "2.33.0" / "sdk.yaml").write_text("version: 2.33.0\n")
    for step in json.loads((package / "manifest.json").read_text())["steps"]:
        (tools / step["tool"]).write_text(f"#!/bin/sh\n{tool}\n")
        (tools / step["tool"]).chmod(0o755)
    return os.fspath(folder / "2.33.0")


@pytest.mark.heavy
def test_a_build_that_is_killed_leaves_the_package_as_it_was(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "QAIRT_SDK_ROOT", sdk_of(tmp_path, made, f"echo half > artifacts/half; touch {tmp_path}/here; sleep 60")
    )
    building = subprocess.Popen([sys.executable, "-m", "deploykit", "build", str(made)], stdout=subprocess.DEVNULL)
    while not (tmp_path / "here").exists():
        assert building.poll() is None
    building.kill()
    building.wait()
    assert run(cli, ["-q", "verify", str(made)]) == 0 and not (made / "artifacts" / "half").exists()
    monkeypatch.delenv("QAIRT_SDK_ROOT")
    assert run(cli, ["-q", "build", str(made)]) == 5 and not list((made / "logs").glob(".*"))


def test_a_tool_that_fails_is_diagnosed_by_its_own_log(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", sdk_of(tmp_path, made, "echo \"KeyError: 'param_encodings'\"; exit 1"))
    capsys.readouterr()
    assert run(cli, ["build", str(made), "--json"]) == 5
    causes = json.loads(capsys.readouterr().out)["diagnosis"]["causes"]
    assert causes[0]["id"] == "keyerror-param-encodings"
    assert f"next: deploykit diagnose {made}/logs/" in (made / "logs/build.log").read_text()

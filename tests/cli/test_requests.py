"""Command lines that make: requests, packages, builds and what is kept between runs."""

import json
import os
from pathlib import Path

import pytest

from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.system.store import is_off

MLP = Path(__file__).parents[1] / "data/aimet/mlp/model.onnx"
SNAPSHOTS = Path(__file__).parents[1] / "data" / "help"


def test_wrong_kernels_are_told_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = AuditedKernel(
        node="n",
        nodes=("n", "m"),
        operators=("Tanh", "Mul"),
        type="u8",
        place="alone",
        verdict="wrong",
        why="off",
        count=2,
    )
    audits = [Audit(level="full", by="somebody", kernels=kernels) for kernels in ((wrong,), ())]
    monkeypatch.setattr("deploykit.flow.pipeline.check", lambda *_, **__: ())
    monkeypatch.setattr("deploykit.flow.pipeline.audit", lambda *_, **__: audits.pop(0))
    asked = ["check", str(MLP), "--target=sm8650", "--backend=ort-qnn", "--kernels=full"]
    assert run(cli, asked) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 kernels by somebody: 1 wrong",
        "verdict  operators   type  node            what",
        "wrong    Tanh > Mul  u8    n (and 1 more)  off",
        "no findings",
    ]
    assert run(cli, asked) == 0 and "0 kernels by somebody: there is none to look at" in capsys.readouterr().out
    monkeypatch.setattr("deploykit.flow.pipeline.estimate", lambda *_, **__: None)
    assert run(cli, ["check", "--plan", *asked[1:-1], "--estimate"]) == 0
    assert "time       no estimate for this chip" in capsys.readouterr().out
    assert run(cli, [*asked[:-1], "--format", "json"]) == 0 and json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize("command", ["package", "check"])
def test_help_is_as_it_was_once_read(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1 pytest tests/cli``, then read the difference."""
    assert run(cli, [command, "--help"]) == 0
    shown = capsys.readouterr().out
    file = SNAPSHOTS / f"{command}.txt"
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, "utf-8")
    assert shown.split() == file.read_text("utf-8").split()  # where lines break is click's business


def test_a_variable_is_an_option_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["check", "--plan", "absent.onnx", "--sdk", "2.33"]
    monkeypatch.setenv("DEPLOYKIT_TARGET", "sm8650")
    assert run(cli, plan) == 3
    monkeypatch.setenv("DEPLOYKIT_LPBQ", "1")
    assert run(cli, plan) == 2
    assert "leave it out (and DEPLOYKIT_LPBQ)" in capsys.readouterr().err
    monkeypatch.delenv("DEPLOYKIT_LPBQ")
    monkeypatch.setenv("DEPLOYKIT_CHECK_MAX_SEGMENTS", "0")
    assert run(cli, plan) == 2
    assert "--max-segments 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["--help"], ["package", "--help"]])
def test_help_fits_and_begins_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 24 <= len(lines) <= (50 if command == ["--help"] else 60)
    assert next(i for i, line in enumerate(lines) if "deploykit package model" in line) < lines.index("Options:")


CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("build") / "p"
    asked = ["--target", "sm8650", "--sdk", "2.33", "--no-compile", "-o", str(out)]
    assert run(cli, ["-q", "package", str(next(CNN.glob("*.qdq.onnx"))), *asked]) == 0
    return out


def sdk_of(folder: Path, package: Path, tool: str) -> str:
    """An SDK all of whose tools are this shell script."""
    tools = folder / "2.33.0" / "bin" / "x86_64-linux-clang"
    tools.mkdir(parents=True)
    (folder / "2.33.0" / "sdk.yaml").write_text("version: 2.33.0\n")
    for step in json.loads((package / "manifest.json").read_text())["steps"]:
        (tools / step["tool"]).write_text(f"#!/bin/sh\n{tool}\n")
        (tools / step["tool"]).chmod(0o755)
    return os.fspath(folder / "2.33.0")


def test_a_tool_that_fails_is_diagnosed_by_its_own_log(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", sdk_of(tmp_path, made, "echo \"KeyError: 'param_encodings'\"; exit 1"))
    capsys.readouterr()
    assert run(cli, ["build", str(made), "--json"]) == 5
    shown = capsys.readouterr()
    causes = json.loads(shown.out)["diagnosis"]["causes"]
    assert causes[0]["id"] == "keyerror-param-encodings" and not shown.err
    assert f"next: deploykit diagnose {made}/logs/" in (made / "logs/build.log").read_text()


@pytest.mark.parametrize("arguments", [["--no-cache", "targets"], ["targets", "--no-cache"]])
def test_no_cache_holds_for_one_call(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.delenv("DEPLOYKIT_NO_CACHE", raising=False)
    seen: list[bool] = []

    def load_backends() -> tuple[()]:
        seen.append(is_off())
        return ()

    monkeypatch.setattr("deploykit.cli.targets.load_backends", load_backends)
    run(cli, arguments)
    assert seen == [True]
    assert "DEPLOYKIT_NO_CACHE" not in os.environ
    monkeypatch.setenv("DEPLOYKIT_NO_CACHE", "yes")
    run(cli, arguments)
    assert os.environ["DEPLOYKIT_NO_CACHE"] == "yes"

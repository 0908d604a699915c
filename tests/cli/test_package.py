"""What ``package`` says on a terminal: the answer first, at most twelve lines, and nothing that asks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
ENCODINGS = str(DETR / "w8a16-fp16mix-omit.v0.6.1.encodings")
ASKED = ["package", str(DETR / "model.onnx"), "--target", "sm8650", "--sdk", "2.33", "--no-compile"]


def test_the_answer_is_short_and_more_is_said_with_v(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, [*ASKED, "--encodings", ENCODINGS, "-o", str(tmp_path / "one")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("not judged: ")
    assert [line.split()[0] for line in lines[1:4]] == ["intact", "compiled", "right"]
    assert any(line.startswith("next ") for line in lines)
    assert lines[-1] == f"package    {tmp_path / 'one'} (open report.html)"
    assert not [line for line in lines if line.startswith("info ")], "what asks nothing is counted"
    assert run(cli, ["-v", *ASKED, "--encodings", ENCODINGS, "-o", str(tmp_path / "two")]) == 0
    told = capsys.readouterr().out
    assert "info DK201" in told and "handled: " in told and "digest     sha256:" in told


def test_a_no_names_its_errors_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, [*ASKED, "--precision", "w8a8", "-o", str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no package was written"
    assert [line.split()[0] for line in lines[1:3]] == ["error", "next:"]
    assert not [line for line in lines if line.startswith(("warning", "info"))]
    assert len(lines) <= 12


@pytest.mark.parametrize("command", [["--help"], ["package", "--help"]])
def test_help_fits_and_begins_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 24 <= len(lines) <= (50 if command == ["--help"] else 60)
    assert next(i for i, line in enumerate(lines) if "deploykit package model" in line) < lines.index("Options:")

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploykit.backend.probes import CheckLine
from deploykit.cli import cli
from deploykit.cli.frame import run


def test_doctor_looks_at_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(cli, ["doctor", "--json"])
    value = json.loads(capsys.readouterr().out)
    lines = {line["id"]: line for line in value["lines"]}
    assert lines["python"]["state"] == "ok"
    assert all(line["next"] for line in lines.values() if line["state"] != "ok")
    assert status == int(not value["ok"]) == int(any(line["state"] == "problem" for line in lines.values()))


def test_a_problem_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path))  # what this machine has half installed is not the point
    broken = CheckLine(id="tool", state="problem", detail="it does not start", next="repair it")
    monkeypatch.setattr("deploykit.cli.doctor.examine", lambda backends: (broken,))
    assert run(cli, ["doctor"]) == 1
    out = capsys.readouterr().out
    assert "it does not start" in out and "next: repair it" in out and "1 problem" in out

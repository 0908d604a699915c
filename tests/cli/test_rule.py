from __future__ import annotations

import json

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run


def test_the_list_and_one_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["explain", "rules"]) == 0
    out = capsys.readouterr().out
    assert "QNN200" in out and "rank-above-5" in out and "rules" in out.splitlines()[-1]
    assert run(cli, ["explain", "qnn200"]) == 0
    assert "# QNN200: rank-above-5" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["explain", "rank-above-5", "--json"]) == 0
    rule = json.loads(capsys.readouterr().out)["rule"]
    assert (rule["code"], rule["severity"], rule["scope"]) == ("QNN200", "error", "situation")
    assert rule["sources"]
    assert run(cli, ["explain", "rules", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rules"]) >= 60


def test_an_unknown_rule_suggests_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["explain", "rank-above-4"]) == 2
    assert "rank-above-5" in capsys.readouterr().err

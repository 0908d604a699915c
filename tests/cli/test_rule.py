from __future__ import annotations

import json

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run


def test_the_list_and_one_page(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str, status: int = 0) -> str:
        assert run(cli, ["explain", *words]) == status
        return "".join(capsys.readouterr())

    listed = told("rules")
    assert "QNN200" in listed and "rank-above-5" in listed and "rules" in listed.splitlines()[-1]
    assert "# QNN200: rank-above-5" in told("qnn200")
    rule = json.loads(told("rank-above-5", "--json"))["rule"]
    assert (rule["code"], rule["severity"], rule["scope"]) == ("QNN200", "error", "situation") and rule["sources"]
    assert len(json.loads(told("rules", "--json"))["rules"]) >= 60
    assert "rank-above-5" in told("rank-above-4", status=2)

from __future__ import annotations

import json
from typing import Any

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from tables import each_row


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str, status: int = 0) -> str:
        assert run(cli, ["targets", *args]) == status
        return capsys.readouterr().out

    return call


def test_every_device_of_every_backend_is_listed(call: Any) -> None:
    value = json.loads(call("--json"))
    ids = [target["id"] for target in value["targets"]]
    assert ids == sorted(ids)
    assert {"sm8550", "sm8650", "sm8750", "sa8775p", "qcs6490", "sc8380xp"} <= set(ids)
    assert {"vek385", "phoenix", "strix", "krackan"} <= set(ids)
    assert len(ids) >= 113 + 4


def test_one_device_with_facts_and_sources(call: Any) -> None:
    (target,) = json.loads(call("sm8650", "--json"))["targets"]
    assert (target["soc_model"], target["arch"], target["vtcm_mb"]) == (57, "v75", 8)
    assert target["facts"]["soc_model"]["source"]
    assert target["facts"]["soc_model"]["confidence"] == "observed"
    text = call("sm8650")
    assert "arch: v75 (observed)" in text
    assert "source: " in text
    assert "precisions: w8a16, w16a16, fp16, lpbq" in text


@each_row("name", ["SA8775P", "sa8775", "snapdragon 8 gen 3", "Snapdragon-8-Elite", "vek385"])
def test_names_people_use(name: str, call: Any) -> None:
    assert len(json.loads(call(*name.split(), "--json"))["targets"]) == 1


def test_a_search_lists_what_matches(call: Any) -> None:
    found = {target["id"] for target in json.loads(call("v75", "--json"))["targets"]}
    assert "sm8650" in found
    assert "sm8550" not in found
    assert "sm8650" in call("v75")


def test_what_is_contradicted_or_unknown_is_said(call: Any) -> None:
    assert "35 (reported, others say 93)" in call("qcs6490")
    assert "arch: unknown" in call("sc7280x")


def test_only_one_backend(call: Any) -> None:
    found = json.loads(call("--backend", "vitis-ai", "--json"))["targets"]
    assert found and all("vitis-ai" in target["backends"] for target in found)


def test_a_device_that_is_not_there(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["targets", "sm865O0"]) == 4
    error = capsys.readouterr().err
    assert "unknown target 'sm865O0'" in error
    assert "sm8650" in error

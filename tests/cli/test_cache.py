"""``deploykit doctor --clear-cache`` and ``--no-cache``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.system.store import Store, is_off
from tables import each_row

KEY = "a" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    return tmp_path


def test_it_says_what_is_kept_and_clears_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploykit.cli.doctor.examine", lambda _backends: ())
    for kind in ("one", "two"):
        Store(kind).put(KEY, {"answer": 1})
    size = (folder / "one" / f"{KEY}.json").stat().st_size
    run(cli, ["doctor", "--json"])
    (found,) = (line["facts"] for line in json.loads(capsys.readouterr().out)["lines"] if line["id"] == "cache")
    assert found["kinds"] == [{"kind": kind, "entries": 1, "bytes": size} for kind in ("one", "two")]
    assert found["folder"] == str(folder) and found["limit"] == 2 << 30
    assert run(cli, ["doctor", "--clear-cache", "--json"]) == 0
    assert [room["kind"] for room in json.loads(capsys.readouterr().out)["cleared"]] == ["one", "two"]
    assert run(cli, ["doctor", "--clear-cache"]) == 0
    assert "0 entries" in capsys.readouterr().out


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


@each_row(("value", "off"), [("1", True), ("yes", True), ("0", False), ("false", False), ("", False)])
def test_the_variable_says_the_same(monkeypatch: pytest.MonkeyPatch, value: str, off: bool) -> None:
    monkeypatch.setenv("DEPLOYKIT_NO_CACHE", value)
    assert is_off() is off
    assert run(cli, ["doctor", "--clear-cache"]) == 0
    assert os.environ["DEPLOYKIT_NO_CACHE"] == value

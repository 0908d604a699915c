"""Answers that are kept between runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.system.remembered import Remembered, cache_folder, key_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "here"))
    return tmp_path / "here"


def test_an_answer_is_found_again_by_another_run(folder: Path) -> None:
    Remembered("kind").put("key", {"answer": [1, "two"]})
    assert Remembered("kind").get("key") == {"answer": [1, "two"]}
    assert Remembered("other kind").get("key") is None
    assert [path.name for path in (folder / "kind").iterdir()] == ["key.json"]


@pytest.mark.parametrize("damaged", ["", "{", "[1]", "null", "\x00"])
def test_what_is_damaged_is_no_answer(folder: Path, damaged: str) -> None:
    Remembered("kind").put("key", {"answer": 1})
    (folder / "kind" / "key.json").write_text(damaged, "utf-8")
    assert Remembered("kind").get("key") is None


def test_a_folder_that_cannot_be_made_keeps_nothing(folder: Path) -> None:
    folder.write_text("a file in the way", "utf-8")
    Remembered("kind").put("key", {"answer": 1})
    assert Remembered("kind").get("key") is None


def test_a_key_depends_on_the_content_and_on_what_was_asked() -> None:
    keys = {key_of(content, asked) for content in (b"a", b"b") for asked in ({"x": 1}, {"x": 2})}
    assert len(keys) == 4
    assert key_of(b"a", {"x": 1, "y": 2}) == key_of(b"a", {"y": 2, "x": 1})


def test_the_users_cache_folder_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DEPLOYKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "deploykit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parts[-2:] == (".cache", "deploykit")

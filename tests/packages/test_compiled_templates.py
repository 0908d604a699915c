"""Built-in templates are compiled once for each Python, and what is kept is never taken for another template's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from deploykit.report.compiled_templates import CompiledTemplates


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    where = tmp_path / "templates"
    where.mkdir()
    (where / "a.j2").write_text("one {{ x }}", "utf-8")
    return where


def _render(folder: Path, environment: bytes = b"") -> str:
    loader = FileSystemLoader(folder)
    return Environment(loader=loader, bytecode_cache=CompiledTemplates(environment)).get_template("a.j2").render(x=1)


def _kept(folder: Path) -> Path:
    (path,) = (folder.parent / "kept").rglob("*.j2c")
    return path


def test_a_template_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _render(folder) == "one 1"
    monkeypatch.setattr(Environment, "compile", lambda *_, **__: pytest.fail("compiled again"))
    assert _render(folder) == "one 1"


@pytest.mark.parametrize("environment", [b"", b"other"], ids=["another text", "other settings"])
def test_what_was_made_of_something_else_is_not_taken(
    folder: Path, environment: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _render(folder)
    before = _kept(folder).read_bytes()
    if not environment:
        (folder / "a.j2").write_text("two {{ x }}", "utf-8")
    assert _render(folder, environment) == ("one 1" if environment else "two 1")
    assert _kept(folder).read_bytes() != before


@pytest.mark.parametrize("damage", [b"", b"j2\x05", b"nonsense"], ids=["empty", "cut", "other"])
def test_damage_costs_time_alone(folder: Path, damage: bytes) -> None:
    _render(folder)
    _kept(folder).write_bytes(damage)
    assert _render(folder) == "one 1"
    assert _kept(folder).read_bytes() != damage


def test_nothing_is_left_where_python_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert _render(folder) == "one 1"
    assert not (folder.parent / "kept").exists()


def test_a_place_that_cannot_be_written_to_is_no_reason_to_fail(folder: Path) -> None:
    (folder.parent / "kept").write_text("a file where the folder would be", "utf-8")
    assert _render(folder) == "one 1"

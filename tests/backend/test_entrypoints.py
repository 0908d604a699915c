from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from deploykit.backend.entrypoints import entry_points


def install(folder: Path, package: str, text: str) -> None:
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


def test_it_finds_what_importlib_metadata_finds() -> None:
    for group in ("deploykit.backends", "console_scripts", "pytest11"):
        known = {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
        found = entry_points(group)
        assert set(found) == set(known)
    assert entry_points("deploykit.backends")["qnn-htp"] == "deploykit_qnn_htp:backend"


def test_a_third_party_is_found_like_the_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path, "fourth", "[other]\nx = y:z\n\n[deploykit.backends]\n# a comment\nfourth = fourth_pkg:it [extra]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = entry_points("deploykit.backends")
    assert found["fourth"] == "fourth_pkg:it"
    assert "qnn-htp" in found
    assert "x" not in found


def test_the_first_on_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("second", "first"):
        install(tmp_path / name, "same", f"[deploykit.test]\nsame = {name}:it\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    assert entry_points("deploykit.test") == {"same": "first:it"}


def test_a_path_that_is_no_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive.zip").write_bytes(b"PK")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "archive.zip"), str(tmp_path / "missing"), *sys.path])
    assert "qnn-htp" in entry_points("deploykit.backends")


def test_an_unreadable_file_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "torn", "[deploykit.backends]\n")
    (tmp_path / "torn-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe deploykit.backends")
    monkeypatch.syspath_prepend(tmp_path)
    assert "qnn-htp" in entry_points("deploykit.backends")


def test_without_plain_folders_importlib_metadata_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [importlib.metadata.EntryPoint(name="zipped", value="a:b", group="deploykit.test")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    assert entry_points("deploykit.test") == {"zipped": "a:b"}

"""Backends of installed packages are found, whatever lies beside them on the import path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploykit.backend import plugins


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    plugins._entry_points.cache_clear()
    yield
    plugins._entry_points.cache_clear()


def install(folder: Path, package: str, text: str) -> None:
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


def test_the_first_on_the_path_wins_beside_the_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("second", "first"):
        text = f"[other]\nx = y:z\n\n[deploykit.backends]\n# a comment\nsame = {name}:it [extra]\n"
        install(tmp_path / name, "same", text)
        monkeypatch.syspath_prepend(tmp_path / name)
    assert plugins._entry_points()["same"] == "first:it"
    assert plugins._entry_points()["qnn-htp"] == "deploykit_qnn_htp:backend"
    assert "x" not in plugins.backend_ids()

"""The notebooks run from top to bottom, and show what is kept in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from notebooks import executed, read_notebook, shown_text, write_notebook

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_is_kept_in_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With DEPLOYKIT_WRITE_DOCS its outputs are written instead."""
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))
    kept = read_notebook(FOLDER / name)
    run = executed(kept)
    if os.environ.get("DEPLOYKIT_WRITE_DOCS"):
        write_notebook(FOLDER / name, run)
    assert shown_text(run) == shown_text(read_notebook(FOLDER / name))


def test_there_are_three_each_executed_small_and_listed() -> None:
    listed = (FOLDER / "README.md").read_text("utf-8")
    assert len(NAMES) == 3
    for name in NAMES:
        notebook = read_notebook(FOLDER / name)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        assert sum(bool(cell["outputs"]) for cell in cells) > len(cells) // 2
        assert (FOLDER / name).stat().st_size < 60_000
        assert f"]({name})" in listed


def test_the_last_expression_and_what_is_printed_are_shown() -> None:
    cells = [{"cell_type": "code", "metadata": {}, "source": ["print('a')\n", "x = 2\n", "x + 1"], "outputs": []}]
    run = executed({"cells": cells, "nbformat": 4})
    stream, result = run["cells"][0]["outputs"]
    assert (stream["text"], result["data"]["text/plain"]) == (["a\n"], ["3"])
    assert shown_text(run) == ["a #"]
    with pytest.raises(ZeroDivisionError):
        executed({"cells": [{"cell_type": "code", "metadata": {}, "source": ["1 / 0"]}], "nbformat": 4})

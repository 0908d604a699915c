"""The benchmark table is made as a whole, whatever is measured: every figure has a name, every remark a figure."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """``rows`` and ``__main__`` of the benchmarks, which find each other by their folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("benchmarks_main", FOLDER / "__main__.py")
    assert spec is not None and spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    yield sys.modules["rows"], main
    for name in ("rows", "spending"):
        sys.modules.pop(name, None)


@pytest.fixture
def figures(modules: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What all rows yield where every program costs the same and every probe measures ones."""
    rows = modules[0]
    spent = rows.Spent(cpu=2.0, wall=3.0, peak=400.0, text='{"own": 1, "others": 1}')
    monkeypatch.setattr(rows, "spend", lambda *_, **__: spent)
    monkeypatch.setattr(rows.Bench, "probe", lambda *_, **__: _Ones())
    monkeypatch.setattr(rows, "median", lambda run, times: run())
    bench = rows.Bench(folder=tmp_path, times=1)
    return [figure for row in rows.ROWS.values() for figure in row(bench)]


class _Ones(dict[str, float]):
    def __missing__(self, key: str) -> float:
        return 1.0


def test_every_figure_has_a_name_of_its_own_and_every_remark_a_figure(
    modules: tuple[ModuleType, ModuleType], figures: list[Any]
) -> None:
    ids = [figure.id for figure in figures]
    assert len(ids) == len(set(ids))
    said = modules[1].remarks()
    assert said.keys() <= set(ids)
    assert all(remark.keys() <= {"before", "why"} for remark in said.values())


def test_the_table_says_what_falls_short_by_how_much_and_why(
    modules: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, main = modules

    def row(bench: object) -> Iterator[Any]:
        """a row"""
        del bench
        yield rows.Figure(id="good", what="less", value=1.0, limit=2.0, unit="s", runs=5)
        yield rows.Figure(id="bad", what="more", value=3.0, limit=2.0, unit="s", runs=3, of="3 s")

    monkeypatch.setattr(main, "ROWS", {"row": row})
    lines = list(main.table(None, ["row"], {"good": {"before": "4 s"}, "bad": {"why": "it is hard"}}))
    assert lines[2:] == [
        "| a row | less | 2 s | 4 s | 1 s | no | 5 |",
        "|  | more | 2 s |  | 3 s (3 s) | by 1.50 x | 3 |",
        "",
        "Why these fall short:",
        "",
        "* more (row): it is hard",
    ]
    page = f"head\n{main.BEGIN}\nold\n{main.END}tail\n"
    assert main.filled(page, "new") == f"head\n{main.BEGIN}\nnew\n{main.END}tail\n"


def test_the_page_has_a_place_for_the_table(modules: tuple[ModuleType, ModuleType]) -> None:
    main = modules[1]
    assert main.filled(main.PAGE.read_text("utf-8"), "x").count(main.BEGIN) == 1

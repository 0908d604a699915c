from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploykit import api
from deploykit.errors import InputError, PackageError, UnknownTargetError, UsageError
from deploykit.fleet.description import read_file
from deploykit.fleet.pages import junit_of, render_matrix, size_text
from deploykit.fleet.results import CellResult, CellVerdict, Results, compare

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def cell(name: str, *, right: str = "yes", status: int = 0, db: float = 40.0, **more: Any) -> CellResult:
    number = {"measure": "sqnr", "unit": "dB", "value": db}
    outcome = {"status": {"right": right, "compiled": more.pop("compiled", "not run"), "numbers": [number]}}
    return CellResult(cell=name, key="k", exit_status=status, outcome=outcome, **more)


def results(*cells: CellResult, not_run: tuple[str, ...] = ()) -> Results:
    ids = [*(one.cell for one in cells), *not_run]
    return Results(
        models=tuple(dict.fromkeys(name.partition("/")[0] for name in ids)),
        targets=tuple(dict.fromkeys(name.partition("/")[2] for name in ids)),
        cells=cells,
        not_run=not_run,
    )


def test_no_answer_is_never_a_yes() -> None:
    assert cell("a/b").verdict is CellVerdict.YES
    assert cell("a/b", right="not judged").verdict is CellVerdict.NOT_JUDGED
    assert cell("a/b", status=1).verdict is CellVerdict.NO
    assert cell("a/b", status=5).verdict is CellVerdict.FAILED
    assert cell("a/b", error={"what": "x"}).verdict is CellVerdict.FAILED
    assert CellResult(cell="a/b", key="", exit_status=0).verdict is CellVerdict.NOT_JUDGED
    assert results(cell("a/b"), not_run=("a/c",)).exit_status == 1


def test_a_comparison_tells_what_became_worse() -> None:
    old = results(cell("a/x"), cell("a/y", db=40), cell("a/z", compiled="yes"), cell("a/gone"))
    new = results(
        cell("a/x", status=1), cell("a/y", db=40.05), cell("a/z", compiled="refused", status=1), cell("a/new")
    )
    found = compare(old, new)
    assert [(change.cell, change.worse) for change in found.changes] == [("a/x", True), ("a/z", True)]
    assert (found.gone, found.new, found.same) == (("a/gone",), ("a/new",), 1)
    assert found.exit_status == 1
    better = compare(new, results(cell("a/x"), cell("a/y", db=50)))
    assert [change.worse for change in better.changes] == [False, False]
    assert better.exit_status == 0


def test_cells_are_held_against_a_time_and_an_older_run() -> None:
    def timed(name: str, us: float, **more: Any) -> CellResult:
        one = cell(name)
        return replace(one, outcome={**one.outcome, "estimate": {"time_us": us, **more}})

    cells = (timed("a/x", 900.0), timed("a/y", 5100.0), timed("a/z", 9000.0, instead_of="another"), cell("a/w"))
    known = replace(results(*cells), max_time_us=5000.0)
    assert (known.too_slow, known.exit_status, known.to_json()["too_slow"]) == (("a/y",), 1, ["a/y"])
    assert results(*cells).exit_status == 0 and replace(known, max_time_us=6000.0).exit_status == 0
    (slower,) = compare(known, results(timed("a/x", 950.0), timed("a/y", 5101.0))).changes
    assert slower.worse and slower.what == ("estimated 900 us -> 950 us",)
    with pytest.raises(UsageError, match="no time"):
        api.matrix(AIMET / "none.toml", max_time="soon")


def test_names_and_words_of_strangers_stay_text() -> None:
    bad = cell("a/b", status=1, error={"what": "<script>alert(1)</script>\x00\x1b[31m", "why": "", "next": ""})
    page = render_matrix(results(bad), "<b>file</b>")
    assert page.count("<script>") == 1, "its own"
    assert "\x1b" not in page
    assert "<b>file" not in page
    assert "\x00" not in junit_of(results(bad), "file")


def test_sizes_are_for_people() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "5 MiB",
        "3.0 GiB",
    ]


def test_a_folder_of_models_becomes_a_file_that_is_read(tmp_path: Path) -> None:
    weird = "weird näme" if sys.getfilesystemencoding() == "utf-8" else "weird n me"
    for folder, name in (("one", "model"), ("two", "model"), (".", weird)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.onnx").write_bytes((AIMET / "cnn" / "model.onnx").read_bytes())
    (tmp_path / "one" / "model.encodings").write_text("{}", "utf-8")
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "a.npy").write_bytes(b"")
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff")
    file, scouted = api.init(tmp_path, targets=["sm8650", "SM8650"])
    assert [model.name for model in scouted.models] == ["one-model", "two-model", "weird-n-me"]
    assert scouted.models[0].encodings == "one/model.encodings"
    assert {model.calibration for model in scouted.models} == {"calibration"}
    assert scouted.skipped[0][0] == "bad.onnx"
    described = read_file(file)
    assert list(described.targets) == ["sm8650"]
    assert described.models["weird-n-me"].path == f"{weird}.onnx"
    with pytest.raises(PackageError):
        api.init(tmp_path, targets=["sm8650"])
    with pytest.raises(UnknownTargetError):
        api.init(tmp_path, targets=["moonbase-9"], force=True)
    with pytest.raises(InputError):
        api.init(tmp_path / "calibration", targets=["sm8650"])

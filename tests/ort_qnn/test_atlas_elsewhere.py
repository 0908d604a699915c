"""The cases of the atlas's rows on other chips and by other releases: what is kept, told and left unsaid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import deploykit
from atlas.cases import case_of, case_unit
from deploykit.answers.asking import ask
from deploykit_qualcomm.atlas import rows
from deploykit_qualcomm.atlas.rows import (
    KernelVerdict,
    MeasuredPlace,
    atlas_rows,
    places,
    verdict_at,
    verdict_in,
    where_it_holds,
)

HERE = ("2.51.0", 57)

ROW = next(row for row in atlas_rows() if (row.op, row.types, row.verdict) == ("AveragePool", ("float",), "wrong"))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MeasuredPlace, ...]]:
    """The row's case is right on one chip, the same on another, refused by an older release."""
    held = (
        MeasuredPlace(sdk=ROW.sdk, soc=69, asked=1, otherwise={ROW.id: "right"}),
        MeasuredPlace(sdk=ROW.sdk, soc=30, asked=1),
        MeasuredPlace(sdk="2.47.0", soc=ROW.soc, asked=1, otherwise={ROW.id: "refused"}),
    )
    monkeypatch.setattr(rows, "places", lambda: held)
    yield held


def test_every_place_is_about_rows_that_there_are() -> None:
    rows = {row.id: row for row in atlas_rows()}
    assert {(place.sdk, place.soc) for place in places()}.isdisjoint({HERE})
    assert {place.soc for place in places() if place.sdk == HERE[0]} == {30, 36, 43, 60, 69, 87}
    for place in places():
        not_run = [*place.otherwise.values()].count("")
        assert place.asked == len(rows) - not_run and place.otherwise.keys() <= rows.keys()
        assert all(verdict != rows[row].verdict for row, verdict in place.otherwise.items())
        assert {*place.otherwise.values()} <= {*map(str, KernelVerdict), ""}


@pytest.mark.usefixtures("known")
def test_what_became_of_a_row_is_told_by_place() -> None:
    assert [verdict_at(ROW, soc) for soc in (ROW.soc, 69, 30, 87)] == [ROW.verdict, "right", ROW.verdict, ""]
    assert [verdict_in(ROW, release) for release in ("2.51", "2.51.3.1", "2.47", "2.5", "2.33.0", "")] == [
        *(ROW.verdict, ROW.verdict, "refused"),
        *("", "", ""),
    ]
    assert where_it_holds(ROW) == "the same for soc_model 30, right for soc_model 69; refused for QAIRT 2.47.0"
    assert where_it_holds(replace(ROW, sdk="2.33.0", soc=1)) == ""


@pytest.mark.usefixtures("known")
def test_on_a_chip_where_its_case_is_right_nothing_is_predicted(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(case_unit(case_of(ROW.example), 0).model, model)
    said = {}
    for target in ("sm8650", "sm8750", "sm8350"):
        plan = deploykit.plan(model, target=target, backend="ort-qnn", sdk="2.51")
        said[target] = [finding for finding in plan.findings if finding.code == "QNN320"]
    assert said["sm8650"] and not said["sm8750"] and said["sm8350"]


def test_answers_tell_of_other_places() -> None:
    assert any("its case is the same for" in row.note for row in ask(("op", "Log", "in", "u16"), sdk="2.51").rows)

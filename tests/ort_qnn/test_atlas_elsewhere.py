"""The cases of the atlas's rows on other chips and by other releases: what is kept, told and left unsaid."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import deploykit
from deploykit.errors import UsageError
from deploykit_ort_qnn.atlas.cases import case_of, case_unit
from deploykit_ort_qnn.atlas.commands import shown_rows
from deploykit_ort_qnn.atlas.deviations import Deviation
from deploykit_ort_qnn.atlas.elsewhere import drawn_cases, run_rows
from deploykit_ort_qnn.atlas.folding import verdict_of_point
from deploykit_ort_qnn.atlas.measuring import Point, measure
from deploykit_ort_qnn.atlas.writing import write_place
from deploykit_qualcomm.atlas import elsewhere
from deploykit_qualcomm.atlas.elsewhere import Place, places, told_elsewhere, verdict_at, verdict_in
from deploykit_qualcomm.atlas.rows import atlas_rows
from deploykit_qualcomm.atlas.verdicts import Verdict

HERE = ("2.51.0", 57)
ROW = next(row for row in atlas_rows() if row.op == "AveragePool" and row.types == ("float",))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Place, ...]]:
    """The row's case is right on one chip, the same on another, refused by an older release."""
    held = (
        Place(sdk=ROW.sdk, soc=69, asked=1, otherwise={ROW.id: "right"}),
        Place(sdk=ROW.sdk, soc=30, asked=1),
        Place(sdk="2.47.0", soc=ROW.soc, asked=1, otherwise={ROW.id: "refused"}),
    )
    monkeypatch.setattr(elsewhere, "places", lambda: held)
    yield held


def test_every_place_is_about_rows_that_there_are() -> None:
    rows = {row.id: row for row in atlas_rows()}
    assert {(place.sdk, place.soc) for place in places()}.isdisjoint({HERE})
    assert {place.soc for place in places() if place.sdk == HERE[0]} == {30, 36, 43, 60, 69, 87}
    for place in places():
        assert place.asked == len(rows) and place.otherwise.keys() <= rows.keys()
        assert all(verdict != rows[row].verdict for row, verdict in place.otherwise.items())
        assert {*place.otherwise.values()} <= {*map(str, Verdict)}


@pytest.mark.usefixtures("known")
def test_what_became_of_a_row_is_told_by_place() -> None:
    assert [verdict_at(ROW, soc) for soc in (ROW.soc, 69, 30, 87)] == [ROW.verdict, "right", ROW.verdict, ""]
    assert [verdict_in(ROW, release) for release in ("2.51", "2.51.3.1", "2.47", "2.5", "2.33.0", "")] == [
        *(ROW.verdict, ROW.verdict, "refused"),
        *("", "", ""),
    ]
    assert told_elsewhere(ROW) == "the same for soc_model 30, right for soc_model 69; refused for QAIRT 2.47.0"
    assert told_elsewhere(replace(ROW, sdk="2.33.0", soc=1)) == ""


@pytest.mark.usefixtures("known")
def test_on_a_chip_where_its_case_is_right_nothing_is_predicted(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(case_unit(case_of(ROW.example), 0).model, model)
    said = {}
    for target in ("sm8650", "sm8750", "sm8350"):
        plan = deploykit.plan(model, target=target, backend="ort-qnn", sdk="2.51")
        said[target] = [finding for finding in plan.findings if finding.code == "QNN320"]
    assert said["sm8650"] and not said["sm8750"] and said["sm8350"]


def test_a_place_is_kept_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.toml"
    first = Place(sdk="2.51.0", soc=30, asked=3, otherwise={'Abs: "x" | w8a8': "right"})
    write_place(first, path)
    write_place(Place(sdk="2.47.0", soc=57, asked=3), path)
    write_place(replace(first, asked=4), path)
    assert places(path) == (replace(first, asked=4), Place(sdk="2.47.0", soc=57, asked=3))


def test_what_was_drawn_is_kept_with_each_case_that_turned(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.toml"
    place = Place(sdk="2.51.0", soc=30, asked=3, drawn=20, turned={"CumSum: last | fp16": "right, here refused"})
    write_place(place, path)
    assert places(path) == (place,)
    assert len(place.turned) < place.drawn


def test_drawn_are_all_that_are_off_and_right_ones_of_their_operators() -> None:
    off = Deviation(most=250.0, usual=250.0, span=255.0, share=1.0, factor=1.0, set=0, odd=0)
    near = replace(off, most=0.0, usual=0.0, share=0.0)
    points = [
        Point(case="Abs: by chance 0 | w8a8", answer="taken", deviation=off),
        Point(case="Abs: by chance 1 | w8a8", answer="taken", deviation=near),
        Point(case="Abs: by chance 2 | w8a8", answer="taken", deviation=near),
        Point(case="Ceil: by chance 1 | w8a8", answer="taken", deviation=near),
        Point(case="Ceil: by chance 2 | w8a8", answer="refused"),
    ]
    drawn = drawn_cases(points)
    assert drawn["Abs: by chance 0 | w8a8"] == "wrong" and drawn["Ceil: by chance 2 | w8a8"] == "refused"
    assert len(drawn) == 3 and [case[:4] for case, verdict in drawn.items() if verdict == "right"] == ["Abs:"]


def test_rows_are_not_run_where_they_are_from() -> None:
    with pytest.raises(UsageError, match="where the rows are from"):
        run_rows(sdk=HERE[0], soc=HERE[1], host=None, progress=print)


def test_answers_tell_of_other_places() -> None:
    assert shown_rows("Log", "2.51") and any(told_elsewhere(row) for row in atlas_rows())


@pytest.mark.heavy
def test_some_of_it_still_holds() -> None:
    """A dozen rows on two chips of the release that is installed."""
    rows = random.Random(3).sample([row for row in atlas_rows() if row.verdict != "refused"], 12)
    for soc in (36, 87):
        points = measure([case_of(row.example) for row in rows], host=None, soc_model=soc)
        now = {point.case: str(verdict_of_point(point)) for point in points}
        assert now == {row.example: verdict_at(row, soc) for row in rows}

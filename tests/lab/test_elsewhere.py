"""The cases of the atlas's rows, run for other chips and by other releases: what is drawn and kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from atlas.cases import case_of
from atlas.elsewhere import drawn_cases, run_rows
from atlas.folding import verdict_of_point
from atlas.measuring import Point, measure
from atlas.writing import write_place
from deploykit.errors import UsageError
from deploykit_ort_qnn.bench.together import Deviation
from deploykit_qualcomm.atlas.rows import MeasuredPlace, atlas_rows, places, verdict_at

HERE = ("2.51.0", 57)


def test_a_place_is_kept_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "places.toml"
    first = MeasuredPlace(sdk="2.51.0", soc=30, asked=3, otherwise={'Abs: "x" | w8a8': "right"})
    write_place(first, path)
    write_place(MeasuredPlace(sdk="2.47.0", soc=57, asked=3), path)
    write_place(replace(first, asked=4), path)
    assert places(path) == (replace(first, asked=4), MeasuredPlace(sdk="2.47.0", soc=57, asked=3))


def test_what_was_drawn_is_kept_with_each_case_that_turned(tmp_path: Path) -> None:
    path = tmp_path / "places.toml"
    place = MeasuredPlace(
        sdk="2.51.0", soc=30, asked=3, drawn=20, turned={"CumSum: last | fp16": "right, here refused"}
    )
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


@pytest.mark.heavy
def test_some_of_it_still_holds() -> None:
    """A dozen rows on two chips of the release that is installed."""
    rows = random.Random(3).sample([row for row in atlas_rows() if row.verdict != "refused"], 12)
    for soc in (36, 87):
        points = measure([case_of(row.example) for row in rows], host=None, soc_model=soc)
        now = {point.case: str(verdict_of_point(point)) for point in points}
        assert now == {row.example: verdict_at(row, soc) for row in rows}


def test_rows_still_hold() -> None:
    """Rows about wrong and narrowed kernels, and some about refused ones, measured again; it fails with the row."""
    rows = list(atlas_rows())
    chosen = [row for row in rows if row.verdict != "refused"]
    refused = [row for row in rows if row.verdict == "refused" and not row.why.startswith("[")]
    chosen += random.Random(7).sample(refused, min(len(refused), 40))
    said = {row.example: row for row in chosen}
    points = list(measure([case_of(name) for name in said], host=None, soc_model=57))
    now = {one.case: str(verdict_of_point(one)) for one in points}
    assert {name: verdict for name, verdict in now.items() if verdict != said[name].verdict} == {}
    assert now.keys() == said.keys()

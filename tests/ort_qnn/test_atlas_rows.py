"""What the rows of the atlas say of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from atlas.cases import case_of, case_unit
from atlas.folding import traits_of_case
from deploykit.answers.asking import ask
from deploykit.findings import Confidence
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn.bench.together import deviation
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

GATE = "Mul: by its own Sigmoid behind Conv, 8 channels, 9 by 9 | w8a16"


KNOWN: dict[str, dict[str, Any]] = {
    GATE: {"gate": "Sigmoid", "gated": "Conv", "grid of the gate": "the same"},
    "Mul: two activations, rank 4 | w8a16": {},
    "Clip: 0 to 1, rank 4 | w8a8 | wide=3 behind": {"steps beyond its bounds": 170.0, "behind": "Conv"},
    "Clip: 0 to 1, rank 4 | w8a8 | behind": {"steps beyond its bounds": pytest.approx(0, abs=0.01), "behind": "Conv"},
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_gate_and_the_bounds_of_a_clip_are_seen_through_pairs(name: str) -> None:
    found = traits_of_case(case_of(name), 0)
    assert {key: found.get(key) for key in KNOWN[name]} == KNOWN[name]
    assert ("gate" in found) is (name == GATE)


NARROW_8 = "Softmax: over 16 values, input span 0.009 | w8a8"


STATED = {row.id: row.example for row in atlas_rows() if row.mechanism and row.op in ("Clip", "Mul", "Softmax")}


STATED |= {name: NARROW_8 for name, example in STATED.items() if "w8a8" in example}  # not with a narrow result as well


@pytest.mark.parametrize("row", STATED)
def test_what_the_preparation_avoids_is_told_as_handled(row: str, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(case_unit(case_of(STATED[row]), 0).model, model)
    asked: dict[str, Any] = {"target": "sm8650", "backend": "ort-qnn", "sdk": "2.51", "compile": False}
    left = ("softmax-step", "gate-apart", "clip-ends")
    for without, is_handled in (((), True), (left, False)):
        plan = deploykit.plan(model, no_rewrite=without, **asked)
        found = [one for one in plan.findings if one.evidence.get("row") == row]
        assert len(found) == 1 and bool(found[0].handled) is is_handled


def test_compat_answers_from_rows_and_says_what_is_inferred() -> None:
    found = ask(("op", "Log", "in", "u16"), sdk="2.51")
    assert any(row.status is Status.BROKEN and "shown by the case" in row.note for row in found.rows)
    assert all(row.confidence is Confidence.INFERRED for row in ask(("op", "Log", "in", "u16"), sdk="2.48").rows)


def test_what_float16_does_not_hold_is_no_fault_of_a_kernel() -> None:
    wanted = {"y": [np.array([1.0, -2.0, 1e30, -1e6], np.float32)]}
    saturated = {"y": [np.array([1.0, -2.0, np.inf, -65504.0], np.float32)]}
    assert deviation(wanted, saturated, {}).most == 0.0
    assert deviation(wanted, {"y": [np.array([1.0, -2.0, 3.0, -65504.0], np.float32)]}, {}).share > 0
    assert deviation(wanted, {"y": [np.array([np.nan, -2.0, np.inf, -65504.0], np.float32)]}, {}).odd == 1
    assert deviation(wanted, saturated, {"y": 1.0}).odd == 1


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

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
from deploykit_ort_qnn.bench.together import deviation
from deploykit_qualcomm.atlas import rows
from deploykit_qualcomm.atlas.rows import (
    MeasuredPlace,
    atlas_rows,
    verdict_at,
    verdict_in,
    where_it_holds,
)

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


def test_what_float16_does_not_hold_is_no_fault_of_a_kernel() -> None:
    wanted = {"y": [np.array([1.0, -2.0, 1e30, -1e6], np.float32)]}
    saturated = {"y": [np.array([1.0, -2.0, np.inf, -65504.0], np.float32)]}
    assert deviation(wanted, saturated, {}).most == 0.0
    assert deviation(wanted, {"y": [np.array([1.0, -2.0, 3.0, -65504.0], np.float32)]}, {}).share > 0
    assert deviation(wanted, {"y": [np.array([np.nan, -2.0, np.inf, -65504.0], np.float32)]}, {}).odd == 1
    assert deviation(wanted, saturated, {"y": 1.0}).odd == 1


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

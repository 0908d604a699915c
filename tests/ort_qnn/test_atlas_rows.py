"""The sweep behind the rows: its cases, how conditions are drawn, what is written; and rows measured again."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit
from deploykit.answers.asking import ask
from deploykit.errors import InputError
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn.atlas.cases import all_cases, case_of, case_unit, every_form, in_turn
from deploykit_ort_qnn.atlas.commands import shown_rows
from deploykit_ort_qnn.atlas.deviations import Deviation, deviation
from deploykit_ort_qnn.atlas.folding import costs_of, counted, measured_cases, rows_of, traits_of_case, verdict_of_point
from deploykit_ort_qnn.atlas.holding_out import held_out
from deploykit_ort_qnn.atlas.learning import Example, learn
from deploykit_ort_qnn.atlas.measuring import Point, measure, points_of
from deploykit_ort_qnn.atlas.pages import write_pages
from deploykit_ort_qnn.atlas.writing import write_rows, write_stated
from deploykit_qualcomm.atlas.rows import Row, atlas_rows

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "atlas"


def test_a_case_is_built_again_from_its_id() -> None:
    cases = list(all_cases())
    assert len({case.form.op for case in cases}) > 130 and len({case.id for case in cases}) == len(cases)
    for case in cases[::301]:
        assert case_of(case.id) == case
    for bad in ("Log", "Log: rank 9 | w8a16", "Log: rank 3 | w9", "Log: rank 3 | w8a16 | sideways"):
        with pytest.raises(InputError):
            case_of(bad)


def test_a_variation_is_what_it_says() -> None:
    plain, around = (case_unit(case_of(f"Relu: rank 4 | w8a16{more}"), 1) for more in ("", " | scale=8 behind before"))
    assert [node.op_type for node in around.model.graph.node].count("Conv") == 2
    assert next(iter(around.spans.values())).high == 8 * next(iter(plain.spans.values())).high
    assert len(plain.samples) == len(around.samples) == 8
    wide = case_unit(case_of("Relu: rank 4 | w8a16 | wide=3"), 1)
    assert [*wide.steps.values()] == [pytest.approx(3 * step) for step in plain.steps.values()]


def test_a_form_by_chance_is_the_same_on_every_call() -> None:
    one, two = (case_unit(case_of("MaxPool: by chance 7 | w8a8"), 1) for _ in range(2))
    assert one.model == two.model
    other = case_unit(case_of("MaxPool: by chance 8 | w8a8"), 1)
    assert other.model != one.model


def test_inputs_stay_within_their_grids_and_spreads_are_not_asked_about_equal_values() -> None:
    made = case_unit(case_of("Concat: three, axis 1, rank 3 | w8a8"), 1)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.model.graph.initializer}
    ends = []
    for node in made.model.graph.node:
        values = [sample[node.input[0]] for sample in made.samples if node.input[0] in sample]
        if values:
            scale, zero = (float(stored[name]) for name in node.input[1:3])
            ends.append((np.min(values) / scale + zero, np.max(values) / scale + zero))
    assert len(ends) == 3 and min(low for low, _ in ends) >= -0.01 and max(high for _, high in ends) <= 255.01
    norm = case_unit(case_of("LayerNormalization: last axis, rank 3 | w8a8"), 1)
    assert len(norm.samples) == 5 and all(len(np.unique(value)) > 1 for one in norm.samples for value in one.values())


def test_what_is_suspect_is_asked_first() -> None:
    cases = [case_of(f"{op}: rank {rank} | w8a16") for op in ("Relu", "Log", "Tanh") for rank in (3, 4, 5)]
    turn = in_turn(cases, {("Log", "w8a16")})
    assert [case.form.op == "Log" for case in turn[:6]] == [True, False] * 3 and len(turn) == len(cases)


def example(positive: bool, **traits: Any) -> Example:
    return Example(case=str(traits), traits=traits, positive=positive)


def test_a_border_lies_near_to_what_was_seen() -> None:
    found = list(learn([example(span < 4, span=float(span), mode="a") for span in (1, 2, 3, 5, 9)]))
    assert [(dict(one.when), len(one.hit)) for one in found] == [({"span": "<= 3.5"}, 3)]


def test_a_condition_may_have_several_parts() -> None:
    pairs = [(mode, float(size)) for mode in "nl" for size in range(2, 9)]
    examples = [example(mode == "n" and size > 4, mode=mode, size=size) for mode, size in pairs]
    (found,) = learn(examples)
    assert set(found.when) == {"mode", "size"} and len(found.hit) == 4


def of_form(form: str, positive: bool, **traits: Any) -> Example:
    return Example(case=f"{form} {traits}", form=form, traits=traits, positive=positive)


def test_cases_of_one_form_count_as_one() -> None:
    alike = [of_form("one", True, size=2.0, n=float(n)) for n in range(3)]
    assert list(learn([*alike, of_form("other", False, size=9.0, n=0.0)])) == []
    two = [of_form(name, True, size=2.0, n=1.0) for name in ("one", "two")]
    (found,) = learn([*two, of_form("other", False, size=9.0, n=1.0)])
    assert dict(found.when) == {"size": 2.0}


def test_nothing_is_said_of_a_few_cases_or_of_what_differs_by_chance() -> None:
    assert list(learn([example(True, x=1.0), example(False, x=9.0)])) == []
    near = [example(True, x=value) for value in (1.90, 1.91, 1.92)] + [example(False, x=1.99)]
    assert list(learn(near)) == []
    alone = [example(True, x=1.0), example(True, x=2.0)]
    assert list(learn(alone)) == [] and [dict(one.when) for one in learn(alone, always=2)] == [{}]


def point(case: str, off: float, answer: str = "taken") -> Point:
    deviated = Deviation(most=off, usual=off, span=65535.0, share=float(off > 700)) if answer == "taken" else None
    return Point(case=case, answer=answer, deviation=deviated)


POINTS = (
    *(point(f"Log: rank {rank} | w8a16", 60000.0) for rank in (3, 4, 5)),
    *(
        point(f"Log: from 0.05 to 8{image} | w8a16{more}", 3.0)
        for image in ("", ", image")
        for more in ("", " | wide=3")
    ),
    *(point(f"Abs: rank {rank} | w8a16", 1.0) for rank in (3, 4, 5)),
    point("Erf: rank 3 | w8a16", 0.0, "refused"),
)


def test_rows_and_pages_are_drawn_from_points(tmp_path: Path) -> None:
    assert [str(verdict_of_point(one)) for one in POINTS[:1]] == ["wrong"]
    assert [(cost.op, cost.forms) for cost in costs_of(POINTS)] == [("Abs", 3)]
    measured = list(measured_cases(POINTS))
    (row,) = rows_of(measured, sdk="2.51.0", soc=57)
    assert (row.op, row.types, row.verdict, row.hit) == ("Log", ("u16",), "wrong", 3) and "out span" in row.when
    write_rows([row], sdk="2.51.0", folder=tmp_path / "rows")
    assert atlas_rows(tmp_path / "rows") == (row,)
    file = tmp_path / "points.jsonl"
    file.write_text("".join(f"{line}\n" for line in ("{}",)), "utf-8")
    with pytest.raises(InputError, match="line 1"):
        points_of(file)
    write_pages(measured, file, tmp_path / "pages", sdk="2.51.0")
    assert "`W`" in (tmp_path / "pages" / "Log.md").read_text("utf-8")
    halves = held_out(measured, by_form=False)
    assert halves.wrong == 3 and halves.right == 7 and halves.alarms == 0


def test_a_stated_row_says_of_how_many_cases_it_is_true(tmp_path: Path) -> None:
    measured = list(measured_cases(POINTS))
    stated = Row(
        op="Log",
        types=("u16",),
        verdict="wrong",
        sdk="2.51.0",
        soc=57,
        hit=2,
        example=POINTS[0].case,
        mechanism="it answers its least value",
    )
    once = counted(stated, measured)
    assert (once.hit, once.spared, once.cases, once.most, once.share) == (3, 4, "3 of 7", 60000.0, 1.0)
    assert counted(replace(stated, when={"out span": "<= 3.9"}), measured).cases == "3"
    assert counted(replace(stated, example="Log: rank 6 | w8a16"), measured).hit == 2
    (tmp_path / "stated").mkdir()
    write_stated([once], tmp_path / "stated")
    write_rows([], sdk="2.51.0", folder=tmp_path / "rows")
    assert atlas_rows(tmp_path / "rows") == (once,), "rows that are drawn take no stated one away"


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
STATED = {row.id: row.example for row in atlas_rows() if row.mechanism}
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


def test_every_row_stands_on_the_page_of_its_operator() -> None:
    for row in atlas_rows():
        shown = row.id.replace("|", "\\|")
        assert f"`{shown}`" in (PAGES / f"{row.op}.md").read_text("utf-8"), row.id
        assert row.example.split(" | ")[0] in every_form()
    index = (PAGES / "README.md").read_text("utf-8")
    count = re.search(r"(\d+) cases of (\d+) operators", index)
    assert count is not None and int(count[2]) >= 90 and len(list(PAGES.glob("*.md"))) == int(count[2]) + 1


def test_compat_answers_from_rows_and_says_what_is_inferred() -> None:
    log = shown_rows("log", "2.51")
    assert log and {row["confidence"] for row in log} == {"observed"}
    assert {row["confidence"] for row in shown_rows("Log", "2.33")} == {"inferred"}
    found = ask(("op", "Log", "in", "u16"), sdk="2.51")
    assert any(row.status is Status.BROKEN and "deploykit atlas probe" in row.note for row in found.rows)


def test_what_float16_does_not_hold_is_no_fault_of_a_kernel() -> None:
    wanted = {"y": [np.array([1.0, -2.0, 1e30, -1e6], np.float32)]}
    saturated = {"y": [np.array([1.0, -2.0, np.inf, -65504.0], np.float32)]}
    assert deviation(wanted, saturated, {}).most == 0.0
    assert deviation(wanted, {"y": [np.array([1.0, -2.0, 3.0, -65504.0], np.float32)]}, {}).share > 0
    assert deviation(wanted, {"y": [np.array([np.nan, -2.0, np.inf, -65504.0], np.float32)]}, {}).odd == 1
    assert deviation(wanted, saturated, {"y": 1.0}).odd == 1


@pytest.mark.heavy
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

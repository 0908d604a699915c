"""The sweep behind the rows: its cases, how conditions are drawn, what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from atlas.cases import all_cases, case_of, case_unit, every_form, in_turn
from atlas.folding import costs_of, counted, measured_cases, rows_of, verdict_of_point
from atlas.holding_out import held_out
from atlas.learning import Example, learn
from atlas.measuring import Point, points_of
from atlas.pages import write_pages
from atlas.writing import write_rows, write_stated
from deploykit.errors import InputError
from deploykit_ort_qnn.bench.together import Deviation
from deploykit_qualcomm.atlas.rows import Row, atlas_rows


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
    write_rows([row], sdk="2.51.0", folder=tmp_path)
    assert atlas_rows(tmp_path) == (row,)
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
    write_stated([once], tmp_path)
    write_rows([], sdk="2.51.0", folder=tmp_path)
    assert atlas_rows(tmp_path) == (once,), "rows that are drawn take no stated one away"


def test_every_row_is_about_a_form() -> None:
    assert {row.example.split(" | ")[0] for row in atlas_rows()} <= every_form().keys()

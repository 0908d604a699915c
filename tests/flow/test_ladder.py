"""The ladder: what is measured, concluded, done next and chosen, with measurers told what to say, and for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.accuracy.search.raising import Raised, RaiseTrial, WideType
from deploykit.accuracy.simulate.precisions import ModelCost
from deploykit.backend.backend import Progress
from deploykit.backend.plugins import load_backends
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError, UsageError
from deploykit.flow.ladder import Ladder, LadderRung, RaisedStep, walk
from deploykit.tables.devices import Device

AIMET = Path(__file__).parents[1] / "data" / "aimet"
BITS = {"fp16": 256, "w16a16": 256, "w8a16": 128, "w4a16": 64, "w8a8": 64}
MIXED = ModelCost(weight_bytes=1, activation_bytes=1, bit_operations=90)


def _walked(
    numbers: dict[str, float],
    *,
    repaired: float = 33.0,
    wides: tuple[WideType, ...] = ("float16", "int16"),
    confirm: Reached | None = None,
) -> Ladder:
    """A walk over candidates of these decibels; raising layers gives ``repaired``."""
    goal = parse_goal("sqnr>=30")

    def measure(name: str) -> LadderRung:
        cost = ModelCost(weight_bytes=BITS[name], activation_bytes=0, bit_operations=BITS[name])
        empty = EncodingSet(version="1.0.0", entries={})
        return LadderRung(
            precision=name,
            reached=Reached(sqnr_db=numbers[name]),
            cost=cost,
            runs_here=name != "w16a16",
            encodings=empty,
        )

    def mix(base: LadderRung, wide: WideType) -> Raised:
        trial = RaiseTrial(
            wide=wide,
            count=1,
            layers=(f"layer of {base.precision}",),
            tensors=("t",),
            reached=Reached(sqnr_db=repaired),
            met=repaired >= 30,
            cost=MIXED,
            borders=2,
        )
        return Raised(goal="", best=trial, encodings=EncodingSet(version="1.0.0", entries={}), trials=(trial,))

    def confirmed(rung: LadderRung) -> LadderRung:
        return rung if confirm is None else replace(rung, reached=confirm)

    return walk(list(numbers), goal, measure=measure, mix=mix, wides=wides, confirm=confirmed)


def _raised(ladder: Ladder) -> list[RaisedStep]:
    return [step for step in ladder.steps if isinstance(step, RaisedStep)]


def _says(ladder: Ladder) -> str:
    return "" if ladder.advice is None else " | ".join(item.says for item in ladder.advice.conclusions)


def test_where_eight_bits_are_enough_nothing_more_is_done() -> None:
    found = _walked({"fp16": 60, "w8a16": 40, "w8a8": 35})
    assert "8 bits are enough" in _says(found)
    assert found.steps == ()
    assert found.chosen is not None
    assert found.chosen.precision == "w8a8"


def test_sensitive_activations_are_raised_to_sixteen_bits() -> None:
    found = _walked({"fp16": 60, "w8a16": 40, "w8a8": 12})
    assert "activations are sensitive" in _says(found)
    assert [(step.raised.best.wide, step.rung.borders) for step in _raised(found)] == [("int16", 2)]
    assert found.chosen is not None
    assert found.chosen.precision == "w8a8 with 1 layer in int16"


def test_ranges_that_no_grid_holds_go_to_float16() -> None:
    found = _walked({"fp16": 60, "w16a16": 10, "w8a16": 10, "w8a8": 5})
    assert "only fp16" in _says(found)
    assert [step.raised.best.layers for step in _raised(found)] == [("layer of w8a16",)]
    assert found.chosen is not None
    assert found.chosen.precision == "w8a16 with 1 layer in float16"


def test_a_step_that_fails_is_told_and_not_chosen() -> None:
    found = _walked({"fp16": 60, "w16a16": 10, "w8a16": 10, "w8a8": 5}, repaired=20)
    assert len(found.steps) == 1
    assert found.chosen is not None
    assert found.chosen.precision == "fp16"


def test_a_target_without_float16_is_not_given_any() -> None:
    found = _walked({"fp16": 60, "w16a16": 10, "w8a16": 10, "w8a8": 5}, wides=("int16",))
    assert found.steps == ()


def test_what_does_not_run_is_never_chosen() -> None:
    found = _walked({"w16a16": 60, "w8a16": 10, "w8a8": 5})
    assert "weights are sensitive" in _says(found)
    assert found.chosen is None
    assert "no candidate that runs on the target" in found.why


def _data(folder: Path) -> str:
    rng = np.random.default_rng(5)
    np.savez(folder / "data.npz", hidden_states=rng.normal(size=(6, 1, 8, 64)).astype(np.float32))
    return str(folder / "data.npz")


def test_a_real_model_is_walked_and_its_story_is_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "page.html", _data(tmp_path)
    call = [
        "accuracy",
        "ladder",
        str(AIMET / "mlp" / "model.onnx"),
        "--data",
        data,
        "--target",
        "sm8650",
        "--goal",
        "sqnr>=45",
    ]
    assert run(cli, [*call, "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert "ranges of 3 and numbers of the other 3" in said
    assert "chosen: " in said
    text = page.read_text("utf-8")
    assert text.count("<circle") >= 5
    assert 'class="chosen"' in text
    assert run(cli, ["--json", *call]) == 0
    value = json.loads(capsys.readouterr().out)
    names = [row["precision"] for row in value["candidates"]]
    assert names == ["fp16", "w16a16", "w8a16", "w4a16", "w8a8"]
    by_name = {row["precision"]: row for row in value["candidates"]}
    assert by_name["w4a16"]["sqnr_db"] < by_name["w8a16"]["sqnr_db"] < by_name["w16a16"]["sqnr_db"]
    assert by_name["w8a8"]["cost"]["bit_operations"] * 2 == by_name["w8a16"]["cost"]["bit_operations"]
    assert value["samples"]["held_out"] is True


@pytest.mark.heavy
def test_the_users_measure_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measure that only float16 and wider pass: the reference is the float model's own value."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def closeness(outputs, references):\n"
        "    name = next(iter(outputs[0]))\n"
        "    off = max(float(np.abs(a[name] - b[name]).max()) for a, b in zip(outputs, references))\n"
        "    return 1.0 - 100 * off\n"
    )
    model = AIMET / "mlp" / "model.onnx"
    found = deploykit.ladder(model, data=_data(tmp_path), goal="drop<=50%", metric="mine:closeness", samples=4)
    fp16, w4a16 = (next(r for r in found.ladder.rungs if r.precision == name) for name in ("fp16", "w4a16"))
    assert fp16.reached.reference == 1.0
    assert found.ladder.meets(fp16) is True
    assert found.ladder.meets(w4a16) is False


def test_what_leaves_work_to_the_host_wins_last_and_tells_nothing_about_bits() -> None:
    """Its end runs in float on the host, so that it is better than wider integers: no contradiction, another model."""
    goal = parse_goal("sqnr>=30")
    costs = {"fp16": 256, "w16a16": 256, "w8a16": 128, "w8a8": 64}
    numbers = {"fp16": 60.0, "w16a16": 10.0, "w8a16": 10.0, "w8a8": 50.0}

    def measure(name: str) -> LadderRung:
        return LadderRung(
            precision=name,
            reached=Reached(sqnr_db=numbers[name]),
            cost=ModelCost(weight_bytes=0, activation_bytes=0, bit_operations=costs[name]),
            on_npu=0.5 if name == "w8a8" else 1.0,
        )

    found = walk(list(costs), goal, measure=measure)
    assert found.chosen is not None
    assert found.chosen.precision == "fp16"
    assert "without work for the host" in found.why
    assert "only fp16" in _says(found)
    alone = walk(["w8a8"], goal, measure=measure)
    assert alone.chosen is not None
    assert alone.chosen.precision == "w8a8"


def test_what_packaging_refuses_is_never_chosen() -> None:
    refused = LadderRung(precision="w8a8", reached=Reached(sqnr_db=50), refused="QNN001 no")
    found = walk(["w8a8"], parse_goal("sqnr>=30"), measure=lambda name: refused)
    assert found.chosen is None


def test_what_came_out_of_a_step_is_measured_again() -> None:
    """The layers reach the goal, and as it would be packaged they do not: then it is not taken."""
    again = _walked({"fp16": 60, "w16a16": 10, "w8a16": 10, "w8a8": 5}, confirm=Reached(sqnr_db=20))
    assert [step.raised.met for step in again.steps if isinstance(step, RaisedStep)] == [True]
    assert again.chosen is not None
    assert again.chosen.precision == "fp16"


def test_the_fastest_is_named_of_those_that_run_and_reach_the_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that finds one of the quantized models slow and refuses none, as w8a16 often is on small networks."""
    asked: list[int] = []

    def preflight(model: bytes, device: Device, progress: Progress) -> Mapping[str, Any]:
        asked.append(len(model))
        return {"available": True, "time_us": 50.0 if len(asked) == 1 else 90.0}

    compiler = next(backend for backend in load_backends() if backend.offers("preflight"))
    monkeypatch.setattr(compiler, "preflight", preflight)
    found = deploykit.ladder(
        AIMET / "mlp/model.onnx", data=_data(tmp_path), goal="sqnr>=20", target="sm8650", estimate=True
    )
    times = {rung.precision: rung.time_us for rung in found.ladder.rungs}
    assert times["w16a16"] is None, "the target does not run it"
    assert (times["fp16"], times["w8a16"]) == (50.0, 90.0)
    assert found.ladder.fastest is not None and found.ladder.fastest.precision == "fp16"
    with pytest.raises(UsageError, match="--estimate without --target"):
        deploykit.ladder(AIMET / "mlp/model.onnx", data=_data(tmp_path), estimate=True)


def test_a_quantized_model_has_no_ladder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give the float model"):
        deploykit.ladder(AIMET / "mlp" / "w4a8.qdq.onnx", data=_data(tmp_path))

"""Weights that are the cause: which methods are tried, in what order, for how long, what is told, what is chosen."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.accuracy.search.raising import Raised, RaiseTrial, WideType
from deploykit.accuracy.simulate.precisions import ModelCost
from deploykit.backend.backend import Request
from deploykit.backend.quantizers import WeightMethod
from deploykit.encodings.values import EncodingSet
from deploykit.flow.ladder import Ladder, LadderRung, LearnedStep, Learning, walk
from deploykit.flow.quantizing import choosing
from deploykit.flow.quantizing.choosing import learning_with, pick
from deploykit.flow.read import resolve_target
from deploykit_qualcomm.aimet import AIMET

MLP = Path(__file__).parents[1] / "data" / "aimet" / "mlp" / "model.onnx"
WEIGHTS = {"fp16": 60.0, "w16a16": 50.0, "w8a16": 25.0, "w8a8": 10.0}
"""What tells that weights are the cause, at a goal of 30 dB."""

BOTH = Learning(methods=("SeqMSE", "AdaRound"))
NOTHING = EncodingSet(version="1.0.0", entries={})


def walked(
    numbers: dict[str, float], learning: Learning | None, *, missing: tuple[str, ...] = (), raised_db: float = 0.0
) -> tuple[Ladder, list[str]]:
    """A walk over candidates of these decibels, and which were measured or raised, in order."""
    asked: list[str] = []

    def measure(name: str) -> LadderRung:
        asked.append(name)
        if name in missing:
            return LadderRung(precision=name, missing="it failed")
        cost = ModelCost(
            weight_bytes=1, activation_bytes=1, bit_operations=256 if "16a" in name or name == "fp16" else 128
        )
        return LadderRung(
            precision=name,
            reached=Reached(sqnr_db=numbers[name]),
            cost=cost,
            runs_here=name != "w16a16",
            encodings=NOTHING,
        )

    def mix(base: LadderRung, wide: WideType) -> Raised:
        asked.append(f"raise {base.precision}")
        trial = RaiseTrial(
            wide=wide,
            count=1,
            layers=("l",),
            tensors=("t",),
            reached=Reached(sqnr_db=raised_db),
            met=raised_db >= 30,
            cost=ModelCost(weight_bytes=1, activation_bytes=1, bit_operations=130),
            borders=0,
        )
        return Raised(goal="", best=trial, encodings=NOTHING, trials=(trial,))

    names = [name for name in numbers if "+" not in name]
    found = walk(names, parse_goal("sqnr>=30"), measure=measure, mix=mix, wides=("float16", "int16"), learning=learning)
    return found, asked[len(names) :]


def test_the_first_method_that_reaches_the_goal_is_the_last_one_tried() -> None:
    found, further = walked({**WEIGHTS, "w8a16+SeqMSE": 31.0, "w8a16+AdaRound": 40.0}, BOTH)
    assert further == ["w8a16+SeqMSE"]
    assert found.chosen is not None
    assert found.chosen.precision == "w8a16+SeqMSE"
    told = found.to_json()["steps"][0]
    assert told["raised"] is None
    assert told["learned"]["from"]["sqnr_db"] == 25.0
    assert [(one["method"], one["candidate"]["sqnr_db"]) for one in told["learned"]["tried"]] == [("SeqMSE", 31.0)]
    assert told["learned"]["meets_goal"] is True


def test_layers_are_raised_of_the_best_that_came_out() -> None:
    """No method reaches the goal: training is advised, with what to bring back, and the better base goes on."""
    found, further = walked({**WEIGHTS, "w8a16+SeqMSE": 27.0, "w8a16+AdaRound": 28.0}, BOTH, raised_db=35.0)
    assert further == ["w8a16+SeqMSE", "w8a16+AdaRound", "raise w8a16+AdaRound"]
    assert found.chosen is not None
    assert found.chosen.precision == "w8a16+AdaRound with 1 layer in float16"
    assert found.advice is not None
    last = found.advice.conclusions[-1]
    assert "QAT" in last.next
    assert last.because == ("SeqMSE: 27.0 dB", "AdaRound: 28.0 dB")
    assert "TRAINED.encodings" in last.command


def test_methods_that_make_it_worse_are_told_and_not_gone_on_from() -> None:
    found, further = walked({**WEIGHTS, "w8a16+SeqMSE": 20.0, "w8a16+AdaRound": 15.0}, BOTH, raised_db=35.0)
    assert further[-1] == "raise w8a16"
    assert isinstance(found.steps[0], LearnedStep)
    assert not found.steps[0].is_better


def test_a_method_that_fails_is_told() -> None:
    numbers = {**WEIGHTS, "w8a16+AdaRound": 33.0}
    found, further = walked(numbers, BOTH, missing=("w8a16+SeqMSE",))
    assert further == ["w8a16+SeqMSE", "w8a16+AdaRound"]
    tried = found.to_json()["steps"][0]["learned"]["tried"]
    assert tried[0]["candidate"]["missing"] == "it failed"
    assert found.chosen is not None
    assert found.chosen.precision == "w8a16+AdaRound"
    none, _ = walked(WEIGHTS, BOTH, missing=("w8a16+SeqMSE", "w8a16+AdaRound"))
    assert none.steps[0].to_json()["raised"] is not None, "only the layers that were raised"
    assert none.advice is not None
    assert "SeqMSE: it failed" in none.advice.conclusions[-1].because


def test_no_method_is_begun_once_the_time_is_up() -> None:
    numbers = {**WEIGHTS, "w8a16+SeqMSE": 20.0}
    found, further = walked(numbers, Learning(methods=BOTH.methods, seconds=0.0))
    assert further[0] == "w8a16+SeqMSE"
    assert "w8a16+AdaRound" not in further
    assert found.to_json()["steps"][0]["learned"]["left"] == ["AdaRound"]


@pytest.mark.parametrize(
    ("numbers", "base"),
    [
        (WEIGHTS, "w8a16"),
        ({"fp16": 60.0, "w8a16": 40.0, "w4a16": 12.0, "w8a8": 10.0}, "w4a16"),
        ({"fp16": 60.0, "w8a16": 40.0, "w4a16": 12.0, "w8a8": 35.0}, None),
        ({"fp16": 60.0, "w16a16": 20.0, "w8a16": 18.0, "w8a8": 10.0}, None),
        ({"fp16": 60.0, "w16a16": 50.0, "w8a16": 40.0, "w8a8": 10.0}, None),
    ],
    ids=["eight bits", "four bits", "eight bits are as cheap", "ranges", "activations"],
)
def test_it_is_tried_where_weights_are_the_cause_and_nowhere_else(numbers: dict[str, float], base: str | None) -> None:
    _, further = walked({**numbers, "w8a16+SeqMSE": 31.0, "w4a16+SeqMSE": 31.0}, BOTH)
    assert [name for name in further if "+" in name] == ([f"{base}+SeqMSE"] if base else [])


def test_four_bits_are_worth_one_method_where_eight_are_good() -> None:
    numbers = {"fp16": 60.0, "w8a16": 40.0, "w4a16": 12.0, "w8a8": 10.0, "w4a16+SeqMSE": 20.0, "w4a16+AdaRound": 31.0}
    found, further = walked(numbers, BOTH, raised_db=33.0)
    assert [name for name in further if "+" in name] == ["w4a16+SeqMSE"]
    assert found.advice is not None
    assert "QAT" not in " ".join(item.next for item in found.advice.conclusions)


def test_where_it_is_not_installed_the_command_is_told() -> None:
    found, further = walked(WEIGHTS, Learning(missing="x is not installed", install="deploykit toolchain install x"))
    assert not [name for name in further if "+" in name]
    assert found.advice is not None
    last = found.advice.conclusions[-1]
    assert (last.because, last.command) == (("x is not installed",), "deploykit toolchain install x")


def test_what_the_user_chose_himself_is_not_chosen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))
    backend, target = resolve_target(Request(model=MLP, target="sm8650"))
    default = pick(backend, target, None, "w8a16")
    assert learning_with(default).install == "deploykit toolchain install aimet"
    assert learning_with(pick(backend, target, "ort", "w8a16")) == Learning()
    object.__setattr__(default, "quantizer", AIMET)
    assert learning_with(default).methods == ("SeqMSE", "AdaRound")
    assert learning_with(default, ["scheme"]).methods == ("SeqMSE", "AdaRound")
    assert learning_with(default, ["seq-mse"]) == Learning()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "rows.npz", hidden_states=rng.normal(size=(10, 1, 8, 64)).astype(np.float32))
    return tmp_path / "rows.npz"


@pytest.mark.heavy
def test_a_quantizer_with_a_method_is_asked_for_it_and_the_report_tells_it(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded quantizer, given two methods that are none: other ways to find ranges, one of which it lacks."""
    methods = (
        WeightMethod(name="Unknown", options={"method": "guess"}),
        WeightMethod(name="Percentile", options={"method": "percentile"}),
    )
    kind: Any = type(choosing.EMBEDDED)
    monkeypatch.setattr(kind, "weight_methods", lambda self, precision: methods, raising=False)
    monkeypatch.setattr(choosing, "SECONDS", 500.0)
    made = deploykit.package(
        MLP,
        target="sm8650",
        sdk="2.37",
        calibration=rows,
        out=tmp_path / "out",
        quantizer="ort",
        precision="auto",
        goal="sqnr>=55",
    )
    assert made.package is not None
    record = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))["quantization"]["ladder"]
    step = next(step for step in record["steps"] if step["raised"] is None)["learned"]
    assert step["from"]["precision"] == "w8a16"
    first, second = step["tried"]
    assert "guess" in first["candidate"]["missing"]
    assert second["candidate"]["sqnr_db"] is not None
    story = unescape((tmp_path / "out" / "report.html").read_text("utf-8")).split("The next step, taken")[1]
    assert "weights are sensitive" in story
    assert f'<td>Percentile<td class="tight">{second["candidate"]["sqnr_db"]:.1f} dB' in story

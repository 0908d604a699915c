"""The ladder: what is measured, concluded, done next and chosen, with measurers told what to say, and for real."""

import json
import math
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.accuracy.search.raising import Raised, RaiseTrial, WideType
from deploykit.accuracy.simulate.precisions import ModelCost
from deploykit.backend.backend import Request
from deploykit.backend.plugins import load_backends
from deploykit.backend.quantizers import WeightMethod
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError, UsageError
from deploykit.flow.ladder import Ladder, LadderRung, LearnedStep, Learning, walk
from deploykit.flow.quantizing import choosing
from deploykit.flow.quantizing.choosing import learning_with, pick
from deploykit.flow.read import resolve_target
from deploykit.tables.devices import Device
from deploykit_qualcomm.aimet import AIMET
from written import assert_as_written

MLP = Path(__file__).parents[1] / "data" / "aimet" / "mlp" / "model.onnx"
BITS = {"fp16": 256, "w16a16": 256, "w8a16": 128, "w4a16": 64, "w8a8": 64}
NOTHING = EncodingSet(version="1.0.0", entries={})
BOTH = Learning(methods=("SeqMSE", "AdaRound"))
WEIGHTS = {"fp16": 60.0, "w16a16": 50.0, "w8a16": 25.0, "w8a8": 10.0}
"""What tells that weights are the cause, at a goal of 30 dB."""
RANGES = {"fp16": 60.0, "w16a16": 10.0, "w8a16": 10.0, "w8a8": 5.0}
"""What tells that no grid holds the ranges."""


def walked(
    numbers: Mapping[str, float],
    *,
    raised_db: float = 33.0,
    wides: tuple[WideType, ...] = ("float16", "int16"),
    confirm: Reached | None = None,
    learning: Learning | None = None,
    missing: tuple[str, ...] = (),
    bare: tuple[str, ...] = (),
) -> tuple[Ladder, list[str]]:
    """A walk over candidates of these decibels, and which were measured or raised besides, in order."""
    asked: list[str] = []

    def measure(name: str) -> LadderRung:
        asked.append(name)
        if name in missing:
            return LadderRung(precision=name, missing="it failed")
        bits = BITS[name.partition("+")[0]]
        return LadderRung(
            precision=name,
            reached=Reached(sqnr_db=numbers[name]),
            cost=ModelCost(weight_bytes=bits, activation_bytes=0, bit_operations=bits),
            runs_here=name != "w16a16",
            encodings=None if name in bare else NOTHING,
        )

    def mix(base: LadderRung, wide: WideType) -> Raised:
        asked.append(f"raise {base.precision}")
        cost = ModelCost(weight_bytes=1, activation_bytes=1, bit_operations=130 if learning else 90)
        known: Any = {"wide": wide, "count": 1, "layers": ("l",), "tensors": ("t",), "cost": cost, "borders": 2}
        trial = RaiseTrial(reached=Reached(sqnr_db=raised_db), met=raised_db >= 30, **known)
        return Raised(goal="", best=trial, encodings=NOTHING, trials=(trial,))

    def confirmed(rung: LadderRung) -> LadderRung:
        return rung if confirm is None else replace(rung, reached=confirm)

    names = [name for name in numbers if "+" not in name]
    goal = parse_goal("sqnr>=30")
    found = walk(names, goal, measure=measure, mix=mix, wides=wides, confirm=confirmed, learning=learning)
    return found, asked[len(names) :]


def test_what_leaves_work_to_the_host_wins_last_and_what_packaging_refuses_never() -> None:
    """Its end runs in float on the host, so that it is better than wider integers: no contradiction, another model."""
    goal, numbers = parse_goal("sqnr>=30"), {**RANGES, "w8a8": 50.0}

    def measure(name: str, **more: Any) -> LadderRung:
        cost = ModelCost(weight_bytes=0, activation_bytes=0, bit_operations=BITS[name])
        on_npu = 0.5 if name == "w8a8" else 1.0
        return LadderRung(precision=name, reached=Reached(sqnr_db=numbers[name]), cost=cost, on_npu=on_npu, **more)

    found = walk(list(numbers), goal, measure=measure)
    assert found.chosen is not None and found.chosen.precision == "fp16"
    assert found.why.endswith("reach sqnr >= 30 dB without work for the host") and "only fp16" in found.advised
    alone = walk(["w8a8"], goal, measure=measure)
    assert alone.chosen is not None and alone.chosen.precision == "w8a8"
    assert walk(["w8a8"], goal, measure=lambda name: measure(name, refused="QNN001 no")).chosen is None


def test_who_may_learn_and_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user chose himself is not chosen again."""
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))
    backend, target = resolve_target(Request(model=MLP, target="sm8650"))
    default = pick(backend, target, None, "w8a16")
    assert learning_with(default).install == "deploykit toolchain install aimet"
    assert learning_with(pick(backend, target, "ort", "w8a16")) == Learning()
    able = replace(default, quantizer=AIMET)
    assert learning_with(able, ["scheme"]).methods == learning_with(able).methods == ("SeqMSE", "AdaRound")
    assert learning_with(able, ["seq-mse"]) == Learning()


def story(found: Ladder) -> Iterator[str]:
    """All that there is to read of a ladder."""
    told = found.to_json()
    for rung in told["candidates"]:
        yield f"{rung['precision']}: {rung['meets_goal']} {rung['open']} {rung['missing']}".rstrip()
    for item in told["conclusions"]:
        yield f"{item['says']} ({'; '.join(item['because'])}); {item['next']} [{item['command']}]"
    for step, seen in zip(found.steps, told["steps"], strict=True):
        yield f"{step.why}: {step.told}: {seen['candidate']['precision']}, {seen['candidate']['meets_goal']}"
        if isinstance(step, LearnedStep):
            tried = [f"{one['method']} {one['candidate']['sqnr_db']}" for one in seen["learned"]["tried"]]
            yield f"of {seen['learned']['from']['precision']}: {tried}, better {step.is_better}, left {step.left}"
    yield f"= {told['chosen']}: {told['why']} [{found.advised}]"


def test_the_story_of_each_ladder() -> None:
    """What is concluded, tried and raised, in what order, and chosen."""
    four = {"fp16": 60.0, "w8a16": 40.0, "w4a16": 12.0, "w8a8": 10.0, "w4a16+SeqMSE": 20.0}
    poor, none = ({f"w8a16+{method}": db for method in BOTH.methods} for db in (27.0, 0.0))
    both: dict[str, Any] = {"learning": BOTH}
    walks: list[tuple[dict[str, float], dict[str, Any]]] = [
        ({"fp16": 60, "w8a16": 40, "w8a8": 35}, {}),
        ({"fp16": 60, "w8a16": 40, "w8a8": 12}, {}),
        (RANGES, {}),
        (RANGES, {"raised_db": 20}),
        (RANGES, {"bare": ("w8a16",)}),  # without encodings there is nothing to raise
        (RANGES, {"wides": ("int16",)}),
        # The layers reach the goal, and as it would be packaged they do not: then it is not taken.
        (RANGES, {"confirm": Reached(sqnr_db=20)}),
        ({"w16a16": 60, "w8a16": 10, "w8a8": 5}, {}),
        ({"w8a8": 5.0, "fp16": 60.0}, {"raised_db": 20.0}),
        ({"w8a8": 5.0}, {"missing": ("w8a8",)}),
        ({"w8a8": math.nan}, {}),
        # Weights are the cause: the first method that reaches the goal is the last one tried.
        ({**WEIGHTS, "w8a16+SeqMSE": 31.0, "w8a16+AdaRound": 40.0}, both),
        # Layers are raised of the best that came out; what makes it worse is not gone on from.
        ({**WEIGHTS, "w8a16+SeqMSE": 27.0, "w8a16+AdaRound": 28.0}, both | {"raised_db": 35.0}),
        ({**WEIGHTS, "w8a16+SeqMSE": 20.0, "w8a16+AdaRound": 15.0}, both | {"raised_db": 35.0}),
        ({**WEIGHTS, **{f"w8a16+{method}": WEIGHTS["w8a16"] for method in BOTH.methods}}, both),
        ({**WEIGHTS, "w8a16+AdaRound": 33.0}, both | {"missing": ("w8a16+SeqMSE",)}),
        ({**WEIGHTS, **none}, both | {"missing": (*none,)}),
        # None is begun once the time is up.
        ({**WEIGHTS, **poor}, {"learning": replace(BOTH, seconds=0.0)}),
        (WEIGHTS, {"learning": Learning()}),
        (WEIGHTS, {"learning": Learning(missing="x is not installed", install="install x")}),
        # Four bits are worth one method where eight are good, and no training; eight bits are as cheap.
        (four, both),
        ({**four, "w8a8": 35.0}, both),
        # Ranges are the cause, or activations.
        ({"fp16": 60.0, "w16a16": 20.0, "w8a16": 18.0, "w8a8": 10.0}, both),
        ({"fp16": 60.0, "w16a16": 50.0, "w8a16": 40.0, "w8a8": 10.0}, both),
    ]
    lines: list[str] = []
    for numbers, options in walks:
        found, asked = walked(numbers, **options)
        lines += [f"# {numbers}", f"asked besides: {', '.join(asked) or 'nothing'}", *story(found)]
    assert_as_written(Path(__file__).with_name("ladders.txt"), lines)


def test_estimated_times_are_of_what_the_target_runs_and_the_fastest_reaches_the_goal() -> None:
    found, _ = walked({**RANGES, "w8a8": 12.0})
    step = "w8a16 with 1 layer in float16"
    times = {"fp16": 9.0, "w16a16": 1.0, "w8a16": 2.0, "w8a8": 3.0, step: 8.0}

    def told(rung: LadderRung) -> LadderRung:
        return replace(rung, time_us=times[rung.precision] if rung.may_win else None)

    steps = tuple(replace(step, candidate=told(step.candidate)) for step in found.steps)
    rungs, chosen = tuple(map(told, found.rungs)), None if found.chosen is None else told(found.chosen)
    timed = replace(found, rungs=rungs, steps=steps, chosen=chosen)
    assert timed.chosen is not None and timed.fastest is not None and found.fastest is None
    assert (timed.chosen.precision, timed.fastest.precision) == (step, step)
    assert [rung.price()[0] for rung in (timed.chosen, replace(timed.chosen, on_npu=0.9))] == [False, True]
    assert LadderRung(precision="x").price() == (False, math.inf, math.inf)


# --- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path) -> str:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "rows.npz", hidden_states=rng.normal(size=(10, 1, 8, 64)).astype(np.float32))
    return str(tmp_path / "rows.npz")


def test_a_real_model_is_walked_to_one_page(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    call = ["accuracy", "ladder", str(MLP), "--data", rows, "--target", "sm8650", "--goal", "sqnr>=45"]
    assert run(cli, ["--json", *call, "--report", str(page)]) == 0
    text, value = page.read_text("utf-8"), json.loads(capsys.readouterr().out)
    assert text.count("<circle") >= 5 and 'class="chosen"' in text
    by_name = {row["precision"]: row for row in value["candidates"]}
    assert list(by_name) == ["fp16", "w16a16", "w8a16", "w4a16", "w8a8"]
    assert by_name["w4a16"]["sqnr_db"] < by_name["w8a16"]["sqnr_db"] < by_name["w16a16"]["sqnr_db"]
    assert by_name["w8a8"]["cost"]["bit_operations"] * 2 == by_name["w8a16"]["cost"]["bit_operations"]
    assert (value["samples"]["held_out"], value["samples"]["seen"], value["samples"]["measured"]) == (True, 5, 5)
    run(cli, [*call, "--samples", "1"])
    assert "1 of 10 given samples, ranges and numbers of the same" in capsys.readouterr().out
    with pytest.raises(InputError, match="give the float model"):
        deploykit.ladder(MLP.with_name("w4a8.qdq.onnx"), data=rows)


def test_the_fastest_is_named_of_those_that_run_and_reach_the_goal(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that finds one of the quantized models slow and refuses none, as w8a16 often is on small networks."""
    asked: list[int] = []

    def time_us(model: bytes, device: Device, progress: Any) -> float:
        asked.append(len(model))
        return 50.0 if len(asked) == 1 else 90.0

    compiler = next(backend for backend in load_backends() if backend.offers("time_us"))
    monkeypatch.setattr(compiler, "time_us", time_us)
    found = deploykit.ladder(MLP, data=rows, goal="sqnr>=20", target="sm8650", estimate=True)
    times = {rung.precision: rung.time_us for rung in found.ladder.rungs}
    assert times["w16a16"] is None, "the target does not run it"
    assert (times["fp16"], times["w8a16"]) == (50.0, 90.0)
    assert found.ladder.fastest is not None and found.ladder.fastest.precision == "fp16"
    with pytest.raises(UsageError, match="--estimate without --target"):
        deploykit.ladder(MLP, data=rows, estimate=True)


@pytest.mark.heavy
def test_a_quantizer_with_a_method_is_asked_for_it(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded quantizer, given two methods that are none: other ways to find ranges, one of which it lacks."""
    methods = (
        WeightMethod(name="Unknown", options={"method": "guess"}),
        WeightMethod(name="Percentile", options={"method": "percentile"}),
    )
    kind: Any = type(choosing.EMBEDDED)
    monkeypatch.setattr(kind, "weight_methods", lambda self, precision: methods, raising=False)
    monkeypatch.setattr(choosing, "SECONDS", 500.0)
    asked: dict[str, Any] = {"calibration": rows, "quantizer": "ort", "precision": "auto", "goal": "sqnr>=55"}
    assert deploykit.package(MLP, target="sm8650", sdk="2.37", out=tmp_path / "out", **asked).package is not None
    record = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))["quantization"]["ladder"]
    step = next(step for step in record["steps"] if step["raised"] is None)["learned"]
    assert step["from"]["precision"] == "w8a16"
    first, second = step["tried"]
    assert "guess" in first["candidate"]["missing"]
    assert second["candidate"]["sqnr_db"] is not None
    story = unescape((tmp_path / "out" / "report.html").read_text("utf-8")).split("The next step, taken")[1]
    assert "weights are sensitive" in story
    assert f'<td>Percentile<td class="tight">{second["candidate"]["sqnr_db"]:.1f} dB' in story

"""Lite mixed precision: the fewest layers that reach a goal, types that go together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import deploykit
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.accuracy.search.layer_losses import layers_of
from deploykit.accuracy.search.raising import Raiser
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import CostModel, ModelCost
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.errors import UsageError
from deploykit.model.collect import facts_of
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet" / "detr"
DETR, W8A8 = AIMET / "model.onnx", AIMET / "w8a8.v1.0.0.encodings"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "data.npz"
    with np.load(AIMET / "w8a8.io.npz") as stored:
        np.savez(path, **{key.removeprefix("input."): stored[key] for key in stored.files if key.startswith("input.")})
    return str(path)


def test_two_layers_repair_the_detector_and_what_is_written_says_so(data: str, tmp_path: Path) -> None:
    """AIMET's own LiteMP flips a third of it (tests/data/aimet/README.md); the two worst layers are enough."""
    found = deploykit.mix(DETR, encodings=W8A8, data=data, goal="sqnr>=40", target="sm8650")
    best = found.raised.best
    assert found.raised.met
    assert set(best.layers) == {"/decoder/Div", "/decoder/Add_2"}
    fewer = next(trial for trial in found.raised.trials if trial.count == best.count - 1)
    assert not fewer.met
    assert len(found.raised.trials) <= 8  # of 29 possible ones
    (tmp_path / "raised.encodings").write_text(found.text)
    again = deploykit.simulate(DETR, tmp_path / "raised.encodings", data=data)
    assert again.sqnr_db == pytest.approx(best.reached.sqnr_db, abs=1e-6)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["best"]["meets_goal"] is True


def test_an_output_that_no_node_makes_counts_for_nothing(tmp_path: Path) -> None:
    """An input or a stored value that is handed on differs in no run."""
    cnn = AIMET.parent / "cnn"
    model = onnx.load(cnn / "model.onnx")
    model.graph.output.extend([model.graph.input[0]])
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", input=np.random.default_rng(1).normal(size=(4, 3, 16, 16)).astype(np.float32))
    given: dict[str, Any] = {"encodings": cnn / "w8a8.v1.0.0.encodings", "data": tmp_path / "x.npz"}
    handed_on = deploykit.mix(tmp_path / "m.onnx", goal="sqnr>=20", **given).raised.best.reached
    assert handed_on == deploykit.mix(cnn / "model.onnx", goal="sqnr>=20", **given).raised.best.reached
    found = deploykit.sensitivity(tmp_path / "m.onnx", **given)
    assert found.whole.outputs.keys() == {"logits"}


def test_sixteen_bit_integers_do_not_repair_it(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A quotient of 1e5 beside one of 1e-3 has no place on any grid of 16 bits."""
    call = ["accuracy", "ladder", "--raise", str(DETR), "--encodings", str(W8A8), "--data", data]
    call += ["--goal", "sqnr>=40", "--to", "int16"]
    assert run(cli, call) == 1
    assert "no number of layers in int16 reaches" in capsys.readouterr().out


def test_only_what_the_target_mixes(data: str) -> None:
    with pytest.raises(UsageError, match="does not mix it with integers"):
        deploykit.mix(DETR, encodings=W8A8, data=data, goal="sqnr>=40", target="sm8350", to="float16")


GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,8] x) => (float[1,4,4] y)
<float[8,8] w = {WEIGHTS}>
{
    a = MatMul(x, w)
    r = Relu(a)
    t = Transpose<perm = [0, 2, 1]>(r)
    p = MatMul(r, t)
    y = Sigmoid(p)
}
""".replace("WEIGHTS", ", ".join(f"{0.1 * (i % 7) - 0.3:.1f}" for i in range(64)))


def _grid(bits: int = 8) -> Affine:
    return affine_for_range(-4, 4, GridKind(bits=bits, signed=False))


def _raiser(reached: Sequence[float] = ()) -> Raiser:
    model = parser.parse_model(GRAPH)
    facts = facts_of(model)
    entries = {name: Encoding(name=name, value=_grid()) for name in ("x", "w", "r", "t", "p", "y")}
    feeds = [{"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 4, 8)}]
    scripted = iter(reached)

    def measure(_: Sequence[Any]) -> Reached:
        return Reached(sqnr_db=next(scripted, 0.0))

    made, costs = (
        EncodingSet(version="1.0.0", entries=entries),
        CostModel(PartialRuns(model, feeds, wanted=["y"]), facts),
    )
    return Raiser(model, facts, made, layers_of(facts, entries), feeds, shown=["y"], measure=measure, costs=costs)


def test_what_cannot_stay_behind_is_raised_too() -> None:
    """A transposed copy has the type of what it copies, both factors of a product have one type, weights follow."""
    raiser = _raiser()
    assert raiser.together({"y"}, "float16") == {"y"}
    assert raiser.together({"t"}, "float16") == {"t", "r"}
    assert raiser.together({"x"}, "float16") == {"x", "w"}
    assert raiser.together({"r"}, "int16") == {"r", "t"}
    assert raiser.together({"x"}, "int16") == {"x"} and raiser.together({"w"}, "int16") == set()


def test_bisection_finds_the_smallest_that_is_good() -> None:
    """Five layers; with two of them it is good: none, all, two, one are measured, in this order."""
    raiser = _raiser([10, 50, 40, 20])
    found = raiser.smallest("float16", parse_goal("sqnr>=30"))
    assert (found.best.count, found.met) == (2, True)
    assert [trial.count for trial in found.trials] == [0, 1, 2, 5]


def test_costs_are_counted_from_shapes_and_widths() -> None:
    """Both products by hand: 4 x 8 x 8 and 4 x 4 x 8 multiplications."""
    model = parser.parse_model(GRAPH)
    facts = facts_of(model)
    costs = CostModel(PartialRuns(model, [{"x": np.zeros((1, 4, 8), np.float32)}], wanted=["y"]), facts)
    grids = {name: _grid() for name in ("x", "w", "r", "t", "p", "y", "a")}
    assert costs.cost(grids) == ModelCost(
        weight_bytes=64, activation_bytes=32 * 4 + 16 * 2, bit_operations=(256 + 128) * 64
    )
    wide = costs.cost({**grids, "x": _grid(16), "w": Float(dtype="float16")})
    assert wide.bit_operations == 256 * 256 + 128 * 64 and wide.weight_bytes == 128


def test_a_convolution_is_counted_by_its_groups() -> None:
    weight = np.ones((4, 2, 3, 3), np.float32)
    model = text_model("float[1,4,5,5] x", "y = Conv<group=2,pads=[1,1,1,1]>(x, w)", "float[1,4,5,5] y", w=weight)
    runs = PartialRuns(model, [{"x": np.zeros((1, 4, 5, 5), np.float32)}], wanted=["y"])
    assert CostModel(runs, facts_of(model)).cost({}).bit_operations == 4 * 5 * 5 * (2 * 9) * 32 * 32


def test_that_less_of_a_measure_is_better_reaches_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("deploykit.flow.candidates.mix_files", lambda _, **given: asked.append(given["goal"]))
    deploykit.mix(DETR, goal="drop<=1%", metric="errors:words", lower_is_better=True)
    assert asked[0].lower_is_better

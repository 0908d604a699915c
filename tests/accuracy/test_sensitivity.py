"""Layers: how much each one loses, equal to AIMET's analysis, and the fewest that reach a goal in a wider type."""

import json
import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from msgspec.structs import replace
from onnx import parser, shape_inference

import deploykit
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.accuracy.search.layer_losses import Budget, Layer, LayerLoss, Sensitivity, analyze, layers_of
from deploykit.accuracy.search.output_losses import OutputLoss, OutputLosses
from deploykit.accuracy.search.raising import Raiser, WideType
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import (
    CostModel,
    ModelCost,
    TensorStatistics,
    min_max_encodings,
    precision_of,
    statistics_of,
)
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model.collect import facts_of
from text_models import text_model
from told import check_file, check_told

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "sensitivity"
NO_DIFFERENCE = 200.0
"""What the recording script writes where nothing differs."""


def _given(arrays: dict[str, npt.NDArray[Any]], count: int) -> Samples:
    feeds = tuple({name: array[index] for name, array in arrays.items()} for index in range(count))
    source = InputSource(label=Label.GIVEN, why="the recorded inputs")
    return Samples(feeds=feeds, of_inputs=dict.fromkeys(arrays, source))


def _analyzed(model: Path, encodings: Path, samples: Samples, **asked: Any) -> Sensitivity:
    proto = onnx.load(model)
    facts = facts_of(proto)
    return analyze(proto, facts, samples, encodings=read_placed(encodings, facts), **asked)


@pytest.fixture(scope="module")
def detr_samples() -> Samples:
    with np.load(DATA / "aimet" / "detr" / "w8a8.io.npz") as stored:
        names = [key.split(":", 1)[1] for key in stored.files if key.startswith("input.0:")]
        arrays = {name: np.stack([stored[f"input.{index}:{name}"] for index in (0, 1)]) for name in names}
    return _given(arrays, 2)


DETR = DATA / "aimet" / "detr" / "model.onnx"
W8A8 = DATA / "aimet" / "detr" / "w8a8.v1.0.0.encodings"


@pytest.fixture(scope="module")
def detr(detr_samples: Samples) -> Sensitivity:
    return _analyzed(DETR, W8A8, detr_samples)


def _from_zoo(name: str, folder: Path) -> Sensitivity:
    with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as archive:
        archive.extractall(folder)
    with np.load(folder / "held_out.npz") as stored:
        samples = _given({key: stored[key] for key in stored.files}, 2)
    return _analyzed(folder / "model.onnx", folder / "w8a16.v1.0.0.encodings", samples)


@pytest.mark.parametrize(
    "name", ["detr", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("resnet", "vit", "segformer"))]
)
def test_it_agrees_with_the_recorded_analysis_of_aimet(name: str, tmp_path: Path, detr: Sensitivity) -> None:
    """The same layers with the same tensors, the same loss of the whole, the same 20 worst, nearly the same order."""
    found = detr if name == "detr" else _from_zoo(name, tmp_path)
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    assert found.whole.db == pytest.approx(
        recorded["all_quantized_db"], abs=0.05
    )  # releases of ONNX Runtime differ by 0.02
    ours = {frozenset(row.layer.tensors): row for row in found.layers}
    theirs = {frozenset(row["tensors"]): row for row in recorded["layers"].values()}
    assert ours.keys() == theirs.keys()
    alone, without = (
        np.asarray([(min(getattr(ours[key], how).db, NO_DIFFERENCE), theirs[key][f"{how}_db"]) for key in theirs])
        for how in ("alone", "without")
    )
    order = np.argsort(alone, axis=0, kind="stable")
    assert {*order[:20, 0]} == {*order[:20, 1]}
    assert np.asarray(np.corrcoef(np.argsort(order, axis=0).T))[0, 1] > 0.99
    # Where AIMET switches a quantizer that tensors share, more than one layer is switched: so far may these two differ.
    assert (abs(alone[:, 0] - alone[:, 1]) < 0.2).mean() >= {"segformer": 0.75}.get(name, 0.88)
    assert (abs(without[:, 0] - without[:, 1]) < 0.05).all()


def test_an_ended_analysis_goes_on(
    detr: Sensitivity, detr_samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    first = _analyzed(DETR, W8A8, detr_samples, budget=Budget(seconds=0.0))
    assert first.unmeasured > 50 and first.worst_layers == ()
    told: list[str] = []

    class EnoughError(Exception):
        pass

    def interrupt(line: str) -> None:
        told.append(line)
        if line.startswith("10 of"):
            raise EnoughError

    with pytest.raises(EnoughError):
        _analyzed(DETR, W8A8, detr_samples, tell=interrupt)
    told.clear()
    whole = _analyzed(DETR, W8A8, detr_samples, tell=told.append)
    measured = [line for line in told if " of " in line]
    assert len(measured) == first.unmeasured - 10
    assert whole.to_json() == detr.to_json()
    told.clear()
    again = _analyzed(DETR, W8A8, detr_samples, tell=told.append)
    assert not [line for line in told if " of " in line]
    assert again.to_json() == detr.to_json()
    # Other samples and other encodings are other questions.
    one = Samples(feeds=detr_samples.feeds[:1], of_inputs=detr_samples.of_inputs)
    wide = W8A8.with_name("w8a16.v1.0.0.encodings")
    for encodings, samples in ((W8A8, one), (wide, detr_samples)):
        assert _analyzed(DETR, encodings, samples, budget=Budget(seconds=0.0)).unmeasured > 50
    _analyzed(DETR, W8A8, detr_samples, tell=told.append, resume=False, budget=Budget(seconds=0.0))


def test_statistics_of_values() -> None:
    """Odd, huge, equal and missing ones too; what is far is an outlier."""
    four = statistics_of([np.asarray([-2.0, 0.0]), np.asarray([[4.0, 2.0]])])
    histogram = tuple(int(place in (0, 10, 21, 31)) for place in range(32))
    known: dict[str, Any] = {
        "mean": 1.0,
        "deviation": math.sqrt(5),
        "outliers": 0.0,
        "not_finite": 0,
        "histogram": histogram,
    }
    assert four == TensorStatistics(low=-2.0, high=4.0, peak_db=10 * math.log10(1 / 0.375), **known)
    assert four is not None and four.to_json() == {
        "range": [-2.0, 4.0],
        "outlier_share": 0.0,
        "mean": 1.0,
        "deviation": pytest.approx(math.sqrt(5)),
        "peak_db": pytest.approx(10 * math.log10(16 / 6)),
        "histogram": [*histogram],
        "not_finite": 0,
    }
    found = statistics_of([np.asarray([1.0, -1.0, 1e30, np.inf, np.nan], np.float32)])
    assert found is not None and (found.low, found.not_finite) == (-1.0, 2)
    assert found.high == pytest.approx(1e30) and math.isfinite(found.deviation)
    huge = statistics_of([np.asarray([1e200, -1e300, 3.0])])
    assert huge is not None and huge.peak_db == pytest.approx(10 * math.log10(3))
    assert statistics_of([np.full(3, np.nan)]) is None
    flat = statistics_of([np.zeros(5, np.float32)])
    assert flat is not None and (flat.outliers, flat.peak_db, flat.histogram) == (0.0, 0.0, (5,))
    for far, share in ((8.0, 0.01), (7.0, 0.0)):  # of a hundred values one, beyond six deviations or not
        spike = statistics_of([np.r_[np.tile([1.0, -1.0], 50)[:99], far]])
        assert spike is not None and spike.outliers == share


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "data.npz"
    with np.load(DETR.with_name("w8a8.io.npz")) as stored:
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
    cnn = DETR.parents[1] / "cnn"
    model = onnx.load(cnn / "model.onnx")
    model.graph.output.extend([model.graph.input[0]])
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", input=np.random.default_rng(1).normal(size=(4, 3, 16, 16)).astype(np.float32))
    given: dict[str, Any] = {"encodings": cnn / "w8a8.v1.0.0.encodings", "data": tmp_path / "x.npz"}
    handed_on = deploykit.mix(tmp_path / "m.onnx", goal="sqnr>=20", **given).raised.best.reached
    assert handed_on == deploykit.mix(cnn / "model.onnx", goal="sqnr>=20", **given).raised.best.reached
    found = deploykit.sensitivity(tmp_path / "m.onnx", **given)
    assert found.whole.outputs.keys() == {"logits"}


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
    reaching: Any = SimpleNamespace(shown=["y"], reached=lambda _: Reached(sqnr_db=next(scripted, 0.0)))
    made = EncodingSet(version="1.0.0", entries=entries)
    costs = CostModel(PartialRuns(model, feeds, wanted=["y"]), facts)
    return Raiser(model, facts, made, layers_of(facts, entries), feeds, reaching, costs)


def test_an_output_of_another_shape_or_without_numbers_is_lost() -> None:
    losses = OutputLosses(facts_of(parser.parse_model(GRAPH)))
    losses.hold([{"y": np.ones((1, 4, 8), np.float32)}] * 2)
    kept, fewer = ({"y": np.ones((1, rows, 8), np.float32)} for rows in (4, 3))
    without = {"y": np.where(np.arange(8) < 7, kept["y"], np.inf)}
    assert losses.loss([kept, kept]).db == math.inf
    assert losses.loss([kept, fewer]).db == losses.loss([without, kept]).db == -math.inf


def test_what_cannot_stay_behind_is_raised_too() -> None:
    """A transposed copy has the type of what it copies, both factors of a product have one type, weights follow."""
    raiser = _raiser()
    assert raiser.together({"y"}, "float16") == {"y"}
    assert raiser.together({"t"}, "float16") == {"t", "r"}
    assert raiser.together({"x"}, "float16") == {"x", "w"}
    assert raiser.together({"r"}, "int16") == {"r", "t"}
    assert raiser.together({"x"}, "int16") == {"x"} and raiser.together({"w"}, "int16") == set()


def test_bisection_finds_the_smallest_that_is_good() -> None:
    """Five layers; with two it is good: none, all, two, one are measured, in this order. Each type is by itself."""
    raiser, told = _raiser([10, 50, 40, 20, 10, 20]), {}
    more = _raiser([10, math.nan, 14, 13, 12])
    cases: list[tuple[str, Raiser, WideType, int]] = [
        ("float16, good with two", raiser, "float16", 0),
        ("int16 beside it, never good", raiser, "int16", 0),
        ("float16, never good, three more and one without a number", more, "float16", 3),
    ]
    for name, one, wide, others in cases:
        found = one.smallest(wide, parse_goal("sqnr>=30"), more=others)
        made = {entry.name: entry.value.dtype for entry in found.encodings}
        trials = [f"  {trial.count}: {json.dumps(trial.to_json())}" for trial in found.trials]
        told[name] = [f"{found.best.count} of 5, {found.met}, {made}", *trials]
    check_told(Path(__file__).with_name("raised.told"), told)


def test_what_is_published_of_a_search() -> None:
    rows = []
    for number, db in enumerate((12.0, math.inf, -math.inf)):
        layer = Layer(name=f"l{number}", op_type="Conv", weights=("w",), activations=())
        loss = OutputLoss(outputs={"y": db, "z": math.inf})
        rows.append(LayerLoss(layer=layer, alone=loss, without=None, weights=loss, activations=None))
    found = replace(_raiser([10, 50, 40, 20]).smallest("float16", parse_goal("sqnr>=30")), worst=tuple(rows))
    told = found.to_json()
    assert (told["goal"], told["best"], len(told["trials"])) == ("sqnr >= 30 dB", found.best.to_json(), 4)
    assert told.keys() == {"goal", "best", "trials", "sensitivity"}
    assert told["sensitivity"] == [
        {"layer": f"l{number}", "op_type": "Conv", "loss_db": {"weights": db, "together": db}}
        for number, db in enumerate((12.0, None, "nothing left"))
    ]


def _min_max(question: str) -> list[str]:
    """Inputs, a body and a precision: the entries for samples that count on from -1.5, by halves."""
    given, body, precision = question.split("; ")
    stored = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    model = shape_inference.infer_shapes(text_model(given, body, **stored))
    facts, feed = facts_of(model), {}
    for item in model.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        feed[item.name] = (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 3) / 2
    runs = PartialRuns(model, [feed, {name: 2 * value for name, value in feed.items()}], wanted=["y"])
    made = min_max_encodings(runs, facts, precision_of(precision))
    lines = [f"{made.version}, {made.producer}"]
    for entry in made:
        value, kind = entry.value, "parameter" if entry.is_param else "activation"
        grid = ""
        if isinstance(value, Affine):
            ends = f"{value.minimum.ravel().round(4).tolist()} to {value.maximum.ravel().round(4).tolist()}"
            grid = (
                f", {ends}{', symmetric' * bool(value.symmetric)}{'' if value.axis is None else f', axis {value.axis}'}"
            )
        lines.append(f"{entry.name}: {kind} {value.dtype}{grid}")
    return lines


def _layers(question: str) -> list[str]:
    """Inputs, a body, and which tensors have a grid (all where nothing is said): the layers that hold them."""
    given, body, *named = question.split("; ")
    stored = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    facts = facts_of(shape_inference.infer_shapes(text_model(given, body, **stored)))
    names = named[0].split(", ") if named else [name for name, fact in facts.tensors.items() if fact.is_float]
    lines = []
    for one in layers_of(facts, names):
        held = (", ".join(some) or "-" for some in (one.weights, one.activations))
        lines.append(f"{one.name} ({one.op_type}): weights {next(held)}; activations {next(held)}")
    return lines


def test_what_belongs_to_a_layer() -> None:
    check_file(Path(__file__).with_name("layers.told"), _layers)


STORED: dict[str, Any] = {
    "w": np.asarray([[1, -2], [0, 4]], np.float32),
    "bias": [0.5, 3.0],
    "factor": np.asarray([2.0], np.float32),
    "zero": np.zeros(1, np.float32),
    "low": np.float32(-1),
    "high": np.float32(6),
    "odd": np.asarray([np.inf, 1], np.float32),
    "kernel": np.asarray([2, 0, -3], np.float32).reshape(3, 1, 1, 1),
}


def test_ranges_of_the_samples_make_encodings() -> None:
    check_file(Path(__file__).with_name("min_max.told"), _min_max)


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

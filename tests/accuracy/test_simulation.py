"""Encodings simulated in ONNX Runtime, whole and in part."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.quantizers import fake_quantize, is_simulated
from deploykit.accuracy.simulate.sessions import Feed
from deploykit.accuracy.simulate.simulation import Simulator, simulate
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Value
from deploykit.errors import InputError
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
RUNS = ["cnn/w8a8", "cnn_bnfold/w8a16", "detr/aimet-2.31.0/w8a8-litemp-fp16", "detr/fp16", "detr/w8a8-int16mix"]
RUNS += ["detr/w8a16-fp16mix-explicit", "mlp/wfp8a8", "mlp/w4a8", "vit/w8a16"]
RUNS += [f"mlp/{name}" for name in ("bq-asym-w4a16", "bq-w2a16-zpshift", "bq-w4a16", "lpbq-w4a16")]
"""Fixtures with recorded inputs, outputs and quantizer values: every kind of entry once."""


def _encodings(run: str) -> EncodingSet:
    """The 2.0.0 entries, with the float tensors that this version cannot say taken from 1.0.0."""
    encodings = read_encodings(AIMET / f"{run}.v2.0.0.encodings")
    older = AIMET / f"{run}.v1.0.0.encodings"
    return replace(encodings, float_tensors=read_encodings(older).floats) if older.exists() else encodings


def _model(run: str) -> onnx.ModelProto:
    return onnx.load(AIMET / Path(run).parts[0] / "model.onnx")


def _feeds(data: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    numbers = sorted({key.split(":")[0] for key in data if key.startswith("input.")})
    return [{k.split(":", 1)[1]: v for k, v in data.items() if k.startswith(f"{number}:")} for number in numbers]


def _load(run: str) -> dict[str, np.ndarray]:
    with np.load(AIMET / f"{run}.io.npz") as stored:
        return {key: stored[key] for key in stored.files}


MADE_WITH = json.loads((AIMET / "manifest.json").read_text())["made_with"]
SAME_KERNELS = onnxruntime.__version__ == MADE_WITH["onnxruntime"]


@each_row("run", *RUNS)
def test_quantizers_and_outputs_equal_aimet(run: str) -> None:
    data = _load(run)
    names = [key[len("qdq.0:") :] for key in data if key.startswith("qdq.0:")]
    simulator = Simulator(_model(run), _encodings(run), capture=names)
    feeds = _feeds(data)
    first = simulator.run(feeds[0])
    for name in names:
        wanted = data[f"qdq.0:{name}"]
        # Bit for bit, given the float kernels that AIMET ran on; those of another release may round another way.
        slack = 0.0 if SAME_KERNELS else _step(run, f"qdq.0:{name}")
        np.testing.assert_allclose(first[name].reshape(wanted.shape), wanted, rtol=1e-6 if slack else 0, atol=slack)
    for index, feed in enumerate(feeds):
        made = simulator.run(feed)
        for key in [key for key in data if key.startswith(f"sim.{index}:")]:
            np.testing.assert_allclose(made[key.split(":", 1)[1]], data[key], atol=_step(run, key), err_msg=key)


def _step(run: str, key: str) -> float:
    entry = _encodings(run).get(key.split(":", 1)[1])
    return float(entry.value.scale.max()) if entry is not None and isinstance(entry.value, Affine) else 1e-6


@pytest.mark.parametrize("run", ["detr/w8a16", "detr/w8a8", "detr/w8a8-fp16mix-explicit", "vit/w8a8", "cnn/w8a16"])
def test_the_sqnr_is_the_one_that_was_measured_with_aimet(run: str) -> None:
    model, variant = run.split("/")
    rows = json.loads((AIMET / "manifest.json").read_text())["files"]
    wanted = next(
        r["sqnr_db"] for r in rows if (r["model"], r.get("variant"), "sqnr_db" in r) == (model, variant, True)
    )
    result = simulate(_model(run), _encodings(run), _feeds(_load(run)))
    assert result.sqnr_db == pytest.approx(wanted, abs=0.01)


def test_entries_of_unknown_tensors_are_named() -> None:
    entry = Encoding(name="nowhere", value=affine_for_range(-1, 1, GridKind(bits=8, signed=False)))
    simulator = Simulator(_model("cnn/w8a8"), EncodingSet(version="2.0.0", entries={"nowhere": entry}))
    assert simulator.skipped == {"nowhere": "the main graph has no such tensor"}


@each_row(("name", "axis"), ("input", 1), ("conv1.weight", 0))
def test_a_scale_per_channel_that_does_not_fit_is_refused(name: str, axis: int) -> None:
    """Of an activation, and of the wrong length."""
    value = Affine(bits=8, signed=True, scale=np.ones(3), zero_point=np.zeros(3), axis=axis)
    entries = {name: Encoding(name=name, value=value, is_param=axis == 0)}
    with pytest.raises(InputError, match=f"'{name}'"):
        Simulator(_model("cnn/w8a8"), EncodingSet(version="2.0.0", entries=entries))


def test_an_old_opset_is_refused() -> None:
    graph = TinyGraph(opset=8)
    graph.op("Relu", [graph.input("x", (2,))], "y")
    with pytest.raises(InputError, match="opset 8"):
        Simulator(graph.model("y"), EncodingSet(version="2.0.0", entries={}))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=40),
    low=st.floats(-1e4, 0),
    high=st.floats(0.001, 1e4),
    bits=st.sampled_from([4, 8, 16]),
    signed=st.booleans(),
)
def test_the_graph_computes_as_numpy(values: list[float], low: float, high: float, bits: int, signed: bool) -> None:
    """NaN, infinities and every rounding: the inserted ops equal the formula, and both are idempotent."""
    value = affine_for_range(low, high, GridKind(bits=bits, signed=signed))
    graph = TinyGraph()
    graph.op("Identity", [graph.input("x", (len(values),))], "y")
    encodings = EncodingSet(version="2.0.0", entries={"y": Encoding(name="y", value=value)})
    x = np.asarray(values, dtype=np.float32)
    made = Simulator(graph.model("y"), encodings).run({"x": x})["y"]
    wanted = fake_quantize(x, value)
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(fake_quantize(wanted, value), wanted)


def test_bfloat16_rounds_to_nearest_even() -> None:
    x = np.asarray([1.0, 1.00390625, 1.01171875, np.inf, -3.3], dtype=np.float32)
    made = fake_quantize(x, Float(dtype="bfloat16"))
    np.testing.assert_array_equal(made[:4], np.asarray([1.0, 1.0, 1.015625, np.inf], np.float32))


def test_half_a_step_goes_up() -> None:
    assert [is_simulated(affine_for_range(-1, 1, GridKind(bits=bits, signed=True))) for bits in (24, 25)] == [
        True,
        False,
    ], "AIMET leaves int32 biases out"
    value = Affine(bits=8, signed=True, scale=np.asarray(1.0), zero_point=np.asarray(0.0))
    made = fake_quantize(np.asarray([0.5, -0.5, 1.5, -1.5, np.nan], np.float32), value)
    np.testing.assert_array_equal(made, np.asarray([1, 0, 2, -1, -128], np.float32))


def test_rows_in_another_order_are_told_apart_from_loss(decoder_detector: Any) -> None:
    wide = [name for name in decoder_detector.encodings.entries if name.endswith(decoder_detector.wide)]
    kept = decoder_detector.without(*wide)
    result = simulate(decoder_detector.model, kept, decoder_detector.feeds, facts=decoder_detector.facts)
    assert result.reordered is not None and result.sqnr_db < 20 < 35 < result.reordered.overall_db
    assert result.to_json()["reordered"]["sqnr_db"] > 35


DATA = Path(__file__).parents[1] / "data"
DETR = DATA / "aimet" / "detr"


class Case:
    """A model, what quantizes it, and samples."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Value], feeds: list[Feed]) -> None:
        self.model, self.values, self.feeds = model, dict(values), feeds
        self.outputs = [item.name for item in model.graph.output]

    def runs(self, values: Mapping[str, Value] | None = None, *, size: int = 0) -> PartialRuns:
        return PartialRuns(self.model, self.feeds, wanted=self.outputs, values=values, size=size)

    def whole(self, values: Mapping[str, Value]) -> list[dict[str, Any]]:
        entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
        simulator = Simulator(self.model, EncodingSet(version="", entries=entries))
        return [simulator.run(feed) for feed in self.feeds]

    def assert_same(self, found: list[dict[str, Any]], values: Mapping[str, Value], about: str) -> None:
        for one, two in zip(found, self.whole(values), strict=True):
            for name in self.outputs:
                assert one[name].shape == two[name].shape, about
                assert one[name].tobytes() == two[name].tobytes(), about


@pytest.fixture(scope="module")
def detr() -> Case:
    with np.load(DETR / "w8a8.io.npz") as stored:
        feeds: list[Feed] = [
            {key.split(":", 1)[1]: stored[key] for key in stored.files if key.startswith(f"input.{index}:")}
            for index in (0, 1)
        ]
    model = onnx.load(DETR / "model.onnx")
    placed = read_placed(DETR / "w8a8.v1.0.0.encodings", facts_of(model))
    return Case(model, {entry.name: entry.value for entry in placed}, feeds)


@pytest.mark.parametrize("size", [0, 7])
def test_every_tensor_alone_and_left_out(detr: Case, size: int) -> None:
    exact, quantized = detr.runs(size=size), detr.runs(detr.values, size=size)
    detr.assert_same(exact.reference, {}, "float")
    detr.assert_same(quantized.reference, detr.values, "quantized")
    for name in sorted(detr.values, key=lambda name: exact.first_piece([name]))[:: 5 if size == 0 else 11]:
        detr.assert_same(exact.run({name: detr.values[name]}), {name: detr.values[name]}, f"only {name}")
        rest = {other: value for other, value in detr.values.items() if other != name}
        detr.assert_same(quantized.run({name: None}), rest, f"all but {name}")


def _grid(low: float, high: float) -> Affine:
    return affine_for_range(low, high, GridKind(bits=8, signed=False))


CONTROL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,6] x, bool c) => (float[k,6] y, float[1,6] z)
<float[6] w = {0.1, -0.2, 0.33, 0.41, 0.57, -0.63}>
{
    a = Mul(x, w)
    b = Sigmoid(a)
    parts = SequenceConstruct(a, b)
    axis = Constant<value_int = 0>()
    zero = Constant<value_int = 0>()
    joined = ConcatFromSequence<axis = 0>(parts)
    first = SequenceAt(parts, zero)
    y = Tanh(joined)
    d = If (c) <
        then_branch = more () => (float[1,6] e) { e = Mul(b, w) },
        else_branch = less () => (float[1,6] f) { f = Sub(b, w) }
    >
    z = Add(d, first)
}
"""


@pytest.mark.parametrize("size", [1, 50])
def test_bodies_and_sequences(size: int) -> None:
    """What a body reads from outside is read, and a sequence never crosses a border."""
    model = parser.parse_model(CONTROL)
    rng = np.random.default_rng(3)
    feeds: list[Feed] = [{"x": rng.normal(size=(1, 6)).astype("f4"), "c": np.asarray(flag)} for flag in (True, False)]
    values: dict[str, Value] = {name: _grid(-2, 2) for name in ("x", "a", "b", "d", "joined", "first", "y", "z", "w")}
    case = Case(model, values, feeds)
    exact, quantized = case.runs(size=size), case.runs(values, size=size)
    for name in values:
        case.assert_same(exact.run({name: values[name]}), {name: values[name]}, name)
        rest = {other: value for other, value in values.items() if other != name}
        case.assert_same(quantized.run({name: None}), rest, name)


def test_a_shared_weight_is_changed_wherever_it_is_read() -> None:
    """The second reader lies pieces behind the first, and nothing else between them changes."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y, float[2,3] v)'
    text += "<float[3] w = {0.123, 0.456, -0.789}> { a = Mul(x, w) y = Relu(a) b = Neg(x) c = Abs(b) d = Exp(c)"
    text += " e = Sqrt(d) v = Add(e, w) }"
    feeds: list[Feed] = [{"x": np.arange(6, dtype=np.float32).reshape(2, 3) / 7}]
    case = Case(parser.parse_model(text), {"w": _grid(-1, 1)}, feeds)
    case.assert_same(case.runs(size=1).run(case.values), case.values, "shared")


def test_an_entry_that_does_not_fit_is_refused(detr: Case) -> None:
    wrong = replace(_grid(0, 1), scale=np.ones(7), zero_point=np.zeros(7), axis=0)
    weight = next(name for name in detr.values if name.endswith("weight"))
    with pytest.raises(InputError, match="does not fit its tensor"):
        detr.runs().run({weight: wrong})

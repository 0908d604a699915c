"""Encodings simulated in ONNX Runtime, whole, in part and group by group: the same bits wherever a model is cut."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import ModelProto, parser

from deploykit.accuracy.simulate import sessions
from deploykit.accuracy.simulate.graph_pieces import GraphPieces
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.quantizers import fake_quantize, quantizers_of
from deploykit.accuracy.simulate.sessions import Session, reference_outputs
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Value
from deploykit.errors import InputError
from deploykit.findings.records import Arrays
from deploykit.model import weights
from deploykit.model.collect import facts_of
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.weights import is_mapped, lean_weights, unmapped, whole_model
from sample_models.tiny_graphs import TinyGraph
from tables import each_row
from text_models import text_model
from told import check_file

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


MADE_WITH = json.loads((AIMET / "manifest.json").read_text())["made_with"]
SAME_KERNELS = onnxruntime.__version__ == MADE_WITH["onnxruntime"]


@each_row("run", *RUNS)
def test_quantizers_and_outputs_equal_aimet(run: str) -> None:
    with np.load(AIMET / f"{run}.io.npz") as stored:
        data = {key: stored[key] for key in stored.files}
    names = [key[len("qdq.0:") :] for key in data if key.startswith("qdq.0:")]
    simulator = Simulator(_model(run), _encodings(run), capture=names)
    numbers = sorted({key.split(":")[0] for key in data if key.startswith("input.")})
    feeds = [{k.split(":", 1)[1]: v for k, v in data.items() if k.startswith(f"{number}:")} for number in numbers]
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


def test_a_scale_per_channel_of_the_wrong_length_is_refused() -> None:
    value = Affine(bits=8, signed=True, scale=np.ones(3), zero_point=np.zeros(3), axis=0)
    entries = {"conv1.weight": Encoding(name="conv1.weight", value=value, is_param=True)}
    with pytest.raises(InputError, match=r"'conv1\.weight' does not fit"):
        Simulator(_model("cnn/w8a8"), EncodingSet(version="2.0.0", entries=entries))


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


HALVES = Affine(bits=8, signed=True, scale=np.asarray(1.0), zero_point=np.asarray(0.0))


@each_row(
    ("value", "given", "made"),
    (Float(dtype="bfloat16"), [1.0, 1.00390625, 1.01171875, np.inf, -np.nan], [1.0, 1.0, 1.015625, np.inf, np.nan]),
    (Float(dtype="float16"), [1.0, 1.0004883, 1.0014648, 65519, 65520, 1e-8], [1.0, 1.0, 1.0019531, 65504, np.inf, 0]),
    (Float(dtype="float32"), [1.1, 1e-40], [1.1, 1e-40]),
    # To the nearest even mantissa, above the largest number to it, and below the smallest normal one in its steps.
    (Float8(dtype="float8e4m3fn", scale=np.asarray(2.0)), [2.1, 2.125, 2.375, 1e4, -1e4], [2.0, 2.0, 2.5, 896, -896]),
    (Float8(dtype="float8e5m2", scale=np.asarray(1.0)), [1.1, 1.125, 1.375, 6e4, 2**-17], [1.0, 1.0, 1.5, 57344, 0]),
    (Float8(dtype="float8e4m3fn", scale=np.asarray(1.0)), [2**-9, 3 * 2**-11, 2**-10], [2**-9, 2**-9, 0]),
    (affine_for_range(-1, 1, GridKind(bits=25, signed=True)), [0.123], [0.123]),  # as wide as a bias: not simulated
    (affine_for_range(-8, 7, GridKind(bits=24, signed=True)), [1e3], [7]),
    (HALVES, [0.5, -0.5, 1.5, -1.5, np.nan], [1, 0, 2, -1, -128]),  # half a step goes up
)
def test_what_each_type_holds(value: Value, given: list[float], made: list[float]) -> None:
    found = fake_quantize(np.asarray(given, np.float32), value)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.asarray(made, np.float32))


def test_weights_of_many_values_are_quantized_in_parts() -> None:
    """The same as row by row, with a scale for all, for each row, and for each column."""
    x = np.random.default_rng(0).normal(size=(5, 20_000)).astype(np.float32)
    for axis, count in ((None, 1), (0, 5), (1, 20_000)):
        scale = np.linspace(0.01, 0.05, count) if axis is not None else np.asarray(0.02)
        kind: dict[str, Any] = {"bits": 4, "signed": True, "zero_point": np.zeros_like(scale), "symmetric": True}
        whole = fake_quantize(x, Affine(scale=scale, axis=axis, **kind))
        for row in range(5):
            own = scale[row : row + 1] if axis == 0 else scale
            part = Affine(scale=own, axis=axis, **{**kind, "zero_point": np.zeros_like(own)})
            np.testing.assert_array_equal(whole[row : row + 1], fake_quantize(x[row : row + 1], part))
        assert np.abs(whole).max() <= 0.05 * 8 and len(np.unique(whole[0])) > 10


@each_row(
    ("value", "shape", "says"),
    ({"scale": np.ones(3), "placed": False}, (3, 4), "a scale of 3 numbers has not been placed on an axis"),
    ({"axis": 0, "scale": np.ones(3)}, (4, 3), "shape mismatch"),
    ({"axis": 1, "scale": np.ones((3, 2)), "block_size": 2}, (3, 4), "has not been placed on a tensor of shape (3, 4)"),
)
def test_a_scale_must_belong_to_its_tensor(value: dict[str, Any], shape: tuple[int, ...], says: str) -> None:
    made = Affine(bits=8, signed=True, zero_point=np.zeros_like(value["scale"]), **value)
    with pytest.raises(ValueError, match=re.escape(says)):
        fake_quantize(np.zeros(shape), made)


DATA = Path(__file__).parents[1] / "data"
DETR = DATA / "aimet" / "detr"


class Case:
    """A model, what quantizes it, and samples."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Value], feeds: list[Arrays]) -> None:
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
        feeds: list[Arrays] = [
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
    feeds: list[Arrays] = [{"x": rng.normal(size=(1, 6)).astype("f4"), "c": np.asarray(flag)} for flag in (True, False)]
    grid, names = (
        affine_for_range(-2, 2, GridKind(bits=8, signed=False)),
        ["x", "a", "b", "d", "joined", "first", "y", "z", "w"],
    )
    values: dict[str, Value] = dict.fromkeys(names, grid)
    case = Case(model, values, feeds)
    exact, quantized = case.runs(size=size), case.runs(values, size=size)
    for name in values:
        case.assert_same(exact.run({name: values[name]}), {name: values[name]}, name)
        rest = {other: value for other, value in values.items() if other != name}
        case.assert_same(quantized.run({name: None}), rest, name)


def _pieces(question: str) -> list[str]:
    """How a graph is cut, by nodes or by bytes: each piece, what it makes that others read, and what is stored."""
    asked, given, body = question.split("; ")
    size, _, number = asked.partition(" ")
    stored: dict[str, Any] = {name: np.ones(4, np.float32) for name in ("w1", "w2", "w3") if name in body}
    pieces = GraphPieces(text_model(given, body, "y, z", **stored), ["y", "z"], **{size: int(number)})
    lines = []
    for places, crossing in zip(pieces.pieces, pieces.crossing, strict=True):
        held = ", ".join(name for place in places for name in pieces.holds[place])
        lines.append(f"{', '.join(pieces.made(places))} hold {held or 'nothing'}, give {', '.join(crossing)}")
    readers = ", ".join(f"{name} {places}" for name, places in sorted(pieces.readers.items()))
    return [
        *lines,
        f"inputs {', '.join(pieces.inputs)}; opaque {', '.join(sorted(pieces.opaque)) or 'nothing'}; read {readers}",
    ]


def test_where_a_graph_is_cut() -> None:
    check_file(Path(__file__).with_name("pieces.told"), _pieces)


def _stored_outside(model: ModelProto, folder: Path) -> Path:
    """A copy of the model whose initializers all lie in another file."""
    path, copy = folder / "outside.onnx", ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(copy, path, save_as_external_data=True, location="outside.bin", size_threshold=0)
    return path


def _lean(model: ModelProto, folder: Path, *, small: int = 0) -> ModelProto:
    with patch.multiple(weights, LEAST=0, _SMALL=small):
        return lean_weights(load_model(_stored_outside(model, folder)))


def _same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[n], b[n], equal_nan=a[n].dtype.kind == "f") for n in a)
        for a, b in zip(one, two, strict=True)
    )


def _tower(layers: Sequence[int], seed: int) -> ModelProto:
    """MatMuls, of which each reads what an earlier one made, now and then from far away."""
    rng = np.random.default_rng(seed)
    nodes, tensors, made = [], [], ["x"]
    for number, back in enumerate(layers):
        weight, product, name = f"w{number}", f"m{number}", f"r{number}"
        values = rng.standard_normal((8, 8)).astype(np.float32)
        tensors.append(onnx.numpy_helper.from_array(values, weight))
        nodes.append(onnx.helper.make_node("MatMul", [made[-1], weight], [product]))
        nodes.append(onnx.helper.make_node("Add", [product, made[-min(back, len(made))]], [name]))
        made.append(name)
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2, 8]) for name in ("x", made[-1])]
    graph = onnx.helper.make_graph(nodes, "tower", ends[:1], ends[1:], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


def _tower_encodings(model: ModelProto) -> EncodingSet:
    """Every weight in 4 bits per channel, every second moving tensor in 8."""
    entries = {}
    for tensor in model.graph.initializer:
        scale = np.full(8, 0.3)
        value = Affine(bits=4, signed=True, scale=scale, zero_point=np.zeros(8), axis=1, symmetric=True)
        entries[tensor.name] = Encoding(name=tensor.name, value=value, is_param=True)
    for node in model.graph.node[::2]:
        value = Affine(bits=8, signed=False, scale=np.array(0.5), zero_point=np.array(128.0))
        entries[node.output[0]] = Encoding(name=node.output[0], value=value)
    return EncodingSet(version="1.0.0", entries=entries)


@settings(max_examples=8, deadline=None)
@given(layers=st.lists(st.integers(1, 12), min_size=2, max_size=14), room=st.integers(1, 3000), seed=st.integers(0, 9))
def test_cuts_change_no_bit(tmp_path_factory: pytest.TempPathFactory, layers: list[int], room: int, seed: int) -> None:
    model = _tower(layers, seed)
    lean, encodings = _lean(model, tmp_path_factory.mktemp("tower")), _tower_encodings(model)
    feeds = [{"x": np.random.default_rng(n).standard_normal((2, 8)).astype(np.float32)} for n in range(3)]
    inner = [model.graph.node[0].output[0], model.graph.node[len(layers)].output[0]]
    whole, groups = Session(model, capture=inner), Session(lean, capture=inner, room=room)
    assert groups.streams == (len(layers) * 256 > room)
    assert _same(whole.runs(feeds), groups.runs(feeds))
    quantized, values = Simulator(model, encodings, capture=inner).runs(feeds), quantizers_of(lean, encodings)[0]
    assert _same(quantized, Session(lean, capture=inner, room=room, values=values).runs(feeds))
    assert _same(quantized, Simulator(model, encodings, capture=inner, known={}).runs(feeds))


BODIES = """
<ir_version: 8, opset_import: ["" : 17]>
loops (float[2, 4] x, bool c) => (float[2, 4] y, float[2, 4] z)
<float[4, 4] w = {1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7}, float[4, 4] v = {2,0,0,1, 0,1,0,0, 0,0,3,0, 0,0,0,1},
 int64 count = {3}, bool go = {1}>
{
    a = MatMul (x, v)
    b = Loop (count, go, a) <body = body (int64 i, bool on, float[2, 4] state) => (bool more, float[2, 4] next) {
        more = Identity (on)
        s = MatMul (state, w)
        half = Constant <value_float = 0.01> ()
        next = Mul (s, half)
    }>
    y = If (c) <then_branch = yes () => (float[2, 4] t) { t = MatMul (b, v) },
                else_branch = no () => (float[2, 4] e) { e = MatMul (x, w) }>
    z = Add (y, a)
}
"""


@pytest.mark.parametrize("room", [1, 70, 130])
def test_bodies_read_weights_of_the_graph_around_them(tmp_path: Path, room: int) -> None:
    model = parser.parse_model(BODIES)
    lean = _lean(model, tmp_path)
    assert {t.name for t in lean.graph.initializer if is_mapped(t)} >= {"w", "v"}
    feeds: list[Arrays] = [{"x": np.full((2, 4), n + 0.5, "f4"), "c": np.array(bool(n), np.bool_)} for n in range(2)]
    groups = Session(lean, room=room)
    assert groups.streams and _same(Session(model).runs(feeds), groups.runs(feeds))


def test_weights_out_of_files_are_quantized_in_every_part_of_a_run(tmp_path: Path) -> None:
    model = _tower([1, 2, 1, 3], 4)
    values = {entry.name: entry.value for entry in _tower_encodings(model)}
    feeds: list[Arrays] = [{"x": np.full((2, 8), n + 0.5, "f4")} for n in range(2)]
    inside, outside = (
        PartialRuns(one, feeds, wanted=["r3"], values=values, size=2) for one in (model, _lean(model, tmp_path))
    )
    assert _same(inside.reference, outside.reference)
    for change in ({"w1": None}, {"m2": None}, {"w0": values["w0"], "r1": None}):
        assert _same(inside.run(change), outside.run(change)), change


def test_a_wrong_sample_is_refused_as_by_the_whole(tmp_path: Path) -> None:
    groups = Session(_lean(_tower([1, 1, 1], 0), tmp_path), room=300)
    with pytest.raises(InputError, match="does not run on this sample"):
        groups.run({"x": np.ones((3, 8), np.float32)})
    with pytest.raises(InputError, match="no value for input 'x'"):
        groups.run({"y": np.ones((2, 8), np.float32)})


def test_a_layer_beyond_the_budget_is_refused_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lean = _lean(_tower([1, 1, 1], 0), tmp_path)
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1024")
    Session(lean, room=300)
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1023")
    with pytest.raises(InputError, match="largest layer") as caught:
        Session(lean, room=300)
    assert "--memory" in caught.value.next


def test_values_that_no_message_could_hold_are_handed_over_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _tower([1, 2, 1], 0)
    small = onnx.numpy_helper.from_array(np.ones(8, np.float32), "small")
    model.graph.initializer.append(small)
    model.graph.node[0].input[0] = "moved"
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["x", "small"], ["moved"]))
    feeds = [{"x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}]
    whole, before = Session(model).runs(feeds), model.SerializeToString()
    monkeypatch.setattr(sessions, "_PROTOBUF_LIMIT", 3 * 256 + 32)
    monkeypatch.setattr(sessions, "_LARGE", 256)
    assert _same(Session(model).runs(feeds), whole) and model.SerializeToString() == before


def test_old_models_run_in_the_reference() -> None:
    model = text_model("float[3] x", "y = Sqrt(x) z = Neg(y)", "y, z", opset=1)
    found = reference_outputs(model, [{"x": np.asarray([4.0, 9.0, 1.0], np.float32)}, {"x": np.ones(3, np.float32)}])
    assert [{name: value.tolist() for name, value in one.items()} for one in found] == [
        {"y": [2, 3, 1], "z": [-2, -3, -1]},
        {"y": [1, 1, 1], "z": [-1, -1, -1]},
    ]
    with pytest.raises(InputError, match="g: ONNX's reference does not run the model"):
        reference_outputs(model, [{}])


def test_a_model_that_cannot_be_cut_is_run_whole_where_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lean = _lean(_tower([1, 1, 1], 0), tmp_path)
    lean.opset_import.add(domain="ai.onnx.ml", version=3)
    assert not Session(lean, room=300).streams
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1K")
    with pytest.raises(InputError, match="cannot be cut"):
        Session(lean, room=300)


def test_lean_models_are_written_without_paths_of_this_machine(tmp_path: Path) -> None:
    model = _tower([1, 1, 1], 0)
    lean = _lean(model, tmp_path)
    assert str(tmp_path).encode() in lean.SerializeToString()
    written = unmapped(lean).SerializeToString()
    assert str(tmp_path).encode() not in written and b"outside.bin" in written
    whole = whole_model(lean)
    assert [bytes(t.raw_data) for t in whole.graph.initializer] == [t.raw_data for t in model.graph.initializer]
    again = wrap_proto(lean, path=tmp_path / "elsewhere" / "rewritten.onnx")
    assert [file.path for file in again.external] == [tmp_path / "outside.bin"]


def test_no_file_may_claim_to_be_lean(tmp_path: Path) -> None:
    lean = _lean(_tower([1, 1, 1], 0), tmp_path)
    (tmp_path / "claims.onnx").write_bytes(lean.SerializeToString())
    with pytest.raises(InputError, match=r"has the entry 'deploykit\.mapped'"):
        load_model(tmp_path / "claims.onnx")

"""QDQ models by AIMET: read, taken apart and put together again they are what its files say, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnxruntime.quantization import quantize_static

from deploykit.encodings.files import apply_encodings, extract_encodings
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.place import place
from deploykit.encodings.qdq import extract_qdq, read_qdq
from deploykit.encodings.values import Affine
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts
from deploykit.model.nodes import raise_opset
from tables import each_row
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"
LIKE_OTHERS = ("cnn_bnfold/", "cnn/w8a16", "mlp/w8a16", "vit/w8a16", "mix-omit")
MODELS = [path for path in sorted(AIMET.rglob("*.qdq.onnx")) if not any(name in str(path) for name in LIKE_OTHERS)]
MLP = AIMET / "mlp"

# QDQ models hold scales in float32, the files hold doubles: half a unit in the last place.
SINGLE = 1.2e-7
GraphOf = Callable[[str], GraphFacts]


def run(model: onnx.ModelProto | Path, feed: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return list(ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feed))


@each_row("path", *MODELS)
def test_fixtures_read_back_and_computed_again_are_the_same(path: Path, graph_of: GraphOf) -> None:
    model, stem = onnx.load(path), path.name.removesuffix(".qdq.onnx").removesuffix("-prequant-int32bias")
    found, extracted = read_qdq(model, source=path.name), extract_qdq(model)
    truth = place(read_encodings(path.with_name(f"{stem}.v2.0.0.encodings")), graph_of(path.parent.name))
    for difference in diff(truth, found, tolerance=SINGLE, grid_only=True):
        # Without prequantization no int32 goes into the model, since QuantizeLinear cannot make one.
        assert difference.kind == "only-first" and "int32bias" not in path.name, difference
        assert truth.entries[difference.name].dtype in ("int32", "uint32")
    for entry in found:
        theirs = truth.entries[entry.name]
        assert entry.is_param == theirs.is_param, entry.name
        if isinstance(entry.value, Affine) and isinstance(theirs.value, Affine) and entry.dtype == theirs.dtype:
            assert np.array_equal(entry.value.scale, theirs.value.scale.astype(np.float32))
    assert not extracted.kept and not diff(extracted.encodings, found)
    assert {e.name: e.is_param for e in extracted.encodings} == {e.name: e.is_param for e in found}
    assert not {node.op_type for node in extracted.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    made = insert_qdq(extracted.model, extracted.encodings, bias="encoded", unsigned_activations=False)
    onnx.checker.check_model(made.model)
    feed = feed_of(path)
    for wanted, got in zip(run(model, feed), run(made.model, feed), strict=True):
        np.testing.assert_array_equal(wanted, got)


def feed_of(path: Path) -> dict[str, Any]:
    with np.load(str(path).replace("-prequant-int32bias", "").replace(".qdq.onnx", ".io.npz")) as data:
        return {key.split(":", 1)[1]: data[key] for key in data.files if key.startswith("input.0:")}


# Reading single pairs.

U8 = np.asarray(0, np.uint8)
PAIR = "x_int = QuantizeLinear (x, s, z)  h = DequantizeLinear (x_int, s, z)  y = Relu (h)"


def model(body: str, made: str = "y", given: str = "float[2,4] x", **stored: Any) -> onnx.ModelProto:
    proto = text_model(given, body, made, opset=21, **stored)
    proto.opset_import.add(domain="com.microsoft", version=1)
    return proto


def test_scales_outside_of_the_model() -> None:
    proto = model(PAIR, s=0.5, z=U8)
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(InputError, match="reads 's', which is stored outside of the model and was not given"):
        read_qdq(proto)
    (entry,) = read_qdq(proto, read_tensor=lambda name: np.array(0.25) if name == "s" else None)
    value = entry.value
    assert isinstance(value, Affine) and float(value.scale) == 0.25


def test_weights_in_eight_bit_floats_are_their_values() -> None:
    model = text_model("float[3,4] x", "d=DequantizeLinear (w, s, z) y=MatMul (x, d)", "float[n,2] y", opset=19, s=0.5)
    for name, shape in (("w", (4, 2)), ("z", ())):
        values = [1.5] * 8 if shape else [0.0]
        model.graph.initializer.append(onnx.helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, shape, values))
    taken = extract_qdq(model)
    (value,) = (entry.value for entry in taken.encodings)
    feed = {"x": np.eye(3, 4, dtype=np.float32)}
    assert value.dtype == "float8e4m3fn" and not taken.kept
    np.testing.assert_array_equal(run(taken.model, feed)[0], run(model, feed)[0])


def test_operators_that_changed_are_converted_or_said() -> None:
    old = text_model("float[2,3] x", "y = ReduceSum <axes = [1]> (x)", "float[2,1] y", opset=11)
    (got,) = run(raise_opset(old, 21), {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    np.testing.assert_array_equal(got, [[3.0], [12.0]])
    with pytest.raises(InputError, match="the model cannot be raised from operator set 11 to 21") as caught:
        raise_opset(text_model("float[2] x", "y = NoSuchOperator (x)", "float[2] y", opset=11), 21)
    assert caught.value.next == "export it with a newer operator set"


# ``encodings apply`` and ``extract`` on files.


@each_row("variant", "w8a16", "bq-w4a16", "lpbq-w4a16")
def test_there_and_back_and_there_again(tmp_path: Path, variant: str) -> None:
    source, quantized = MLP / f"{variant}.v2.0.0.encodings", tmp_path / "q.onnx"
    applied = apply_encodings(MLP / "model.onnx", source, quantized, bias="encoded")
    taken = extract_encodings(quantized, tmp_path / "f.onnx")
    (tmp_path / "e.encodings").write_text(taken.encodings)
    assert not applied.skipped and not taken.kept
    before, after = read_encodings(source), read_encodings(tmp_path / "e.encodings")
    assert {e.name: e.dtype for e in before} == {e.name: e.dtype for e in after}
    again = apply_encodings(tmp_path / "f.onnx", tmp_path / "e.encodings", tmp_path / "q2.onnx", bias="encoded")
    assert again.placed == applied.placed
    feed = {"hidden_states": np.random.default_rng(1).normal(size=(1, 8, 64)).astype(np.float32)}
    np.testing.assert_array_equal(run(quantized, feed)[0], run(tmp_path / "q2.onnx", feed)[0])


def test_what_a_quantizer_left_to_saturation_is_computed_again(tmp_path: Path) -> None:
    """ONNX Runtime's quantizer takes a Relu and a Clip away in front of a pair, and 1e-9 is nothing on a grid."""
    stored = "<float[4,3,1,1] w = {1,-2,1,0.5,1,-1,2,0,1,-1,1,1},"
    stored += " float n = {3}, float a = {0}, float b = {6}, float e = {1e-9}>"
    body = "c = Conv (x, w) r = Relu (c) d = Conv (x, w) s = Add (d, n) h = Clip (s, a, b) y = Mul (r, h)"
    body += "q = Mul (r, r) t = Add (q, e) l = Log (t) z = Mul (l, h)"
    shapes = "g (float[1,3,4,4] x) => (float[1,4,4,4] y, float[1,4,4,4] z)"
    whole = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {shapes} {stored} {{ {body} }}')
    onnx.save(whole, tmp_path / "m.onnx")
    feeds = [{"x": np.random.default_rng(seed).normal(0, 3, (1, 3, 4, 4)).astype(np.float32)} for seed in range(4)]
    paths = str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx")
    quantize_static(*paths, SimpleNamespace(get_next=iter([*feeds, None]).__next__))
    quantized = onnx.load(paths[1])
    assert not {node.op_type for node in quantized.graph.node} & {"Clip", "Relu"}
    extracted = extract_qdq(quantized, saturate=True).model
    for feed in feeds:
        for wanted, found, given in zip(*(run(one, feed) for one in (whole, extracted, quantized)), strict=True):
            assert np.abs(found - wanted).max() < 2 * np.abs(given - wanted).max()

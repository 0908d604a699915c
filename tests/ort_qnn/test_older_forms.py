"""What an older provider lacks is written with what it has, equal for every value; what would not be equal stays."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from changes import applied
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit_ort_qnn.forms.lacking import older_forms
from text_models import text_model

RNG = np.random.default_rng(5)
ROW = "float[1,12] x"


def grids(bits: int = 16, **ranges: tuple[float, float]) -> EncodingSet:
    """Unsigned grids; names that share one are joined by ``_``."""
    kind = GridKind(bits=bits, signed=False)
    entries = {
        name: Encoding(name=name, value=affine_for_range(*ends, kind))
        for names, ends in ranges.items()
        for name in names.split("_")
    }
    return EncodingSet(version="2", entries=entries)


def run(model: Any, feed: dict[str, Any]) -> Any:
    """As the graph says: the optimizer of ONNX Runtime 1.32 computes a Gemm between pairs less exactly."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def feed_of(model: Any) -> dict[str, Any]:
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        made = RNG.normal(size=[dim.dim_value for dim in kind.shape.dim])
        found[value.name] = made > 0 if kind.elem_type == onnx.TensorProto.BOOL else made.astype(np.float32)
    return found


NOTHING = EncodingSet(version="2", entries={})
TOP = "v, i = TopK (x, k)  [it] y = Mod %s (i, n)"
GATHERED = "[it] y = Gather <axis = 1> (m, i)"
POOLED = text_model(
    "float[1,5,4] x, float[1,4] b",
    "[it] a = Gather <axis = 1> (x, first)  c = Neg (b)  y = Concat <axis = 1> (a, c)",
    "float[1,8] y",
    first=-1,
)
GUARDED = text_model(ROW, "p = Relu (x) [it] b = IsNaN (p) q = Where (b, zero, p) y=Neg(q)", "float[1,12] y", zero=0.0)


GATED = text_model(
    "float[1,16,4] x, float[1,16,4] b",
    "s = Add (x, b)  [it] g = Sigmoid (s)  y = MatMul (g, w)",
    "float[1,16,8] y",
    w=RNG.normal(size=(4, 8)).astype(np.float32),
)
WHOLE: dict[str, Any] = {"k": [12], "n": 5}
SHAPED = text_model("float[2,6] x", "[it] y = Reshape <allowzero = 1> (x, s)", "float[3,4] y", s=[3, 4])
WRITTEN: dict[str, tuple[str, Any, EncodingSet]] = {
    "the remainder of indices": ("mod", text_model(ROW, TOP % "", "int64[1,12] y", **WHOLE), NOTHING),
    "a signed remainder": ("mod", text_model(ROW, TOP % "<fmod = 1>", "int64[1,12] y", **WHOLE), NOTHING),
    "what lies on integers is never NaN": ("isnan", GUARDED, grids(p_q_y=(0, 6.5))),
    "a shape without zero": ("allowzero", SHAPED, NOTHING),
    "a reciprocal": ("reciprocal", text_model(ROW, "[it] y = Reciprocal (x)", "float[1,12] y"), NOTHING),
    "truth values": ("bool-gather", text_model("bool[2,3] m", GATHERED, "bool[2,1,3] y", i=[[1, 0, 2]]), NOTHING),
    "all in order": ("bool-gather", text_model("bool[2,3] m", GATHERED, "bool[2,1,3] y", i=[[0, 1, 2]]), NOTHING),
    "a row before a Concat": ("gather-before-concat", POOLED, grids(x_a=(-3, 3), b_c_y=(-2, 2))),
    "a Sigmoid in front": ("sigmoid-before-linear", GATED, grids(x_b_s=(-2, 2), g=(0, 1), y=(-4, 4))),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_another_form_is_equal(name: str) -> None:
    """What is written, and what is not, stands in ``graphs.txt``."""
    lacks, model, given = WRITTEN[name]
    made, _, done = applied(older_forms({lacks}), model, given)
    assert done == {f"without-{lacks}": ("it",)}
    onnx.checker.check_model(made, full_check=True)
    feed = feed_of(model)
    wanted, found = run(model, feed), run(made, feed)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def symmetric(name: str, bits: int, scale: Any, axis: int | None = None) -> Encoding:
    values = np.asarray(scale, np.float64)
    value = Affine(bits=bits, signed=True, scale=values, zero_point=values * 0, symmetric=True, axis=axis)
    return Encoding(name=name, value=value, is_param=name == "w")


def layer(body: str, shape: tuple[int, ...] = (3, 6), *, turned: bool = False) -> Any:
    stored = {"w": (4, 6) if turned else (6, 4), "b": (4,)}
    weights = {name: RNG.normal(size=size).astype(np.float32) for name, size in stored.items()}
    sizes = ",".join(map(str, shape))
    return text_model(f"float[{sizes}] x", body, f"float[{sizes[:-1]}4] y", opset=21, **weights)


def entries(axis: int) -> EncodingSet:
    weight = symmetric("w", 8, np.linspace(0.01, 0.03, 4), axis)
    return EncodingSet(version="2", entries={"w": weight, **{name: symmetric(name, 16, 0.001) for name in "xy"}})


GEMM, PRODUCT = "[fc] y = Gemm %s (x, w, b)", "[fc] p = MatMul (x, w)  y = Add (%s)"
LAYERS = {
    "Gemm": (layer(GEMM % ""), 1),
    "Gemm, transposed": (layer(GEMM % "<transB = 1>", turned=True), 0),
    "MatMul, rank 2": (layer(PRODUCT % "p, b"), 1),
    "MatMul, rank 4": (layer(PRODUCT % "b, p", (2, 3, 5, 6)), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_as_convolution_is_the_same_with_and_without_its_grids(name: str) -> None:
    model, axis = LAYERS[name]
    made, encodings, done = applied(older_forms({"channel-bias"}), model, entries(axis))
    assert done["without-channel-bias"] == ("fc",)
    assert [node.op_type for node in made.graph.node] == ["Reshape", "Transpose", "Conv", "Transpose", "Reshape"]
    onnx.checker.check_model(made, full_check=True)
    feed = feed_of(model)
    np.testing.assert_allclose(run(made, feed), run(model, feed), rtol=1e-5, atol=1e-6)
    given, quantized = (
        insert_qdq(one, values, bias="int32").model for one, values in ((model, entries(axis)), (made, encodings))
    )
    if name.startswith("Gemm"):  # only there is the bias of the layer as it was known to be one
        np.testing.assert_allclose(run(quantized, feed), run(given, feed), atol=0.0011)
    conv = next(node for node in quantized.graph.node if node.op_type == "Conv")
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    (bias,) = [node for node in quantized.graph.node if conv.input[2] in node.output]
    assert stored[bias.input[0]].data_type == onnx.TensorProto.INT32 and list(stored[bias.input[1]].dims) == [4]

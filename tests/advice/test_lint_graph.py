"""Advice of the lint rules about graphs, followed on their triggering cases: mostly another graph for the same work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

GRAPHS = "qualcomm/test_lint_graph_rules.py"
Way = Callable[[Any], Any]


def graph(text: str, **stored: Any) -> Way:
    """A case of this graph in ONNX's text form, with stored tensors ``(type, shape, value)``."""
    return lambda bench: {"graph": text, "stored": stored}


def one(op: str, *shapes: str, **stored: Any) -> Way:
    """A graph of one operator."""
    return lambda bench: bench.module(GRAPHS).one(op, *shapes, stored=stored)


def asked(*rewrites: str) -> Way:
    """The whole run of the triggering case, as it is and with rewrites asked for by name."""

    def ask(bench: Any) -> Any:
        case = bench.trigger("QNN216")
        model = bench.module("qualcomm/conftest.py").build(case).model.proto
        assert "QNN216" in {finding.code for finding in bench.ask(model)}
        return [*bench.ask(model, rewrite=rewrites), *bench.ask(model, backend="ort-qnn", rewrite=rewrites)]

    return ask


def float_model(bench: Any) -> Any:
    """The QDQ model is advised to come as float model with encodings, and that helps."""
    vit = bench.aimet / "vit"
    (told,) = (f for f in bench.ask(vit / "w8a8.qdq.onnx", backend="ort-qnn") if f.code == "QNN216")
    assert told.hint == "give the float model with --encodings and --rewrite linear-to-conv"
    encodings = vit / "w8a8.v1.0.0.encodings"
    return bench.ask(vit / "model.onnx", backend="ort-qnn", encodings=encodings, rewrite=("linear-to-conv",))


def shuffle(bench: Any) -> Any:
    """A pixel shuffle of rank 6, which only moves."""
    return {"graph": bench.module("qualcomm/test_lint_graph_rules.py").SHUFFLE}


def equal(bench: Any, given: Any, text: str, **stored: Any) -> Any:
    """The advised form as a case, after it was shown to compute what a graph computes: a given one, or a rule's."""
    triggering = bench.trigger(given) if isinstance(given, str) else given
    build = bench.module("qualcomm/conftest.py").build
    case = {"graph": text, "stored": stored}
    before, after = (build(one).model.proto for one in (triggering, case))
    from deploykit.accuracy.simulate.sessions import Session

    rng = np.random.default_rng(0)
    feed = {
        value.name: rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in before.graph.input
    }
    expected, advised = (Session(model).run(feed)["y"] for model in (before, after))
    np.testing.assert_allclose(advised, expected, rtol=1e-4, atol=1e-5)
    return case


def pixels_to_channels(bench: Any) -> Any:
    return equal(
        bench,
        shuffle(bench),
        "g (float[1,4,8,8] x) => (float[1,16,4,4] y) <int64[16] o = {0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15}> "
        "{ d = SpaceToDepth <blocksize = 2> (x)  y = Gather <axis = 1> (d, o) }",
    )


def merged_by_itself(bench: Any) -> Any:
    """deploykit merges the dimensions of pixel shuffles and of windows by itself."""
    build = bench.module("qualcomm/conftest.py").build
    models = [build(case).model.proto for case in (shuffle(bench), {"graph": WINDOWS})]
    found = [bench.ask(model, backend=backend) for model in models for backend in ("qnn-htp", "ort-qnn")]
    assert all({"QNN200", "DK210"} <= {finding.code for finding in each} for each in found)
    return [finding for each in found for finding in each]


def two_steps(bench: Any) -> Any:
    """A row of 2,097,153 is 3 times 699,051: maximum and sum of the parts, then of all."""
    row = "x) => (float[1,2097153] y) <int64[3] apart = {1,3,699051}, int64[2] whole = {1,2097153}>"
    text = f"""g (float[1,2097153] {row} {{
      r = Reshape (x, apart)  m = ReduceMax <axes = [2]> (r)  top = ReduceMax <axes = [1]> (m)
      c = Sub (r, top)  e = Exp (c)  s = ReduceSum <keepdims = 1> (e, last)  t = ReduceSum <keepdims = 1> (s, middle)
      d = Div (e, t)  y = Reshape (d, whole) }}"""
    return equal(bench, "QNN204", text, last=("int64", (1,), 2), middle=("int64", (1,), 1))


def without_suppression(bench: Any) -> Any:
    """The model up to the suppression, whose boxes and scores the host gets."""
    return {
        "graph": "g (float[1,8,4] b, float[1,2,8] s) => (float[1,8,4] boxes, float[1,2,8] scores) "
        "{ boxes = Identity (b)  scores = Identity (s) }"
    }


def reduced_before(bench: Any) -> Any:
    """What is added at each place is summed up first: with the places as rows of a matrix, a MatMul."""
    return {
        "graph": "g (float[8] x, float[8,2] places, float[2,1] u) => (float[8] y) <int64[1] flat = {8}> "
        "{ p = MatMul (places, u)  s = Reshape (p, flat)  y = Add (x, s) }"
    }


def opset_23(bench: Any) -> Any:
    """The norm as one operator; onnxruntime knows it."""
    text = "g (float[1,4,8] x) => (float[1,4,8] y) { y = RMSNormalization <axis = -1> (x, s) }"
    return {"graph": text, "stored": {"s": ("float", (8,), 1.0)}, "opset": 23}


def space_to_depth(bench: Any) -> Any:
    """Two by two pixels become channels, and the kernel of 1 x 1 becomes one over the four of them."""
    case = bench.trigger("QNN220")
    assert case["stored"]["w"][1] == (8, 4, 1, 1)
    text = "g (float[1,4,128,128] x) => (float[1,32,64,64] y) { d = SpaceToDepth <blocksize = 2> (x)  y = Conv (d, w) }"
    return {"graph": text, "stored": {"w": ("float", (32, 16, 1, 1), 0.1)}}


WINDOWS = """g (float[1,8,8,4] x) => (float[4,16,4] y) <int64[6] a = {1,2,4,2,4,4}, int64[3] b = {4,16,4}> {
  wide = Reshape (x, a)  moved = Transpose <perm = [0,1,3,2,4,5]> (wide)  y = Reshape (moved, b) }"""


def wide(channels: int) -> dict[str, Any]:
    """Scale and bias of a normalization."""
    return {"s": ("float", (channels,), 1.0), "b": ("float", (channels,), 0.0)}


NORM = wide(8)
CENTRED = (
    "centre = ReduceMean <axes = [1,2]> (x)  c = Sub (x, centre)  q = Mul (c, c)  "
    "mean = ReduceMean <axes = [1,2]> (q)  safe = Add (mean, eps)  root = Sqrt (safe)  n = Div (c, root)  "
)

WAYS: dict[str, Way] = {
    "QNN200 merged": merged_by_itself,
    "QNN204 split": two_steps,
    "QNN206 one axis": lambda bench: equal(
        bench,
        "QNN206",
        "g (float[1,8,8] x) => (float[1,8,8] y) <int64[2] flat = {1,64}, int64[3] back = {1,8,8}> "
        "{ r = Reshape (x, flat)  n = LayerNormalization <axis = -1> (r, s, b)  y = Reshape (n, back) }",
        s=("float", (64,), 1.0),
        b=("float", (64,), 0.0),
    ),
    "QNN206 written out": lambda bench: equal(
        bench,
        "QNN206",
        f"g (float[1,8,8] x) => (float[1,8,8] y) {{ {CENTRED} m = Mul (n, s)  y = Add (m, b) }}",
        **NORM,
        eps=("float", (), 1e-5),
    ),
    "QNN207 reshaped": lambda bench: equal(
        bench,
        "QNN207",
        "g (float[1,8,4,4,4] x) => (float[1,8,4,4,4] y) <int64[4] flat = {1,8,16,4}, int64[5] back = {1,8,4,4,4}> "
        "{ r = Reshape (x, flat)  n = InstanceNormalization (r, s, b)  y = Reshape (n, back) }",
        **NORM,
    ),
    "QNN208 replaced": lambda bench: equal(
        bench,
        "QNN208",
        "g (float[1,4] x) => (float[1,1] y) { a, b, c, d = Split <axis = 1> (x) "
        "e = Mul (a, b)  f = Mul (c, d)  y = Mul (e, f) }",
    ),
    "QNN209 written out": lambda bench: {
        "graph": "g (float[1,4] x) => (float[1,1] y) "
        "{ q = Mul (x, x)  s = ReduceSum <keepdims = 1> (q, a)  y = Sqrt (s) }",
        "stored": {"a": ("int64", (1,), 1)},
        "encodings": {"x": {"type": "uint8"}},
    },
    "QNN212 linear": graph(
        'g (float[1,4,8,8] x, float[1,8,8,2] p) => (float[1,4,8,8] y) { y = GridSample <mode = "bilinear"> (x, p) }'
    ),
    "QNN212 Gather": graph(
        "g (float[1,4,64] x, int32[1,4,64] i) => (float[1,4,64] y) { y = GatherElements <axis = 2> (x, i) }"
    ),
    "QNN213 cut": without_suppression,
    "QNN214 reduced before": reduced_before,
    "QNN216 --rewrite linear-to-conv": asked("linear-to-conv"),
    "QNN216 float model": float_model,
    "QNN218 Conv2d": lambda bench: equal(
        bench,
        "QNN218",
        "g (float[1,4,8] x) => (float[1,4,8] y) <int64[4] wide = {1,4,1,8}, int64[3] back = {1,4,8}> "
        "{ r = Reshape (x, wide)  c = Conv (r, w)  y = Reshape (c, back) }",
        w=("float", (4, 4, 1, 1), 0.1),
    ),
    "QNN219 RMSNormalization": opset_23,
    "QNN220 space to depth": space_to_depth,
    "QNN221 SpaceToDepth": pixels_to_channels,
    "QNN222 smaller": one(
        "InstanceNormalization (x, s, b)", "1,64,128,128", s=("float", (64,), 1), b=("float", (64,), 0)
    ),
    "QNN222 another normalization": one("LayerNormalization <axis = -1> (x, s, b)", "1,64,512,512", **wide(512)),
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)


def test_the_norm_as_one_operator_goes_through(bench: Any) -> None:
    """The whole run takes opset 23, and onnxruntime computes the same as of the written-out form."""
    model = bench.module("qualcomm/conftest.py").build(opset_23(bench)).model.proto
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(8, np.float32), "s"))
    onnx.checker.check_model(model, full_check=True)
    assert not [finding for finding in bench.ask(model) if finding.blocks]

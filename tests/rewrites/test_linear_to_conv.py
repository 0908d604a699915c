"""Linear layers as convolutions, and functions put together again."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import simulate
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float8, Lpbq, Value
from deploykit.flow.cure import rewrite
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model


def _linear(batch: int, tokens: int, width: int, out: int, *, bias: str, opset: int, seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    weights, shift = rng.normal(size=(width, out)).astype(np.float32), rng.normal(size=out).astype(np.float32)
    body = {"none": "y = MatMul (x, w)", "last": "p = MatMul (x, w)  y = Add (p, b)"}
    body["first"] = body["last"].replace("p, b", "b, p")
    return text_model(f"float[{batch},{tokens},{width}] x", body[bias], opset=opset, w=weights, b=shift)


SHAPE = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=30, deadline=None)
@given(shape=SHAPE, bias=st.sampled_from(["none", "first", "last"]), opset=st.sampled_from([11, 13, 17]))
def test_the_conv_equals_the_linear(shape: tuple[int, int, int, int], bias: str, opset: int) -> None:
    model = _linear(*shape, bias=bias, opset=opset, seed=sum(shape))
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, None, ["linear-to-conv"], feeds)
    assert done.kept == ("linear-to-conv",), done.steps[0].reason
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(done.model))
    assert not {"MatMul", "Add"} & {node.op_type for node in done.model.graph.node}
    for feed in feeds:
        wanted, got = Session(model).run(feed)["y"], Session(done.model).run(feed)["y"]
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def _weights(kind: str) -> Value:
    rng = np.random.default_rng(5)
    if kind == "channel":
        scale = rng.uniform(0.01, 0.02, 6)
        return Affine(bits=8, signed=True, scale=scale, zero_point=np.zeros(6), axis=1)
    scale = rng.uniform(0.1, 0.2, (2, 6))
    if kind == "float8":
        return Float8(dtype="float8e4m3fn", scale=scale[0], axis=1)
    if kind == "block":
        zero_point = rng.integers(-3, 3, (2, 6)).astype(float)
        return Affine(bits=4, signed=True, scale=scale, zero_point=zero_point, block_axis=0, block_size=4)
    blocks = rng.integers(1, 17, (2, 6)).astype(float)
    channels = rng.uniform(0.01, 0.02, (1, 6))
    return Lpbq(
        bits=4, decompressed_bits=8, channel_scale=channels, block_scale=blocks, axis=1, block_axis=0, block_size=4
    )


@each_row("kind", "channel", "block", "lpbq", "float8")
def test_the_simulation_with_carried_encodings_is_equal(kind: str) -> None:
    model = _linear(1, 4, 8, 6, bias="last", opset=17, seed=1)
    grid = GridKind(bits=16, signed=False)
    entries = {
        "x": Encoding(name="x", value=affine_for_range(-3, 3, grid)),
        "w": Encoding(name="w", value=_weights(kind), is_param=True),
        "y": Encoding(name="y", value=affine_for_range(-9, 9, grid)),
    }
    encodings = EncodingSet(version="2.0.0", entries=entries)
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, encodings, ["linear-to-conv"], feeds)
    assert done.encodings is not None
    before, after = simulate(model, encodings, feeds), simulate(done.model, done.encodings, feeds)
    step = before.fidelity[0].step
    assert step is not None
    for a, b in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(a["y"], b["y"], atol=step * 1.01)
    assert after.sqnr_db == pytest.approx(before.sqnr_db, abs=0.5)


FEED = {"x": np.linspace(-6, 6, 100, dtype=np.float32).reshape(2, 50)}
NUMBERS: dict[str, Any] = {"half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "six": 6.0, "zero": 0.0, "root2": 2**0.5}
NUMBERS |= {"inverse": 0.5**0.5, "small": 0.044715, "root": (2 / np.pi) ** 0.5}
ERF = "scaled = {}  erf = Erf (scaled)  gate = Add (erf, one)"
"""1 + erf(x / sqrt(2))"""
TANH = "cube = {}  bent = Mul (cube, small)  total = Add (x, bent)  inner = Mul (total, root)  tanh = Tanh (inner)"
TANH += "  gate = Add (tanh, one)"
"""1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))"""
ENDS = {
    "halved = Mul (x, half)  y = Mul (halved, gate)": 1.0,
    "product = Mul (gate, x)  y = Mul (half, product)": 1.0,
    "halved = Mul (gate, half)  y = Mul (x, halved)": 1.0,
    "product = Mul (x, gate)  y = Div (product, two)": 1.0,
    "y = Mul (x, gate)": 2.0,  # what is left where the 0.5 was folded into the weights of a neighbour
}
CLIPPED = "total = Add (x, three)  gate = Clip (total, zero, six)"
HARD = "gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)"


def written(body: str, made: str = "y", opset: int = 17, given: str = "float[2,50] x", **other: Any) -> onnx.ModelProto:
    return text_model(given, body, made, opset=opset, **(NUMBERS | other))


def check(model: onnx.ModelProto, name: str, op_types: Iterable[str]) -> onnx.ModelProto:
    done = rewrite(model, None, [name], [FEED])
    assert done.kept == (name,), done.steps
    assert [node.op_type for node in done.model.graph.node if node.op_type != "Constant"] == list(op_types)
    return done.model


@each_row(("end", "factor"), *ENDS.items())
def test_a_gelu_in_its_forms(end: str, factor: float) -> None:
    left = ["Gelu"] if factor == 1.0 else ["Gelu", "Mul"]
    for scaled in ("Div (x, root2)", "Mul (x, inverse)"):
        body = f"{ERF.format(scaled)}  {end}"
        # Scalars are initializers, or come out of Constant nodes.
        constants = "one = Constant <value = float {1.0}> ()  half = Constant <value = float {0.5}> ()  "
        for model in (written(body), text_model("float[2,50] x", constants + body, **{n: NUMBERS[n] for n in REST})):
            done = check(model, "fuse-gelu", left)
            assert done.graph.node[-len(left)].domain == "com.microsoft"
            if factor != 1.0:
                assert numpy_helper.to_array(done.graph.initializer[-1]) == factor
    for cube in ("Pow (x, three)", "Mul (square, x)"):
        square = "square = Mul (x, x)  " if "square" in cube else ""
        done = check(written(f"{square}{TANH.format(cube)}  {end}"), "fuse-gelu", left)
        assert done.graph.node[0].attribute[0].s == b"tanh" and done.opset_import[0].version == 20


REST = NUMBERS.keys() - {"one", "half"}


@each_row(
    ("body", "left"),
    *((f"{HARD}  y = Mul ({pair})", "HardSwish") for pair in ("x, gate", "gate, x")),
    *((f"{CLIPPED}  y = Mul ({pair})", "HardSwish Mul") for pair in ("x, gate", "gate, x")),
    (f"{CLIPPED}  product = Mul (x, gate)  y = Div (product, six)", "HardSwish"),
)
def test_a_hardswish(body: str, left: str) -> None:
    check(written(body), "fuse-hardswish", left.split())

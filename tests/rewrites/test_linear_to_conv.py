"""linear-to-conv: equal float results, encodings carried over so that the simulation is equal too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import simulate
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Lpbq, Value
from deploykit.flow.cure import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model

TRANSFORM = load_transform("linear-to-conv")


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
    if kind == "block":
        zero_point = rng.integers(-3, 3, (2, 6)).astype(float)
        return Affine(bits=4, signed=True, scale=scale, zero_point=zero_point, block_axis=0, block_size=4)
    blocks = rng.integers(1, 17, (2, 6)).astype(float)
    channels = rng.uniform(0.01, 0.02, (1, 6))
    return Lpbq(
        bits=4, decompressed_bits=8, channel_scale=channels, block_scale=blocks, axis=1, block_axis=0, block_size=4
    )


@each_row("kind", ["channel", "block", "lpbq"])
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


def test_a_rank_2_matmul_is_refused_and_a_product_that_something_else_reads_keeps_its_add() -> None:
    weights = np.ones((8, 2), np.float32)
    matched = TRANSFORM.match(text_model("float[4,8] x", "y = MatMul (x, w)", w=weights))
    assert not matched and "rank 2" in matched.refusals[0].reason
    model = text_model("float[1,4,8] x", "p = MatMul (x, w)  y = Add (p, b)", "y, p", w=weights, b=[1.0, 2.0])
    done = rewrite(model, None, ["linear-to-conv"], random_feeds(model))
    assert done.kept and "Add" in {node.op_type for node in done.model.graph.node}

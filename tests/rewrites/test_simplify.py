"""simplify: equal results, fewer nodes, bounded memory, and only entries of what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.cure import Rewriting, rewrite
from deploykit.model.graph import GraphCopy
from deploykit.rewrites.contract import load_transform
from deploykit.rewrites.fold import fold
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model

MATCH = load_transform("simplify").match


def simplified(model: onnx.ModelProto, encodings: EncodingSet | None = None) -> Rewriting:
    """The model simplified, with the same outputs and results bit for bit."""
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, encodings, ["simplify"], feeds)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(done.model))
    assert [item.name for item in done.model.graph.output] == [item.name for item in model.graph.output]
    for feed in feeds:
        before, after = Session(model).run(feed), Session(done.model).run(feed)
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
    return done


def ops(done: Rewriting) -> str:
    return " ".join(node.op_type for node in done.model.graph.node if node.op_type != "Constant")


def entries(names: str) -> EncodingSet:
    grid = affine_for_range(-1.0, 1.0, GridKind(bits=16, signed=False, symmetric=False))
    return EncodingSet(version="1.0.0", entries={name: Encoding(name=name, value=grid) for name in names.split()})


# A mask of ones as large as the input asks, shifted to zeros and minus infinity, as exporters write it.
MASK = "shape = Shape (x)  rows = Gather (shape, one)  sizes = Unsqueeze (rows, front)"
MASK += "  both = Concat <axis = 0> (sizes, columns)  zeros = ConstantOfShape (both)  hidden = Equal (zeros, nought)"
MASK += "  mask = Where (hidden, never, zeros)  masked = Add (x, mask)  y = Softmax <axis = -1> (masked)"
NUMBERS: dict[str, Any] = {"one": 1, "front": [0], "columns": [4], "nought": 1.0, "never": -np.inf}


def test_a_mask_of_static_size_is_stored_and_a_dynamic_one_stays() -> None:
    done = simplified(text_model("float[2,3,4] x", MASK, "float[2,3,4] y", **NUMBERS))
    assert ops(done) == "Add Softmax" and [tensor.name for tensor in done.model.graph.initializer] == ["mask"]
    dynamic = text_model("float[2,rows,4] x", MASK, "float[2,rows,4] y", **NUMBERS)
    for node in dynamic.graph.node:
        node.name = node.output[0]
    assert "shape" not in [label for site in MATCH(dynamic).sites for label in site.nodes]
    assert "ConstantOfShape" in ops(simplified(dynamic))


ANGLES = 'angles = Einsum <equation = "i,j->ij"> (places, rates)  waves = Sin (angles)  y = Add (x, waves)'
COPIES = "c1 = Identity (x)  c2 = Identity (c1)  same = Cast <to = 1> (c2)  flat = Reshape (same, shape)"
COPIES += "  still = Transpose <perm = [0, 1]> (flat)  y = Relu (still)"
TURNED = "wt = Transpose <perm = [1, 0]> (w)  y = MatMul (x, wt)"
SCALED = "scaled = Mul (a, b)  copy = Identity (x)  sum = Add (copy, scaled)  y = Relu (sum)"
STORED: dict[str, Any] = {"places": [0.0, 1.0, 2.0, 3.0], "rates": [1.0] * 3, "shape": [2, 3], "a": [2.0], "b": [3.0]}
STORED |= {"w": np.ones((4, 3), np.float32)}


@each_row(
    ("given_", "body", "before", "left", "after"),
    [
        ("float[2,3] x", COPIES, "", "Relu", None),
        # a position embedding is stored with its entry
        ("float[4,3] x", ANGLES, "x angles waves y", "Add", "x waves y"),
        # entries of kept tensors stay, and a named copy too
        ("float[2,3] x", SCALED, "x copy a scaled sum y", "Identity Add Relu", "x copy scaled sum y"),
        # folded without an entry of its own, a weight would no longer be quantized
        ("float[2,3] x", TURNED, "w", "Transpose MatMul", "w"),
        ("float[2,3] x", TURNED, "w wt", "MatMul", "wt"),
    ],
)
def test_what_hands_on_or_is_constant_goes(given_: str, body: str, before: str, left: str, after: str | None) -> None:
    done = simplified(text_model(given_, body, **STORED), entries(before) if before else None)
    assert ops(done) == left
    assert after is None or (done.encodings is not None and set(done.encodings.entries) == {*after.split()})


QUANTIZED = "wq = QuantizeLinear (w, scale, zero)  wd = DequantizeLinear (wq, scale, zero)  y = MatMul (x, wd)"
WORK = "copy = Identity (x)  turned = Transpose <perm = [1, 0]> (x)  narrow = Cast <to = 10> (turned)"
WORK += "  wide = Cast <to = 1> (narrow)  y = Relu (wide)"


@each_row(
    "model",
    [
        text_model("float[2,3] x", WORK, "y, float[2,3] copy"),
        text_model("float[2,4] x", QUANTIZED, w=STORED["w"], scale=0.1, zero=np.uint8(0)),  # grids of a QDQ model
        text_model("float[2] x", "y = Add (x, a)", a=[1.0, 2.0]),
    ],
)
def test_outputs_grids_and_real_work_stay(model: onnx.ModelProto) -> None:
    matched = MATCH(model)
    assert not matched and matched.reason
    shown = simplified(text_model("float[4,3] x", ANGLES, "y, float[4,3] angles", **STORED))
    assert "angles" in {name for node in shown.model.graph.node for name in node.output}


def test_a_large_result_stays_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit.rewrites.fold.LARGEST_BYTES", 1 << 16)
    fits, body = (1 << 16) // 4 // 1024, "warm = Sigmoid (seed)  wide = Expand (warm, size)  y = Add (x, wide)"
    for columns, left in ((fits, "Add"), (fits + 1, "Expand Add")):
        assert ops(simplified(text_model("float[1024,1] x", body, seed=[[0.5]], size=[1024, columns]))) == left


def test_a_node_that_does_not_run_stays_and_the_rest_is_folded() -> None:
    """ONNX Runtime has no kernel for a Sin of float16: the runnable half of the batch is stored all the same."""
    body = "sine = Sin (half)  wave = Cast <to = 1> (sine)  warm = Sigmoid (one)  scaled = Mul (x, warm)"
    model = text_model("float[2] x", f"{body}  y = Add (scaled, wave)", half=np.array([0.5], np.float16), one=[1.0])
    copy = GraphCopy(model)
    fold(copy)
    assert "warm" in copy.stored and [node.op_type for node in copy.nodes][-2:] == ["Mul", "Add"]

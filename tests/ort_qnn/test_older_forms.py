"""What an older provider lacks is written with what it has, equal for every value; what would not be equal stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit_ort_qnn.older_forms import older_forms

NOTHING = EncodingSet(version="2", entries={})


def model_of(nodes: list[Any], inputs: dict[str, int], outputs: dict[str, int], stored: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, [1, 12]) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, [1, 12]) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: Any, **feed: Any) -> list[Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, feed)
    return found


def remainder_of_indices(fmod: int = 0) -> Any:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], name="top"),
        helper.make_node("Mod", ["i", "n"], ["y"], name="mod", fmod=fmod),
    ]
    stored = {"k": np.array([12]), "n": np.array(5)}
    return model_of(nodes, {"x": TensorProto.FLOAT}, {"y": TensorProto.INT64}, stored)


@pytest.mark.parametrize("fmod", [0, 1])
def test_the_remainder_of_indices_is_equal(fmod: int) -> None:
    model = remainder_of_indices(fmod)
    made, _, done = older_forms(model, NOTHING, {"mod"})
    assert done["without-mod"][1] == ("mod",)
    assert "Mod" not in {node.op_type for node in made.graph.node}
    onnx.checker.check_model(made, full_check=True)
    x = np.random.default_rng(1).random((1, 12)).astype(np.float32)
    assert run(made, x=x)[0].dtype == np.int64
    np.testing.assert_array_equal(run(made, x=x)[0], run(model, x=x)[0])


def test_a_remainder_of_what_may_be_negative_stays() -> None:
    nodes = [helper.make_node("Mod", ["a", "n"], ["y"], name="mod")]
    model = model_of(nodes, {"a": TensorProto.INT64}, {"y": TensorProto.INT64}, {"n": np.array(5)})
    made, _, done = older_forms(model, NOTHING, {"mod"})
    assert not done and made is model


def guarded() -> Any:
    nodes = [
        helper.make_node("Relu", ["x"], ["p"], name="relu"),
        helper.make_node("IsNaN", ["p"], ["bad"], name="nan"),
        helper.make_node("Where", ["bad", "zero", "p"], ["q"], name="guard"),
        helper.make_node("Neg", ["q"], ["y"], name="neg"),
    ]
    stored = {"zero": np.zeros((), np.float32)}
    return model_of(nodes, {"x": TensorProto.FLOAT}, {"y": TensorProto.FLOAT}, stored)


def test_what_lies_on_integers_is_never_nan() -> None:
    step = Affine(bits=16, signed=False, scale=np.asarray(1e-4), zero_point=np.asarray(0.0))
    encodings = EncodingSet(version="2", entries={name: Encoding(name=name, value=step) for name in ("p", "q", "y")})
    made, kept, done = older_forms(guarded(), encodings, {"isnan"})
    assert done["without-isnan"][1] == ("nan",)
    assert [node.op_type for node in made.graph.node] == ["Relu", "Neg"]
    assert set(kept.entries) == {"p", "y"}
    x = np.random.default_rng(1).normal(size=(1, 12)).astype(np.float32)
    np.testing.assert_array_equal(run(made, x=x)[0], run(guarded(), x=x)[0])


def test_what_is_float_may_be_nan() -> None:
    model = guarded()
    made, _, done = older_forms(model, NOTHING, {"isnan", "mod"})
    assert not done and made is model


def test_nothing_is_changed_for_a_provider_that_has_them() -> None:
    model = remainder_of_indices()
    made, _, done = older_forms(model, NOTHING, ())
    assert not done and made is model

"""What an older provider lacks is written with what it has, equal for every value; what would not be equal stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from changes import applied
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit_ort_qnn.forms.lacking import older_forms

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
    made, _, done = applied(older_forms({"mod"}), model, NOTHING)
    assert done["without-mod"] == ("mod",)
    assert "Mod" not in {node.op_type for node in made.graph.node}
    onnx.checker.check_model(made, full_check=True)
    x = np.random.default_rng(1).random((1, 12)).astype(np.float32)
    assert run(made, x=x)[0].dtype == np.int64
    np.testing.assert_array_equal(run(made, x=x)[0], run(model, x=x)[0])


def test_a_remainder_of_what_may_be_negative_stays() -> None:
    nodes = [helper.make_node("Mod", ["a", "n"], ["y"], name="mod")]
    model = model_of(nodes, {"a": TensorProto.INT64}, {"y": TensorProto.INT64}, {"n": np.array(5)})
    made, _, done = applied(older_forms({"mod"}), model, NOTHING)
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
    made, kept, done = applied(older_forms({"isnan"}), guarded(), encodings)
    assert done["without-isnan"] == ("nan",)
    assert [node.op_type for node in made.graph.node] == ["Relu", "Neg"]
    assert set(kept.entries) == {"p", "y"}
    x = np.random.default_rng(1).normal(size=(1, 12)).astype(np.float32)
    np.testing.assert_array_equal(run(made, x=x)[0], run(guarded(), x=x)[0])


def test_what_is_float_may_be_nan() -> None:
    model = guarded()
    made, _, done = applied(older_forms({"isnan", "mod"}), model, NOTHING)
    assert not done and made is model


def test_nothing_is_changed_for_a_provider_that_has_them() -> None:
    model = remainder_of_indices()
    made, _, done = applied(older_forms(()), model, NOTHING)
    assert not done and made is model


def wide(low: float, high: float, *names: str) -> dict[str, Encoding]:
    """One 16-bit grid for several tensors."""
    step = (high - low) / 65535
    value = Affine(bits=16, signed=False, scale=np.asarray(step), zero_point=np.asarray(float(round(-low / step))))
    return {name: Encoding(name=name, value=value) for name in names}


def shaped(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], stored: dict[str, Any]) -> Any:
    ins, outs = (
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in side.items()]
        for side in (inputs, outputs)
    )
    arrays = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reshaped(shape: list[int]) -> Any:
    node = helper.make_node("Reshape", ["x", "s"], ["y"], name="view", allowzero=1)
    return shaped([node], {"x": (1, [2, 6])}, {"y": (1, [3, 4])}, {"s": np.array(shape)})


def test_a_shape_without_zero_needs_no_allowzero() -> None:
    made, _, done = applied(older_forms({"allowzero"}), reshaped([3, 4]), NOTHING)
    assert done["without-allowzero"] == ("view",)
    assert not made.graph.node[0].attribute


def test_a_zero_in_the_shape_keeps_allowzero() -> None:
    made, _, done = applied(older_forms({"allowzero"}), reshaped([0, 4]), NOTHING)
    assert not done and made.graph.node[0].attribute[0].i == 1


def test_a_reciprocal_is_a_division() -> None:
    model = model_of([helper.make_node("Reciprocal", ["x"], ["y"], name="r")], {"x": 1}, {"y": 1}, {})
    made, _, done = applied(older_forms({"reciprocal"}), model, NOTHING)
    assert done["without-reciprocal"] == ("r",) and made.graph.node[0].op_type == "Div"
    x = np.linspace(0.5, 3, 12, dtype=np.float32)[None]
    np.testing.assert_array_equal(run(made, x=x)[0], run(model, x=x)[0])


@pytest.mark.parametrize(("index", "types"), [([[1, 0, 2]], ["Cast", "Gather", "Cast"]), ([[0, 1, 2]], [])])
def test_truth_values_are_gathered_as_numbers(index: list[list[int]], types: list[str]) -> None:
    nodes = [helper.make_node("Gather", ["m", "i"], ["y"], name="g", axis=1)]
    model = shaped(nodes, {"m": (9, [2, 3])}, {"y": (9, [2, 1, 3])}, {"i": np.array(index)})
    made, _, done = applied(older_forms({"bool-gather"}), model, NOTHING)
    assert done["without-bool-gather"] == ("g",)
    assert [node.op_type for node in made.graph.node] == [*types, "Reshape"]
    onnx.checker.check_model(made, full_check=True)
    m = np.random.default_rng(1).random((2, 3)) > 0.5
    np.testing.assert_array_equal(run(made, m=m)[0], run(model, m=m)[0])


def pooled() -> Any:
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["a"], name="row", axis=1),
        helper.make_node("Neg", ["b"], ["c"], name="neg"),
        helper.make_node("Concat", ["a", "c"], ["y"], name="both", axis=1),
    ]
    return shaped(nodes, {"x": (1, [1, 5, 4]), "b": (1, [1, 4])}, {"y": (1, [1, 8])}, {"first": np.array(-1)})


def test_a_row_before_a_concat_is_sliced_on_the_same_grid() -> None:
    encodings = EncodingSet(version="2", entries={**wide(-3, 3, "x", "a"), **wide(-2, 2, "b", "c", "y")})
    made, kept, done = applied(older_forms({"gather-before-concat"}), pooled(), encodings)
    assert done["without-gather-before-concat"] == ("row",)
    sliced = next(node for node in made.graph.node if node.op_type == "Slice")
    assert kept.entries[sliced.output[0]].value == kept.entries["a"].value
    x, b = (np.random.default_rng(1).normal(size=shape).astype(np.float32) for shape in ((1, 5, 4), (1, 4)))
    np.testing.assert_array_equal(run(made, x=x, b=b)[0], run(pooled(), x=x, b=b)[0])


def gated(rows: int, before: str = "Add") -> Any:
    nodes = [
        helper.make_node(before, ["x", "b"], ["s"], name="before"),
        helper.make_node("Sigmoid", ["s"], ["g"], name="gate"),
        helper.make_node("MatMul", ["g", "w"], ["y"], name="layer"),
    ]
    sides = {"x": (1, [1, rows, 4]), "b": (1, [1, rows, 4])}
    weights = np.random.default_rng(2).normal(size=(4, 8)).astype(np.float32)
    return shaped(nodes, sides, {"y": (1, [1, rows, 8])}, {"w": weights})


GATE = EncodingSet(version="2", entries={**wide(-2, 2, "x", "b", "s"), **wide(0, 1, "g"), **wide(-4, 4, "y")})


def test_a_sigmoid_before_a_linear_layer_is_computed_on_one_row() -> None:
    made, kept, done = applied(older_forms({"sigmoid-before-linear"}), gated(16), GATE)
    assert done["without-sigmoid-before-linear"] == ("gate",)
    assert [node.op_type for node in made.graph.node] == ["Add", "Reshape", "Sigmoid", "Reshape", "MatMul"]
    gate = made.graph.node[2]
    assert kept.entries[gate.input[0]].value == GATE.entries["s"].value
    assert kept.entries[gate.output[0]].value == GATE.entries["g"].value
    x, b = (np.random.default_rng(seed).normal(size=(1, 16, 4)).astype(np.float32) for seed in (1, 2))
    np.testing.assert_allclose(run(made, x=x, b=b)[0], run(gated(16), x=x, b=b)[0], rtol=1e-6)


@pytest.mark.parametrize(("rows", "before", "encodings"), [(15, "Add", GATE), (16, "Sub", GATE), (16, "Add", NOTHING)])
def test_other_sigmoids_stay(rows: int, before: str, encodings: EncodingSet) -> None:
    assert not applied(older_forms({"sigmoid-before-linear"}), gated(rows, before), encodings)[2]


def test_grids_that_the_release_computes_rightly() -> None:
    nodes = [
        helper.make_node("HardSigmoid", ["x"], ["h"], name="hard"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="product"),
    ]
    weights = np.random.default_rng(2).uniform(-1, 2, (12, 12)).astype(np.float32)
    model = model_of(nodes, {"x": 1}, {"y": 1}, {"w": weights})
    given = EncodingSet(version="2", entries={**wide(0, 0.7, "h"), **wide(-1, 2, "w"), **wide(-9, 9, "y")})
    _, kept, done = applied(older_forms({"hardsigmoid-range", "asymmetric-operand"}), model, given)
    hard, operand = kept.entries["h"].value, kept.entries["w"].value
    assert isinstance(hard, Affine) and isinstance(operand, Affine)
    assert (float(hard.minimum.min()), float(hard.maximum.max())) == (0.0, 1.0)
    assert float(operand.zero_point) == 1 << 15 and float(operand.maximum.max()) >= 2.0
    assert set(done) == {"without-hardsigmoid-range", "without-asymmetric-operand"}
    assert kept.entries["y"] is given.entries["y"]

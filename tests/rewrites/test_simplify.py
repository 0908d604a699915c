"""simplify: equal results, fewer nodes, bounded memory, and no grid is lost."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.cure import Rewriting, rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph


def _simplified(model: onnx.ModelProto, encodings: EncodingSet | None = None) -> Rewriting:
    """The model simplified, with the same results bit for bit."""
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, encodings, ["simplify"], feeds)
    onnx.checker.check_model(done.model, full_check=True)
    for feed in feeds:
        before, after = Session(model).run(feed), Session(done.model).run(feed)
        assert before.keys() == after.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
    return done


def _ops(done: Rewriting) -> list[str]:
    return [node.op_type for node in done.model.graph.node if node.op_type != "Constant"]


def _entries(*names: str) -> EncodingSet:
    grid = affine_for_range(-1.0, 1.0, GridKind(bits=16, signed=False, symmetric=False))
    return EncodingSet(version="1.0.0", entries={name: Encoding(name=name, value=grid) for name in names})


def _mask() -> onnx.ModelProto:
    """A mask of ones as large as the input asks, shifted to zeros and minus infinity, as exporters write it."""
    graph = TinyGraph()
    shape = graph.op("Shape", [graph.input("x", (2, 3, 4))], "shape")
    rows = graph.op("Gather", [shape, graph.stored("one", 1, "int64")], "rows")
    sizes = graph.op("Unsqueeze", [rows, graph.stored("front", [0], "int64")], "sizes")
    both = graph.op("Concat", [sizes, graph.stored("columns", [4], "int64")], "both", axis=0)
    ones = graph.op("ConstantOfShape", [both], "zeros")
    hidden = graph.op("Equal", [ones, graph.stored("nought", 1.0)], "hidden")
    mask = graph.op("Where", [hidden, graph.stored("never", -np.inf), ones], "mask")
    graph.op("Softmax", [graph.op("Add", ["x", mask], "masked")], "y", axis=-1)
    return graph.model("y")


def test_a_mask_of_static_size_is_stored() -> None:
    done = _simplified(_mask())
    assert _ops(done) == ["Add", "Softmax"]
    assert [tensor.name for tensor in done.model.graph.initializer] == ["mask"]


def test_a_dynamic_size_stays() -> None:
    model = _mask()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    del model.graph.value_info[:]
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for _ in range(3):
        model.graph.output[0].type.tensor_type.shape.dim.add()
    matched = load_transform("simplify").match(model)
    assert "Shape:shape" not in [label for site in matched.sites for label in site.nodes]
    done = _simplified(model)
    assert "ConstantOfShape" in _ops(done)


def test_what_hands_on_is_taken_out() -> None:
    graph = TinyGraph()
    copied = graph.op("Identity", [graph.op("Identity", [graph.input("x", (2, 3))], "c1")], "c2")
    same = graph.op("Cast", [copied], "same", to=onnx.TensorProto.FLOAT)
    flat = graph.op("Reshape", [same, graph.stored("shape", [2, 3], "int64")], "flat")
    graph.op("Relu", [graph.op("Transpose", [flat], "still", perm=[0, 1])], "y")
    done = _simplified(graph.model("y"))
    assert _ops(done) == ["Relu"]
    assert done.model.graph.node[0].input[0] == "x"


def test_outputs_and_real_work_stay() -> None:
    graph = TinyGraph()
    graph.op("Identity", [graph.input("x", (2, 3))], "copy")
    turned = graph.op("Transpose", ["x"], "turned", perm=[1, 0])
    narrow = graph.op("Cast", [turned], "narrow", to=onnx.TensorProto.FLOAT16)
    graph.op("Relu", [graph.op("Cast", [narrow], "wide", to=onnx.TensorProto.FLOAT)], "y")
    model = graph.model("y", "copy")
    assert not load_transform("simplify").match(model)


def _expanded(columns: int) -> onnx.ModelProto:
    graph = TinyGraph()
    seed = graph.op("Sigmoid", [graph.stored("seed", [[0.5]])], "warm")
    wide = graph.op("Expand", [seed, graph.stored("size", [1024, columns], "int64")], "wide")
    graph.op("Add", [graph.input("x", (1024, 1)), wide], "y")
    return graph.model("y")


def test_a_large_result_stays_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit.rewrites.fold.LARGEST_BYTES", 1 << 16)
    fits = (1 << 16) // 4 // 1024
    assert _ops(_simplified(_expanded(fits))) == ["Add"]
    assert _ops(_simplified(_expanded(fits + 1))) == ["Expand", "Add"]


def test_entries_of_kept_tensors_stay_and_a_named_copy_too() -> None:
    graph = TinyGraph()
    scaled = graph.op("Mul", [graph.stored("a", [2.0]), graph.stored("b", [3.0])], "scaled")
    copy = graph.op("Identity", [graph.input("x", (2, 3))], "copy")
    graph.op("Relu", [graph.op("Add", [copy, scaled], "sum")], "y")
    model = graph.model("y")
    done = _simplified(model, _entries("x", "copy", "a", "scaled", "sum", "y"))
    assert done.encodings is not None
    assert set(done.encodings.entries) == {"x", "copy", "scaled", "sum", "y"}
    assert _ops(done) == ["Identity", "Add", "Relu"]


@pytest.mark.parametrize(("named", "ops"), [(("w",), ["Transpose", "MatMul"]), (("w", "wt"), ["MatMul"])])
def test_a_rearranged_weight_keeps_its_grid(named: tuple[str, ...], ops: list[str]) -> None:
    """Folded without an entry of its own, the weight would no longer be quantized."""
    graph = TinyGraph()
    turned = graph.op("Transpose", [graph.stored("w", np.ones((4, 3)))], "wt", perm=[1, 0])
    graph.op("MatMul", [graph.input("x", (2, 3)), turned], "y")
    done = _simplified(graph.model("y"), _entries(*named))
    assert _ops(done) == ops
    assert done.encodings is not None
    assert named[-1] in done.encodings.entries


def test_grids_of_a_qdq_model_stay() -> None:
    graph = TinyGraph()
    scale, zero = graph.stored("scale", 0.1), graph.stored("zero", 0, "uint8")
    weight = graph.op("QuantizeLinear", [graph.stored("w", np.ones((3, 4))), scale, zero], "wq")
    graph.op("MatMul", [graph.input("x", (2, 3)), graph.op("DequantizeLinear", [weight, scale, zero], "wd")], "y")
    assert not load_transform("simplify").match(graph.model("y"))


def test_a_node_that_does_not_run_stays_and_the_rest_is_folded() -> None:
    """ONNX Runtime has no kernel for a Sin of float16: the runnable half of the batch is stored all the same."""
    graph = TinyGraph()
    half = graph.stored("half", [0.5], "float16")
    wave = graph.op("Cast", [graph.op("Sin", [half], "sine")], "wave", to=onnx.TensorProto.FLOAT)
    warm = graph.op("Sigmoid", [graph.stored("one", [1.0])], "warm")
    graph.op("Add", [graph.op("Mul", [graph.input("x", (2,)), warm], "scaled"), wave], "y")
    model = graph.model("y")
    from deploykit.model.graph import GraphCopy
    from deploykit.rewrites.fold import fold

    copy = GraphCopy(model)
    fold(copy)
    assert "warm" in copy.stored
    assert [node.op_type for node in copy.nodes][-2:] == ["Mul", "Add"]

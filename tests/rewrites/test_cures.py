"""Operators that devices lack, written with those they have: equal, with both sides, and with the entries they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.cure import Rewriting, rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

GRID = Affine(bits=8, signed=False, scale=np.asarray(0.05), zero_point=np.asarray(128.0))


def given_entries(*names: str) -> EncodingSet:
    return EncodingSet(version="2.0.0", entries={name: Encoding(name=name, value=GRID) for name in names})


def done(model: onnx.ModelProto, name: str, encodings: EncodingSet | None = None) -> Rewriting:
    made = rewrite(model, encodings, [name], random_feeds(model, samples=2))
    assert made.kept == (name,), made.steps
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made.model), full_check=True)
    return made


def kinds(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def one(op_type: str, shape: tuple[int, ...], *, opset: int = 17, dtype: str = "float32", **attributes: Any) -> Any:
    graph = TinyGraph(opset)
    graph.op(op_type, [graph.input("x", shape, dtype)], "y", **attributes)
    return graph.model("y")


def cumulated(shape: tuple[int, ...], axis: int, **attributes: int) -> onnx.ModelProto:
    graph = TinyGraph()
    graph.op("CumSum", [graph.input("x", shape), graph.stored("axis", axis, "int64")], "y", **attributes)
    return graph.model("y")


POOLS = [
    one("MaxPool", (1, 2, 6, 5, 7), kernel_shape=[2, 3, 2], strides=[2, 1, 1], pads=[0, 1, 0, 1, 1, 0]),
    one("MaxPool", (1, 2, 9, 8), kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 2, 1]),
    one("MaxPool", (2, 3, 5, 6, 7), kernel_shape=[3, 2, 2], strides=[2, 2, 3], auto_pad="SAME_UPPER"),
    one("MaxPool", (2, 3, 5, 6, 7), kernel_shape=[3, 2, 2], strides=[2, 2, 3], auto_pad="SAME_LOWER"),
    one("MaxPool", (2, 3, 17), kernel_shape=[3], dilations=[2], strides=[3]),
    one("AveragePool", (1, 2, 9, 8), opset=19, kernel_shape=[3, 2], dilations=[2, 2], pads=[2, 1, 2, 1]),
    one("AveragePool", (1, 2, 9, 8), opset=19, kernel_shape=[3, 2], dilations=[2, 2], pads=[2, 1] * 2, ceil_mode=1),
    one(
        *("AveragePool", (1, 2, 6, 7, 8)),
        opset=19,
        kernel_shape=[2, 2, 2],
        dilations=[1, 2, 3],
        pads=[1, 1, 1, 0, 1, 1],
        count_include_pad=1,
    ),
]


@each_row("model", POOLS)
def test_pools_are_combinations_of_taps_of_rank_three(model: onnx.ModelProto) -> None:
    made = done(model, "pool-by-taps").model
    assert kinds(made) <= {"Gather", "Max", "Sum", "Mul", "Pad", "Reshape"}
    inferred = onnx.shape_inference.infer_shapes(made)
    assert max(len(item.type.tensor_type.shape.dim) for item in inferred.graph.value_info) <= 5
    shapes = {item.name: len(item.type.tensor_type.shape.dim) for item in inferred.graph.value_info}
    assert {shapes[name] for node in made.graph.node if node.op_type in ("Max", "Sum") for name in node.output} == {3}


@pytest.mark.parametrize(
    "model",
    [
        one("MaxPool", (1, 2, 8, 8), kernel_shape=[3, 3], strides=[2, 2]),
        one("AveragePool", (1, 2, 8, 8, 8), kernel_shape=[2, 2, 2]),
        one("AveragePool", (1, 2, 8, 8), kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
    ],
)
def test_ordinary_pools_stay(model: onnx.ModelProto) -> None:
    assert not load_transform("pool-by-taps").match(model)


def test_large_windows_and_wanted_places_are_refused() -> None:
    large = load_transform("pool-by-taps").match(one("MaxPool", (1, 1, 90, 90), kernel_shape=[30, 9], dilations=[2, 2]))
    assert "39 taps" in large.refusals[0].reason
    graph = TinyGraph()
    graph.op("MaxPool", [graph.input("x", (1, 1, 4, 4, 4))], ["y", "places"], kernel_shape=[2, 2, 2])
    assert "places" in load_transform("pool-by-taps").match(graph.model("y", "places")).refusals[0].reason


def test_a_max_pool_holds_values_of_its_input_on_the_way() -> None:
    made = done(POOLS[0], "pool-by-taps", given_entries("x", "y"))
    assert made.encodings is not None and not made.open
    assert {node.output[0] for node in made.model.graph.node} <= made.encodings.entries.keys()
    assert all(entry.value is GRID for entry in made.encodings)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@each_row(("axis", "keepdims"), [(0, 1), (1, 0), (-1, 1)])
def test_the_last_of_equal_values_is_found(op_type: str, axis: int, keepdims: int) -> None:
    model = one(op_type, (3, 4, 5), axis=axis, keepdims=keepdims, select_last_index=1)
    made = done(model, "last-index", given_entries("x"))
    feed = {"x": np.random.default_rng(3).integers(0, 2, (3, 4, 5)).astype(np.float32)}
    np.testing.assert_array_equal(Session(made.model).run(feed)["y"], Session(model).run(feed)["y"])
    assert not any(a.name == "select_last_index" for node in made.model.graph.node for a in node.attribute)
    assert made.encodings is not None and "y_reversed" in made.encodings


def test_the_first_of_equal_values_and_unknown_sizes_stay() -> None:
    assert not load_transform("last-index").match(one("ArgMax", (3, 4)))
    model = one("ArgMax", (3, 4), select_last_index=1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert "shape of x is not known" in load_transform("last-index").match(model).refusals[0].reason


@pytest.mark.parametrize("words", [{"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
@each_row(("shape", "axis"), [((5,), 0), ((3, 4), -1), ((3, 1, 4), 0), ((2, 1), 1)])
def test_a_cumulative_sum_runs_forwards(words: dict[str, int], shape: tuple[int, ...], axis: int) -> None:
    made = done(cumulated(shape, axis, **words), "cumulate-forward", given_entries("x", "y"))
    (summing,) = (node for node in made.model.graph.node if node.op_type == "CumSum")
    assert not summing.attribute
    assert made.encodings is not None and not made.open
    assert {node.output[0] for node in made.model.graph.node} <= made.encodings.entries.keys()


def test_a_forward_sum_and_an_unknown_axis_stay() -> None:
    assert not load_transform("cumulate-forward").match(cumulated((3, 4), 0))
    graph = TinyGraph()
    graph.op("CumSum", [graph.input("x", (3, 4)), graph.input("axis", (), "int64")], "y", reverse=1)
    assert "not stored" in load_transform("cumulate-forward").match(graph.model("y")).refusals[0].reason


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((3, 4), {}),
        ((3, 5, 2), {"axes": [1], "keepdims": 0}),
        ((2, 7), {"axes": [-1]}),
        ((2, 3, 4), {"axes": [0, 2]}),
        ((4, 1), {"axes": [1]}),
    ],
)
def test_a_product_is_made_by_halves(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    made = done(one("ReduceProd", shape, **attributes), "product-by-halves", given_entries("x", "y"))
    assert "ReduceProd" not in kinds(made.model)
    assert made.encodings is not None and {"y_ordered", "y_matrix"} <= made.encodings.entries.keys()


def test_axes_as_an_input_have_to_be_stored() -> None:
    graph = TinyGraph(18)
    graph.op("ReduceProd", [graph.input("x", (3, 4)), graph.stored("axes", [1], "int64")], "y")
    assert "ReduceProd" not in kinds(done(graph.model("y"), "product-by-halves").model)
    model = graph.model("y")
    model.graph.input.add(name="axes").CopyFrom(helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, (1,)))
    del model.graph.initializer[:]
    found = load_transform("product-by-halves").match(model)
    assert found.refusals[0].reason == "axes is not stored"


def normalized(shape: tuple[int, ...]) -> onnx.ModelProto:
    graph, random = TinyGraph(), np.random.default_rng(2)
    stored = [graph.stored(name, random.uniform(0.5, 1.5, shape[1])) for name in ("scale", "shift", "mean", "var")]
    return graph.model(graph.op("BatchNormalization", [graph.input("x", shape), *stored], "y"))


def test_a_batch_norm_of_rank_five_has_four_axes() -> None:
    made = done(normalized((2, 3, 4, 5, 6)), "batchnorm-rank", given_entries("x", "y"))
    assert [node.op_type for node in made.model.graph.node] == ["Reshape", "BatchNormalization", "Reshape"]
    assert made.encodings is not None and made.encodings.entries.keys() >= {"y_merged", "y_normalized"}
    assert not load_transform("batchnorm-rank").match(normalized((2, 3, 4, 5)))


def with_statistics(opset: int, *outputs: str, axis: int = -1) -> onnx.ModelProto:
    graph = TinyGraph(opset)
    scale = graph.stored("scale", np.random.default_rng(1).uniform(0.5, 1.5, (3, 4, 5)[axis:]))
    names = ["y", "mean" if "mean" in outputs else "", "inverse" if "inverse" in outputs else ""]
    graph.op("LayerNormalization", [graph.input("x", (3, 4, 5)), scale], names, axis=axis, epsilon=1e-2)
    return graph.model("y", *outputs)


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("outputs", [("mean",), ("inverse",), ("mean", "inverse")])
@each_row("axis", [-1, 1])
def test_statistics_are_computed_on_their_own(opset: int, outputs: tuple[str, ...], axis: int) -> None:
    made = done(with_statistics(opset, *outputs, axis=axis), "norm-statistics")
    (norm,) = (node for node in made.model.graph.node if node.op_type == "LayerNormalization")
    assert list(norm.output) == ["y"]


@each_row("highest", [np.inf, 0.5])
def test_a_clip_to_a_computed_bound_is_made_of_extremes(highest: float) -> None:
    graph = TinyGraph()
    x = graph.input("x", (3, 4))
    least = graph.op("ReduceMean", [x], "least", keepdims=0)
    graph.op("Clip", [x, least, graph.stored("most", np.float32(highest))], "y")
    assert kinds(done(graph.model("y"), "clip-to-extremes").model) - {"ReduceMean"} == (
        {"Max"} if highest == np.inf else {"Max", "Min"}
    )


def test_a_norm_without_statistics_stays() -> None:
    assert not load_transform("norm-statistics").match(with_statistics(17))


def test_a_computed_scale_is_made_a_row_at_run_time() -> None:
    graph = TinyGraph()
    scale = graph.op("Relu", [graph.input("s", (4, 8))], "scale")
    model = graph.model(graph.op("LayerNormalization", [graph.input("x", (2, 4, 8)), scale], "y", axis=-2))
    made = done(model, "norm-rows", given_entries("x", "scale", "y"))
    assert [node.op_type for node in made.model.graph.node].count("Reshape") == 3
    assert made.encodings is not None and "scale_row" in made.encodings


def sequences(build: Callable[[TinyGraph], None], opset: int = 17) -> onnx.ModelProto:
    graph = TinyGraph(opset)
    build(graph)
    return graph.model("y")


def unbound(graph: TinyGraph) -> None:
    graph.op("SplitToSequence", [graph.input("x", (3, 4))], "parts", axis=0, keepdims=0)
    graph.op("SequenceAt", ["parts", graph.stored("last", -1, "int64")], "one")
    graph.op("SequenceAt", ["parts", graph.stored("first", 0, "int64")], "other")
    graph.op("Sub", ["one", "other"], "y")


def chunked(graph: TinyGraph) -> None:
    graph.op("SplitToSequence", [graph.input("x", (3, 7)), graph.stored("size", 3, "int64")], "parts", axis=1)
    graph.op("ConcatFromSequence", ["parts"], "y", axis=1)


def stacked(graph: TinyGraph) -> None:
    graph.op("SequenceConstruct", [graph.input("x", (3, 4)), graph.input("z", (3, 4))], "a")
    graph.op("SequenceInsert", ["a", graph.op("Neg", ["x"], "n"), graph.stored("at", 1, "int64")], "b")
    graph.op("SequenceErase", ["b", graph.stored("from", -3, "int64")], "c")
    graph.op("ConcatFromSequence", ["c"], "y", axis=1, new_axis=1)


def counted(graph: TinyGraph) -> None:
    graph.op("SplitToSequence", [graph.input("x", (3, 4))], "parts", axis=1)
    graph.op("Add", [graph.op("SequenceLength", ["parts"], "n"), graph.stored("one", 1, "int64")], "y")


@pytest.mark.parametrize("build", [unbound, chunked, stacked, counted])
@each_row("opset", [12, 17])
def test_settled_sequences_are_tensors(build: Callable[[TinyGraph], None], opset: int) -> None:
    made = done(sequences(build, opset), "resolve-sequences").model
    assert not any("Sequence" in name for name in kinds(made))


def test_parts_have_the_grid_of_the_whole() -> None:
    made = done(sequences(unbound), "resolve-sequences", given_entries("x", "y"))
    assert made.encodings is not None and {"one", "other"} <= made.encodings.entries.keys()


def test_a_sequence_that_is_not_settled_stays() -> None:
    graph = TinyGraph()
    graph.op("SplitToSequence", [graph.input("x", (3, 4))], "parts", axis=0)
    graph.op("SequenceAt", ["parts", graph.input("at", (), "int64")], "y")
    found = load_transform("resolve-sequences").match(graph.model("y"))
    assert not found and "the place at is not stored" in found.reason
    assert not load_transform("resolve-sequences").match(one("Relu", (3,)))


def old(op_type: str, *stored: np.ndarray[Any, Any], shape: tuple[int, ...] = (2, 3, 4, 4), **attributes: Any) -> Any:
    names = [f"w{number}" for number in range(len(stored))]
    node = helper.make_node(op_type, ["x", *names], ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, 1, a.shape) for name, a in zip(names, stored, strict=True)]
    tensors = [numpy_helper.from_array(array, name) for name, array in zip(names, stored, strict=True)]
    ends = (helper.make_tensor_value_info(name, 1, shape) for name in "xy")
    given, made = ends
    graph = helper.make_graph([node], "old", [given, *values], [made], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)])
    model.ir_version = 3
    return model


CHANNELS = np.asarray([0.5, -1.0, 2.0], np.float32)


@pytest.mark.parametrize(
    "model",
    [
        old("Sigmoid"),
        old("PRelu", CHANNELS),
        old("Add", CHANNELS[:, None, None], broadcast=1, axis=1),
        old("BatchNormalization", CHANNELS, CHANNELS, CHANNELS, np.abs(CHANNELS), is_test=1),
    ],
)
def test_an_old_operator_set_is_raised(model: onnx.ModelProto) -> None:
    made = done(model, "raise-opset").model
    assert [entry.version for entry in made.opset_import] == [13]
    assert [item.name for item in made.graph.input] == ["x"]


def test_comparisons_are_raised_to_where_their_shapes_are_known() -> None:
    graph = TinyGraph(13)
    graph.op("GreaterOrEqual", [graph.input("x", (2, 3)), graph.stored("least", np.zeros(3, np.float32))], "y")
    made = done(graph.model("y"), "raise-opset").model
    assert [entry.version for entry in made.opset_import] == [16]


def test_what_the_converter_cannot_raise_is_refused() -> None:
    found = load_transform("raise-opset").match(old("Add", CHANNELS, broadcast=1, axis=1))
    assert not found and "does not match" in found.refusals[0].reason


def test_a_newer_operator_set_stays() -> None:
    assert not load_transform("raise-opset").match(one("Relu", (3,), opset=7))


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "left"),
    [
        ("Celu", 17, {"alpha": 2.0}, "Celu"),
        ("Shrink", 17, {"lambd": 0.7, "bias": 0.2}, "Shrink"),
        ("Softsign", 15, {}, "Softsign"),
        ("ReduceL1", 18, {}, "ReduceL1"),
        ("ReduceSumSquare", 18, {"keepdims": 0}, "ReduceSumSquare"),
    ],
)
def test_what_onnx_defines_by_others_is_written_out(
    op_type: str, opset: int, attributes: dict[str, Any], left: str
) -> None:
    made = done(one(op_type, (3, 4), opset=opset, **attributes), "write-out-functions", given_entries("x", "y"))
    assert left not in kinds(made.model)
    assert all(node.name for node in made.model.graph.node)
    assert made.encodings is not None and {"x", "y"} <= made.encodings.entries.keys()


def test_attention_is_written_out_with_its_sizes_settled() -> None:
    graph = TinyGraph(23)
    inputs = [graph.input(name, (1, 2, heads, 4)) for name, heads in (("q", 3), ("k", 5), ("v", 5))]
    made = done(graph.model(graph.op("Attention", inputs, "y")), "write-out-functions").model
    assert not kinds(made) & {"Attention", "Shape", "ConstantOfShape", "Range"}


def test_what_compilers_mostly_have_stays() -> None:
    assert not load_transform("write-out-functions").match(one("Gelu", (3, 4), opset=20))


def batched(*symbols: str | None, shape: tuple[int, ...] = (1, 4)) -> onnx.ModelProto:
    """A sum over inputs whose first dimensions are symbols."""
    graph = TinyGraph()
    names = [graph.input(f"x{number}", shape) for number in range(len(symbols))]
    rows = graph.op("Shape", [names[0]], "shape")
    graph.op("Reshape", [graph.op("Sum", names, "sum"), rows], "y")
    model = graph.model("y")
    del model.graph.value_info[:]
    for item, symbol in zip(model.graph.input, symbols, strict=True):
        if symbol is not None:
            item.type.tensor_type.shape.dim[0].dim_param = symbol
    return model


@pytest.mark.parametrize("symbols", [("batch",), ("n", "n"), ("n", "m"), ("n", None)])
def test_an_open_batch_becomes_one_sample(symbols: tuple[str | None, ...]) -> None:
    made = done(batched(*symbols), "batch-of-one").model
    assert {dim.dim_value for item in made.graph.input for dim in item.type.tensor_type.shape.dim} == {1, 4}


def test_what_need_not_be_a_batch_stays_open() -> None:
    find = load_transform("batch-of-one").match
    assert not find(batched(None))
    assert not find(batched("length", shape=(4,)))
    model = batched("n")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "length"
    assert "x0 is dynamic in what need not be a batch" in find(model).refusals[0].reason


def test_a_body_that_onnx_cannot_put_in_is_refused() -> None:
    graph = TinyGraph(23)
    inputs = [graph.input(name, (1, 2, 4, 4)) for name in ("q", "k", "v")]
    made = graph.op("Attention", [*inputs, graph.input("mask", (4, 4))], "y")
    model = graph.model(made)
    assert load_transform("write-out-functions").match(model)
    del model.graph.input[-1]
    assert "onnx does not write it out" in load_transform("write-out-functions").match(model).refusals[0].reason

"""expand-before-norm: both operands get one shape, no value changes, and what is no such place stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

NAME = "expand-before-norm"


def normalized(op_type: str, shape: tuple[int, ...], *, given: tuple[int, ...] = (2, 16, 8)) -> onnx.ModelProto:
    graph = TinyGraph()
    table = graph.stored("table", np.random.default_rng(3).normal(0, 1, shape))
    graph.op(op_type, [graph.input("x", given), table], "sum")
    return norm(graph)


def norm(graph: TinyGraph) -> onnx.ModelProto:
    return graph.model(graph.op("LayerNormalization", ["sum", graph.stored("scale", np.ones(8))], "y"))


@pytest.mark.parametrize("op_type", ["Add", "Mul"])
@each_row("shape", [(1, 16, 8), (16, 8), (2, 1, 8)])
def test_a_table_of_positions_is_stored_for_each_sample(op_type: str, shape: tuple[int, ...]) -> None:
    model = normalized(op_type, shape)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,) and done.steps[0].ulps == 0.0
    tables = {tensor.name: tuple(tensor.dims) for tensor in done.model.graph.initializer}
    assert tables == {"table_repeated": (2, 16, 8), "scale": (8,)}


@pytest.mark.parametrize(("reduced", "keepdims"), [((0,), 0), ((0,), 1), ((1,), 1)])
def test_a_computed_operand_is_tiled(reduced: tuple[int, ...], keepdims: int) -> None:
    graph = TinyGraph()
    mean = graph.op("ReduceMean", [graph.input("x", (2, 16, 8))], "mean", axes=reduced, keepdims=keepdims)
    graph.op("Add", [mean, "x"], "sum")
    model = norm(graph)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,) and done.steps[0].ulps == 0.0
    onnx.checker.check_model(done.model, full_check=True)
    assert [node.op_type for node in done.model.graph.node].count("Reshape") == (0 if keepdims else 1)


@pytest.mark.parametrize(
    ("op_type", "shape", "given"),
    [
        ("Add", (2, 16, 8), (2, 16, 8)),
        ("Add", (8,), (2, 16, 8)),
        ("Add", (16, 1), (2, 16, 8)),
        ("Add", (1, 16, 8), (1, 16, 8)),
        ("Sub", (1, 16, 8), (2, 16, 8)),
    ],
)
def test_nothing_is_done_elsewhere(op_type: str, shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    assert not load_transform(NAME).match(normalized(op_type, shape, given=given))


def test_the_written_out_norm_counts_as_one() -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("x", (2, 16, 8)), graph.stored("table", np.ones((16, 8)))], "sum")
    centred = graph.op("Sub", ["sum", graph.op("ReduceMean", ["sum"], "mean", axes=[-1])], "centred")
    variance = graph.op("ReduceMean", [graph.op("Mul", [centred, centred], "square")], "variance", axes=[-1])
    plus = graph.op("Add", [variance, graph.stored("epsilon", 1e-5)], "plus")
    model = graph.model(graph.op("Div", [centred, graph.op("Sqrt", [plus], "root")], "y"))
    assert load_transform(NAME).match(model)


def test_a_reshape_in_between_hides_nothing() -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("x", (2, 16, 8)), graph.stored("table", np.ones((16, 8)))], "sum")
    rows = graph.op("Reshape", ["sum", graph.stored("shape", [32, 8], "int64")], "rows")
    model = graph.model(graph.op("LayerNormalization", [rows, graph.stored("scale", np.ones(8))], "y"))
    assert load_transform(NAME).match(model)


def test_the_repeated_table_keeps_its_grid() -> None:
    model = normalized("Add", (1, 16, 8))
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.001), zero_point=np.asarray(5000.0))
    names = ("x", "table", "sum", "y")
    entries = EncodingSet(version="2.0.0", entries={name: Encoding(name=name, value=grid) for name in names})
    done = rewrite(model, entries, [NAME], random_feeds(model))
    assert done.encodings is not None and not done.open
    assert done.encodings.entries.keys() == {"x", "table_repeated", "sum", "y"}
    assert done.encodings.entries["table_repeated"].value is grid


def test_other_readers_keep_the_table_as_it_was() -> None:
    graph = TinyGraph()
    table = graph.stored("table", np.arange(128.0).reshape(1, 16, 8))
    graph.op("Add", [graph.input("x", (2, 16, 8)), table], "sum")
    graph.op("LayerNormalization", ["sum", graph.stored("scale", np.ones(8))], "y")
    graph.op("Relu", [table], "z")
    model = graph.model("y", "z")
    done = rewrite(model, None, [NAME], random_feeds(model))
    values = {tensor.name: numpy_helper.to_array(tensor).shape for tensor in done.model.graph.initializer}
    assert values == {"table": (1, 16, 8), "table_repeated": (2, 16, 8), "scale": (8,)}

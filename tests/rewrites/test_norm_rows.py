"""norm-rows: one normalization over the rows of a matrix, whatever axes it had; others stay."""

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

NAME = "norm-rows"


def normalized(op_type: str, shape: tuple[int, ...], axis: int, *, opset: int = 17) -> onnx.ModelProto:
    graph, random = TinyGraph(opset), np.random.default_rng(5)
    stored = [graph.stored("scale", random.uniform(0.5, 1.5, shape[axis:]))]
    if op_type == "LayerNormalization" and opset > 17:
        stored.append(graph.stored("shift", random.normal(0, 1, shape[axis:])))
    return graph.model(graph.op(op_type, [graph.input("x", shape), *stored], "y", axis=axis, epsilon=1e-3))


@pytest.mark.parametrize(
    ("op_type", "shape", "axis", "matrix"),
    [
        ("LayerNormalization", (2, 4, 8), -2, [2, 32]),
        ("LayerNormalization", (2, 4, 8), 1, [2, 32]),
        ("LayerNormalization", (1, 3, 4, 8), 1, [1, 96]),
        ("RMSNormalization", (1, 4, 8), -2, [1, 32]),
        ("RMSNormalization", (3, 4, 8), -1, [12, 8]),
    ],
)
def test_it_becomes_one_over_rows(op_type: str, shape: tuple[int, ...], axis: int, matrix: list[int]) -> None:
    model = normalized(op_type, shape, axis, opset=23)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,)
    onnx.checker.check_model(done.model, full_check=True)
    before, norm, behind = done.model.graph.node
    assert (before.op_type, norm.op_type, behind.op_type) == ("Reshape", op_type, "Reshape")
    sizes = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in done.model.graph.initializer}
    assert sizes[before.input[1]] == matrix


@pytest.mark.parametrize(
    ("op_type", "shape", "axis"),
    [
        ("LayerNormalization", (2, 4, 8), -1),
        ("LayerNormalization", (2, 4, 8), 2),
        ("RMSNormalization", (1, 4, 8), -1),
        ("RMSNormalization", (4, 8), -1),
    ],
)
def test_what_is_over_rows_already_stays(op_type: str, shape: tuple[int, ...], axis: int) -> None:
    assert not load_transform(NAME).match(normalized(op_type, shape, axis, opset=23))


def test_an_unknown_dimension_is_refused() -> None:
    model = normalized("LayerNormalization", (2, 4, 8), -2)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    found = load_transform(NAME).match(model)
    assert not found and "is not known" in found.refusals[0].reason


def test_a_scale_of_another_size_is_refused() -> None:
    graph = TinyGraph()
    scale = graph.stored("scale", np.ones((1, 8)))
    model = graph.model(graph.op("LayerNormalization", [graph.input("x", (2, 4, 8)), scale], "y", axis=-2))
    found = load_transform(NAME).match(model)
    assert not found and "scale has not one value for each column" in found.refusals[0].reason


def test_the_matrix_has_the_grids_of_what_it_holds() -> None:
    model = normalized("LayerNormalization", (2, 4, 8), -2)
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.001), zero_point=np.asarray(5000.0))
    names = ("x", "scale", "y")
    entries = EncodingSet(version="2.0.0", entries={name: Encoding(name=name, value=grid) for name in names})
    done = rewrite(model, entries, [NAME], random_feeds(model))
    assert done.encodings is not None and not done.open
    assert done.encodings.entries.keys() == {"x", "y_rows", "scale_row", "y_normalized", "y"}

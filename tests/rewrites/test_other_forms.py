"""global-pool and gathernd-to-gather: the same values in a form that providers take, and nothing done elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

PAIRS = np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1)


def pooled(side: int, **settings: Any) -> ModelProto:
    graph = TinyGraph(19)
    given = {"kernel_shape": [side, side], "strides": [side, side], "ceil_mode": 1, **settings}
    return graph.model(graph.op("AveragePool", [graph.input("x", (2, 3, 6, 6))], "y", **given))


def gathered(indices: Any, shape: tuple[int, ...] = (2, 3, 4), **settings: int) -> ModelProto:
    graph = TinyGraph(17)
    index = graph.stored("index", np.asarray(indices), "int64")
    return graph.model(graph.op("GatherND", [graph.input("x", shape), index], "y", **settings))


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("side", [7, 320])
def test_a_window_beyond_its_map_is_the_whole_map(side: int, counted: int) -> None:
    model = pooled(side, count_include_pad=counted)
    done = rewrite(model, None, ["global-pool"], random_feeds(model, samples=2))
    assert done.kept == ("global-pool",)
    assert operators(done.model) == ["GlobalAveragePool"]


@pytest.mark.parametrize(
    "model", [pooled(6), pooled(3), pooled(7, pads=[1, 1, 1, 1]), pooled(7, auto_pad="SAME_UPPER")]
)
def test_other_windows_stay(model: ModelProto) -> None:
    assert not load_transform("global-pool").match(model)


@pytest.mark.parametrize(
    ("indices", "steps"),
    [
        ([[1], [0], [-1]], ["Reshape", "Gather", "Reshape"]),
        ([[1, 2], [0, 0], [-1, -3]], ["Reshape", "Gather", "Reshape"]),
        ([[[[[1, 2, 3]]]]], ["Reshape", "Gather", "Reshape"]),
        (PAIRS.reshape(1, 1, 2, 3, 2), ["Reshape"]),
        ([[0], [1]], ["Reshape"]),
    ],
)
def test_rows_are_taken_by_their_numbers(indices: Any, steps: list[str]) -> None:
    model = gathered(indices)
    done = rewrite(model, None, ["gathernd-to-gather"], random_feeds(model, samples=2))
    assert done.kept == ("gathernd-to-gather",) and done.steps[0].ulps == 0.0
    onnx.checker.check_model(done.model, full_check=True)
    assert operators(done.model) == steps


def test_rows_of_each_sample_are_refused() -> None:
    matched = load_transform("gathernd-to-gather").match(gathered([[1], [2]], batch_dims=1))
    assert not matched and matched.refusals[0].reason == "it takes other rows of each sample"


def test_a_shape_that_varies_is_refused() -> None:
    model = gathered([[1], [0]])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"
    matched = load_transform("gathernd-to-gather").match(model)
    assert not matched and "not known" in matched.refusals[0].reason


def test_computed_indices_are_no_site() -> None:
    model = gathered([[1], [0]])
    del model.graph.initializer[:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("index", onnx.TensorProto.INT64, [2, 1]))
    assert not load_transform("gathernd-to-gather").match(model)


def test_rows_have_the_grid_of_the_data_and_what_is_taken_that_of_the_result() -> None:
    grids = {
        name: Affine(bits=16, signed=False, scale=np.asarray(scale), zero_point=np.asarray(32768.0))
        for name, scale in (("x", 1e-4), ("y", 2e-4))
    }
    entries = {name: Encoding(name=name, value=grid, is_param=False) for name, grid in grids.items()}
    model = gathered([[1, 2], [0, 0]])
    given = EncodingSet(version="1.0.0", entries=entries)
    done = rewrite(model, given, ["gathernd-to-gather"], random_feeds(model))
    assert done.encodings is not None and not done.open
    made = {name: entry.value for name, entry in done.encodings.entries.items()}
    assert made["y_rows"] is grids["x"] and made["y_picked"] is grids["y"]

"""index-from-front: the same values, no negative index, and no change where a dimension varies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

CASES = [
    ("Gather", {"axis": 1}, [-1, 2, -4]),
    ("Gather", {"axis": -1}, -2),
    ("GatherElements", {"axis": 0}, np.tile([[[-1]], [[0]]], (1, 4, 3))),
    ("GatherND", {}, [[-1, -4, 2], [1, 0, -3]]),
    ("GatherND", {"batch_dims": 1}, [[-1], [2]]),
]


def _gather(op: str, settings: dict[str, int], indices: object) -> onnx.ModelProto:
    graph = TinyGraph()
    index = graph.stored("index", np.asarray(indices), "int64")
    graph.op(op, [graph.input("x", (2, 4, 3)), index], "y", **settings)
    return graph.model("y")


@pytest.mark.parametrize(("op", "settings", "indices"), CASES)
def test_indices_count_from_the_front(op: str, settings: dict[str, int], indices: object) -> None:
    model = _gather(op, settings, indices)
    done = rewrite(model, None, ["index-from-front"], random_feeds(model))
    assert done.kept == ("index-from-front",)
    onnx.checker.check_model(done.model, full_check=True)
    (stored,) = done.model.graph.initializer
    assert numpy_helper.to_array(stored).min() >= 0
    assert stored.dims == model.graph.initializer[0].dims


def test_other_readers_keep_the_index_as_it_was() -> None:
    graph = TinyGraph()
    index = graph.stored("index", [-1], "int64")
    graph.op("Gather", [graph.input("x", (4,)), index], "a")
    graph.op("Gather", [graph.input("z", (9,)), index], "b")
    graph.op("Identity", [index], "c")
    model = graph.model("a", "b", "c")
    done = rewrite(model, None, ["index-from-front"], random_feeds(model))
    assert done.kept
    values = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in done.model.graph.initializer}
    assert sorted(map(tuple, values.values())) == [(-1,), (3,), (8,)]


def test_a_dimension_that_varies_is_refused() -> None:
    model = _gather("Gather", {"axis": 1}, [-1])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    matched = load_transform("index-from-front").match(model)
    assert not matched
    assert "not known" in matched.refusals[0].reason


def test_nothing_to_do_without_a_negative_index() -> None:
    assert not load_transform("index-from-front").match(_gather("Gather", {"axis": 1}, [0, 3]))

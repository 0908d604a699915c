"""flat-index: the same elements, by an index of one dimension or by none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph


def gathered(index: np.ndarray[tuple[int, ...], np.dtype[np.int64]], *, stored: bool = False) -> onnx.ModelProto:
    """A list of 48 from a layer, gathered from, and a layer behind."""
    graph = TinyGraph()
    graph.op("Relu", [graph.input("x", (48,))], "list")
    source = graph.stored("table", np.linspace(0, 1, 48)) if stored else "list"
    graph.op("Gather", [source, graph.stored("index", index, "int64")], "taken")
    graph.op("Sigmoid", ["taken"], "y")
    return graph.model("y", *(["list"] if stored else []))


@pytest.mark.parametrize(
    ("index", "left"),
    [
        (np.arange(48).reshape(1, 48, 1, 1), ["Relu", "Reshape", "Sigmoid"]),
        (np.arange(48).reshape(6, 8)[:, ::-1], ["Relu", "Gather", "Reshape", "Sigmoid"]),
        (np.arange(12).reshape(3, 4), ["Relu", "Gather", "Reshape", "Sigmoid"]),
        (np.asarray([[-1, 0], [5, -48]]), ["Relu", "Gather", "Reshape", "Sigmoid"]),
    ],
)
def test_the_same_elements_come_out(index: np.ndarray[tuple[int, ...], np.dtype[np.int64]], left: list[str]) -> None:
    model = gathered(index)
    done = rewrite(model, None, ["flat-index"], random_feeds(model))
    assert done.kept == ("flat-index",)
    onnx.checker.check_model(done.model, full_check=True)
    assert [node.op_type for node in done.model.graph.node] == left


def test_the_flat_result_has_the_grid_of_the_result() -> None:
    value = Affine(bits=8, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(0.0))
    encodings = EncodingSet(version="2", entries={"taken": Encoding(name="taken", value=value)})
    model = gathered(np.arange(12).reshape(3, 4))
    transform = load_transform("flat-index")
    done = transform.apply(model, encodings, transform.match(model))
    assert done.encodings is not None
    made = done.model.graph.node[1].output[0]
    assert {entry.value for entry in done.encodings} == {value} and made in done.encodings


def test_lists_by_flat_indices_tables_and_computed_indices_stay() -> None:
    transform = load_transform("flat-index")
    assert not transform.match(gathered(np.arange(48)))
    assert not transform.match(gathered(np.arange(48).reshape(6, 8), stored=True))
    graph = TinyGraph()
    graph.op("Gather", [graph.input("x", (8, 6)), graph.stored("index", [[0, 1]], "int64")], "y")
    assert not transform.match(graph.model("y"))


def test_a_list_of_unknown_shape_is_refused() -> None:
    model = gathered(np.arange(12).reshape(3, 4))
    del model.graph.value_info[:]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    matched = load_transform("flat-index").match(model)
    assert not matched
    assert "not known" in matched.refusals[0].reason

"""Taking a model apart: what each part is given, makes and says of the tensors between."""

from __future__ import annotations

import numpy as np

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.cut import chain_models, cut_model
from sample_models.tiny_graphs import TinyGraph


def _names(items: object) -> list[str]:
    return [item.name for item in items]  # type: ignore[attr-defined]


def _chain() -> TinyGraph:
    """x -> a -> b -> c -> y, with a second output in the middle and x read again at the end."""
    graph = TinyGraph()
    graph.op("Relu", [graph.input("x", (2,))], "a")
    graph.op("Mul", ["a", graph.stored("two", 2.0)], "b")
    graph.op("Sigmoid", ["b"], "c")
    graph.op("Add", ["c", "x"], "y")
    return graph


def test_each_part_has_what_it_reads_and_makes() -> None:
    head, tail = cut_model(_chain().model("a", "y"), {2, 3})
    assert (_names(head.graph.input), _names(head.graph.output)) == (["x"], ["b", "a"])
    assert (sorted(_names(tail.graph.input)), _names(tail.graph.output)) == (["b", "x"], ["y"])
    assert _names(head.graph.initializer) == ["two"] and not tail.graph.initializer


def test_only_tensors_inside_are_described_beside_inputs_and_outputs() -> None:
    head, tail = cut_model(_chain().model("y"), {2, 3})
    assert _names(head.graph.value_info) == ["a"]
    assert _names(tail.graph.value_info) == ["c"]
    assert all(item.type.tensor_type.shape.dim[0].dim_value == 2 for item in tail.graph.input)


def test_the_parts_in_a_row_are_the_whole() -> None:
    model = _chain().model("y")
    head, tail = cut_model(model, {2, 3})
    feed = {"x": np.array([-1.0, 3.0], np.float32)}
    whole, chained = Session(model).run(feed)["y"], Session(chain_models(head, tail)).run(feed)["y"]
    assert whole.tolist() == chained.tolist()

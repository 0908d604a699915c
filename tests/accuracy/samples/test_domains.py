"""What a graph says of its integer inputs, pattern by pattern; and that it says nothing where it does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from deploykit.accuracy.samples.domains import Domain, input_domains
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

INT64 = "int64"


def domains(model: onnx.ModelProto) -> dict[str, Domain]:
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    facts = facts_of(model)
    return input_domains(facts, lambda name: numpy_helper.to_array(stored[name]) if name in stored else None)


def _domain(build: Callable[[TinyGraph, str], str], shape: tuple[int, ...] = (1, 4), dtype: str = INT64) -> Domain:
    graph = TinyGraph()
    output = build(graph, graph.input("x", shape, dtype))
    return domains(graph.model(output))["x"]


def _table(graph: TinyGraph, rows: int = 10) -> str:
    return graph.stored("table", np.ones((rows, 2)))


def _gather(graph: TinyGraph, x: str, rows: int = 10) -> str:
    return graph.op("Gather", [_table(graph, rows), x], "y")


def _const(graph: TinyGraph, value: float | list[int], dtype: str = INT64) -> str:
    return graph.stored(f"c{len(graph._stored)}", value, dtype)


def _through_moves(graph: TinyGraph, x: str) -> str:
    cast = graph.op("Cast", [x], "cast", to=TensorProto.INT32)
    flat = graph.op("Reshape", [cast, _const(graph, [4])], "flat")
    return _gather(graph, graph.op("Unsqueeze", [flat, _const(graph, [0])], "deep"))


def _offset(graph: TinyGraph, x: str) -> str:
    return _gather(graph, graph.op("Add", [x, _const(graph, [0, 1, 2, 3])], "moved"))


def _clipped(graph: TinyGraph, x: str) -> str:
    return _gather(graph, graph.op("Clip", [x, _const(graph, 0), _const(graph, 9)], "clipped"))


def _padded(graph: TinyGraph, x: str) -> str:
    """Token ids of which one means padding: compared with 1, and still no mask."""
    padding = graph.op("Equal", [x, _const(graph, 1)], "padding")
    return _gather(graph, graph.op("Where", [padding, _const(graph, 0), x], "shown"))


def _wrapped(graph: TinyGraph, x: str) -> str:
    negative = graph.op("Less", [x, _const(graph, 0)], "negative")
    moved = graph.op("Add", [x, _const(graph, 10)], "moved")
    return _gather(graph, graph.op("Where", [negative, moved, x], "index"))


def _two_tables(graph: TinyGraph, x: str) -> str:
    small = graph.op("Gather", [graph.stored("small", np.ones((3, 2))), x], "z")
    return graph.op("Add", [_gather(graph, x), small], "sum")


def _scatter(graph: TinyGraph, x: str) -> str:
    data, updates = graph.stored("data", np.zeros((5, 2))), graph.stored("updates", np.zeros((3, 2)))
    return graph.op("ScatterND", [data, x, updates], "y")


def _gather_nd(graph: TinyGraph, x: str) -> str:
    return graph.op("GatherND", [graph.stored("data", np.zeros((5, 7, 2))), x], "y")


def _one_hot(graph: TinyGraph, x: str) -> str:
    return graph.op("OneHot", [x, _const(graph, 6), graph.stored("values", [0.0, 1.0])], "y")


@each_row(
    ("build", "shape", "ends"),
    [
        (_gather, (1, 4), (-10, 9)),
        (_through_moves, (1, 4), (-10, 9)),
        (_offset, (1, 4), (-10, 6)),
        (_clipped, (1, 4), (0, 9)),
        (_padded, (1, 4), (-10, 9)),
        (_wrapped, (1, 4), (-10, 9)),
        (_two_tables, (1, 4), (-3, 2)),
        (_scatter, (3, 1), (-5, 4)),
        (_gather_nd, (3, 1), (-5, 4)),
        (_gather_nd, (3, 2), (-5, 4)),
        (_one_hot, (1, 4), (-6, 5)),
    ],
)
def test_indices(build: Callable[[TinyGraph, str], str], shape: tuple[int, ...], ends: tuple[int, int]) -> None:
    found = _domain(build, shape)
    assert (found.low, found.high, found.is_mask) == (*ends, False)
    assert found.node


def test_before_operator_set_11_an_index_is_not_negative() -> None:
    graph = TinyGraph(opset=10)
    graph.op("Gather", [_table(graph), graph.input("x", (1, 4), INT64)], "y")
    found = domains(graph.model("y"))["x"]
    assert (found.low, found.high) == (0, 9)


def test_gather_elements_counts_along_its_axis() -> None:
    graph = TinyGraph()
    data = graph.input("data", (2, 7))
    graph.op("GatherElements", [data, graph.input("x", (2, 3), INT64)], "y", axis=1)
    found = domains(graph.model("y"))
    assert (found["x"].low, found["x"].high) == (-7, 6)
    assert set(found) == {"x"}


def _equal(graph: TinyGraph, x: str) -> str:
    scores = graph.input("scores", (1, 4))
    return graph.op(
        "Where", [graph.op("Equal", [x, _const(graph, 0)], "hidden"), _const(graph, -1e4, "float32"), scores], "y"
    )


def _cast_to_bool(graph: TinyGraph, x: str) -> str:
    hidden = graph.op("Not", [graph.op("Cast", [x], "shown", to=TensorProto.BOOL)], "hidden")
    return graph.op("Where", [hidden, _const(graph, -1e4, "float32"), graph.input("scores", (1, 4))], "y")


def _penalty(graph: TinyGraph, x: str) -> str:
    """(1 - mask) * -10000, and the same mask once more as a weight of a mean."""
    mask = graph.op("Cast", [x], "mask", to=TensorProto.FLOAT)
    away = graph.op("Sub", [_const(graph, 1, "float32"), mask], "away")
    scores = graph.op(
        "Add", [graph.input("s", (1, 4)), graph.op("Mul", [away, _const(graph, -1e4, "float32")], "p")], "z"
    )
    return graph.op("Mul", [scores, mask], "y")


@pytest.mark.parametrize("build", [_equal, _cast_to_bool, _penalty])
def test_masks(build: Callable[[TinyGraph, str], str]) -> None:
    found = _domain(build)
    assert (found.low, found.high, found.is_mask) == (0, 1, True)
    assert found.node


def test_a_bool_is_a_choice() -> None:
    graph = TinyGraph()
    graph.op("Where", [graph.input("x", (4,), "bool"), graph.input("a", (4,)), graph.input("b", (4,))], "y")
    assert domains(graph.model("y"))["x"].is_mask


def _sizes(graph: TinyGraph, x: str) -> str:
    scale = graph.op("Cast", [x], "scale", to=TensorProto.FLOAT)
    twice = graph.op("Concat", [scale, scale], "twice", axis=1)
    return graph.op("Mul", [graph.input("boxes", (5, 4)), twice], "y")


def test_sizes_that_scale_boxes_are_positive_and_have_no_upper_end() -> None:
    found = _domain(_sizes, (1, 2))
    assert (found.low, found.high, found.known) == (1, None, False)
    assert found.node == "Mul:y"
    assert "size" in found.why


def _positions(graph: TinyGraph, x: str) -> str:
    angle = graph.op("Cast", [x], "angle", to=TensorProto.FLOAT)
    return graph.op("Sin", [graph.op("Mul", [angle, _const(graph, 0.5, "float32")], "turned")], "y")


def _shape(graph: TinyGraph, x: str) -> str:
    return graph.op("Expand", [graph.stored("one", [1.0]), x], "y")


def _compared_and_used(graph: TinyGraph, x: str) -> str:
    used = graph.op("ReduceSum", [graph.op("Cast", [x], "f", to=TensorProto.FLOAT)], "used", keepdims=0)
    return graph.op("Where", [graph.op("Equal", [x, _const(graph, 0)], "none"), used, graph.stored("s", [1.0])], "y")


def _computed_index(graph: TinyGraph, x: str) -> str:
    return _gather(graph, graph.op("Add", [x, graph.input("other", (1, 4), INT64)], "sum"))


@pytest.mark.parametrize(
    ("build", "shape"), [(_positions, (1, 4)), (_shape, (2,)), (_compared_and_used, (1, 4)), (_computed_index, (1, 4))]
)
def test_what_the_graph_does_not_say_is_unknown(build: Callable[[TinyGraph, str], str], shape: tuple[int, ...]) -> None:
    found = _domain(build, shape)
    assert (found.low, found.high, found.known) == (None, None, False)
    assert found.node


def test_readers_that_exclude_each_other_leave_it_unknown() -> None:
    def build(graph: TinyGraph, x: str) -> str:
        far = graph.op("Sub", [x, _const(graph, 100)], "far")
        other = graph.op("Gather", [graph.stored("small", np.ones((3, 2))), far], "z")
        return graph.op("Add", [_gather(graph, x), other], "sum")

    found = _domain(build)
    assert not found.known
    assert "excludes" in found.why


def test_stored_integers_are_all_their_type_holds_and_pixels_too() -> None:
    def quantized(graph: TinyGraph, x: str) -> str:
        return graph.op("DequantizeLinear", [x, graph.stored("scale", 0.1), graph.stored("zero", 3, "int8")], "y")

    def pixels(graph: TinyGraph, x: str) -> str:
        moved = graph.op("Transpose", [x], "moved", perm=[0, 3, 1, 2])
        values = graph.op("Cast", [moved], "values", to=TensorProto.FLOAT)
        return graph.op("Relu", [graph.op("Div", [values, _const(graph, 255, "float32")], "scaled")], "y")

    found = _domain(quantized, dtype="int8")
    assert (found.low, found.high) == (-128, 127)
    found = _domain(pixels, (1, 4, 4, 3), "uint8")
    assert (found.low, found.high) == (0, 255)

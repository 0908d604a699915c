"""merge-axes: every order of six axes is reached with at most five, and the values are the same ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.rewriting import rewrite
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import load_transform
from deploykit.rewrites.lower_shapes import moves
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_steps_move_every_value_to_its_place(order: list[int], shape: list[int]) -> None:
    values = np.arange(np.prod(shape)).reshape(shape)
    steps = moves(shape, order)
    assert steps is not None
    moved = values
    for sizes, axes in steps:
        assert len(sizes) <= 5
        moved = moved.reshape(sizes).transpose(axes)
    np.testing.assert_array_equal(moved.reshape(-1), values.transpose(order).reshape(-1))


def test_a_window_partition_is_one_step_of_four() -> None:
    assert moves((2, 4, 7, 4, 7, 96), (0, 1, 3, 2, 4, 5)) == (((8, 7, 4, 672), (0, 2, 1, 3)),)


def _chain(between: list[int], order: list[int], last: list[int]) -> onnx.ModelProto:
    graph = TinyGraph()
    size = int(np.prod(between))
    parts = graph.op("Reshape", [graph.input("x", (size,)), graph.stored("s1", between, "int64")], "parts")
    turned = graph.op("Transpose", [parts], "turned", perm=order)
    graph.op("Relu", [graph.op("Reshape", [turned, graph.stored("s2", last, "int64")], "whole")], "y")
    return graph.model("y")


@pytest.mark.parametrize(
    ("between", "order", "last", "transposes"),
    [
        ([1, 2, 7, 2, 7, 3], [0, 1, 3, 2, 4, 5], [4, 49, 3], 1),  # window partition
        ([1, 2, 2, 7, 7, 3], [0, 1, 3, 2, 4, 5], [1, 14, 14, 3], 1),  # and back
        ([2, 3, 2, 2, 4, 5], [0, 1, 4, 2, 5, 3], [2, 3, 8, 10], 1),  # pixel shuffle
        ([2, 3, 2, 3, 2, 3], [5, 3, 1, 4, 2, 0], [6, -1], 2),  # nothing stays beside anything
        ([2, 3, 2, 3, 2, 3], [5, 4, 3, 2, 1, 0], [0, 12, 6], 2),
    ],
)
def test_the_rewritten_chain_has_at_most_five(
    between: list[int], order: list[int], last: list[int], transposes: int
) -> None:
    model = _chain(between, order, last)
    grid = affine_for_range(-1.0, 1.0, GridKind(bits=16, signed=False, symmetric=False))
    entries = {name: Encoding(name=name, value=grid) for name in ("x", "parts", "turned", "y")}
    done = rewrite(model, EncodingSet(version="1.0.0", entries=entries), ["merge-axes"], random_feeds(model))
    assert done.kept == ("merge-axes",)
    onnx.checker.check_model(done.model, full_check=True)
    types = infer(done.model).types
    assert all(len(shape or ()) <= 5 for _, shape in types.values())
    assert [node.op_type for node in done.model.graph.node].count("Transpose") == transposes
    assert done.encodings is not None
    made = {name for node in done.model.graph.node for name in node.output} - {"whole"}
    assert made <= set(done.encodings.entries)


def test_what_others_read_stays() -> None:
    model = _chain([1, 2, 7, 2, 7, 3], [0, 1, 3, 2, 4, 5], [4, 49, 3])
    model.graph.output.add().name = "turned"
    matched = load_transform("merge-axes").match(model)
    assert not matched
    assert "turned" in matched.reason


def test_five_dimensions_are_left_alone() -> None:
    assert not load_transform("merge-axes").match(_chain([2, 7, 2, 7, 3], [0, 2, 1, 3, 4], [4, 49, 3]))


def test_an_order_of_another_rank_than_the_shape_is_left_alone() -> None:
    assert moves((2, 3), (0, 2, 1)) is None
    assert moves((2, 3), (0, 0)) is None

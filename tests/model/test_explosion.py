"""Shape inference never explodes, and graphs that only look odd keep their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def info(name: str, shape: Sequence[int | str] | None, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    output: str,
    *,
    kind: int = TensorProto.FLOAT,
    **lists: object,
) -> onnx.ModelProto:
    """Inputs whose names start with ``i`` hold int64, ``lists`` are stored int64."""
    tensors = [numpy_helper.from_array(np.asarray(value, np.int64), name) for name, value in lists.items()]
    ins = [info(n, shape, TensorProto.INT64 if n.startswith("i") else kind) for n, shape in inputs.items()]
    outs = [info(output, None, TensorProto.INT64 if output.startswith("i") else kind)]
    graph = helper.make_graph(nodes, "g", ins, outs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def doubled_shape(times: int) -> onnx.ModelProto:
    doubling = [node("Concat", f"s{i} s{i}", f"s{i + 1}", axis=0) for i in range(times)]
    return model([node("Shape", "x", "s0"), *doubling, node("Reshape", f"x s{times}", "y")], {"x": [2, 3]}, "y")


BOMBS = {
    "gathers that add ranks": model(
        [node("Gather", f"i{i} i{i}", f"i{i + 1}") for i in range(40)], {"i0": [2, 3]}, "i40"
    ),
    "a shape doubled again and again": doubled_shape(34),
    "a shape input of a billion sizes": model([node("Reshape", "x i", "y")], {"x": [2, 3], "i": [10**9]}, "y"),
    "a billion sizes made from nothing": model(
        [node("ConstantOfShape", "n", "t"), node("Reshape", "x t", "y")], {"x": [2, 3]}, "y", n=[10**9]
    ),
    "a billion sizes by expansion": model(
        [node("Expand", "one n", "t"), node("Reshape", "x t", "y")], {"x": [2, 3]}, "y", n=[10**9], one=[1]
    ),
    "one more dimension, endlessly": model(
        [node("Unsqueeze", f"t{i} a", f"t{i + 1}") for i in range(3_000)], {"t0": [2]}, "t3000", a=[0]
    ),
    "the same inside a body": model(
        [
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                then_branch=helper.make_graph(
                    [node("Shape", "x", "s0"), *[node("Concat", f"s{i} s{i}", f"s{i + 1}", axis=0) for i in range(34)]],
                    "then",
                    [],
                    [info("s34", None, TensorProto.INT64)],
                ),
                else_branch=helper.make_graph(
                    [node("Shape", "x", "e")], "else", [], [info("e", None, TensorProto.INT64)]
                ),
            )
        ],
        {"x": [2, 3], "c": []},
        "y",
    ),
}


def chained(count: int, rank: int) -> onnx.ModelProto:
    """So many operators, one behind the other, on a tensor of so many dimensions."""
    nodes = [node("Relu", "x" if not i else f"t{i}", f"t{i + 1}") for i in range(count)]
    return model(nodes, {"x": [1] * rank}, f"t{count}")


def facts_of(proto: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(proto, path=Path("m.onnx")))


def test_bombs_stay_small_and_are_answered(within_a_gigabyte: Callable[..., list[str]]) -> None:
    """What takes too much memory, or too many small pieces of it, is told; the rest is known or is not."""
    bombs = [*BOMBS.values(), chained(5_000, 1_000)]
    said = within_a_gigabyte(*(bomb.SerializeToString() for bomb in bombs))
    told = ("its shapes would take more memory", "its tensors have more than 1,500,000 dimensions")
    assert all(line == "None " or line.removeprefix("None ").startswith(told) for line in said), said
    assert len(said) == len(bombs) and any(told[0] in line for line in said) and told[1] in said[-1]


@pytest.mark.parametrize(("count", "known"), [(1_500, True), (1_501, False)])
def test_both_sides_of_the_limit(count: int, known: bool) -> None:
    facts = facts_of(chained(count, 1_000))
    assert (facts.tensors[f"t{count}"].shape is not None) is known
    assert bool(facts.inference_problem) is not known


def test_a_small_doubling_is_no_bomb() -> None:
    assert facts_of(doubled_shape(2)).tensors["s2"].shape == (8,)


def test_the_way_exporters_write_expand_keeps_its_shape() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "b"),
        node("Unsqueeze", "b axis", "b1"),
        node("Concat", "b1 four five", "wanted", axis=0),
        node("Shape", "wanted", "k"),
        node("ConstantOfShape", "k", "ones", value=numpy_helper.from_array(np.array([1], np.int64))),
        node("Mul", "ones minus", "negative"),
        node("Equal", "wanted negative", "keep"),
        node("Where", "keep ones wanted", "sizes"),
        node("Expand", "z sizes", "y"),
    ]
    proto = model(nodes, {"x": ["n", 3], "z": [1, 4, 5]}, "y", zero=0, axis=[0], four=[4], five=[5], minus=-1)
    assert facts_of(proto).tensors["y"].shape == (None, 4, 5)


def test_computed_reshapes_are_inferred() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s zero one", "head"),
        node("Concat", "head rest", "sizes", axis=0),
        node("Reshape", "x sizes", "y"),
    ]
    proto = model(nodes, {"x": ["n", 3, 4]}, "y", zero=[0], one=[1], rest=[12])
    assert facts_of(proto).tensors["y"].shape == ("n", 12)

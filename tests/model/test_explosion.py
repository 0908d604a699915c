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
from deploykit.model.shape_inference import explosive_nodes
from tables import each_row


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


def test_bombs_stay_small_and_the_rest_is_known(within_a_gigabyte: Callable[..., list[str]]) -> None:
    said = within_a_gigabyte(*(model.SerializeToString() for model in BOMBS.values()))
    assert said == ["None "] * len(BOMBS)


def test_a_small_doubling_is_no_bomb() -> None:
    assert explosive_nodes(doubled_shape(3).graph) == frozenset()
    facts = collect_facts(wrap_proto(doubled_shape(2), path=Path("m.onnx")))
    assert facts.tensors["s2"].shape == (8,)


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
    assert explosive_nodes(proto.graph) == frozenset()
    facts = collect_facts(wrap_proto(proto, path=Path("m.onnx")))
    assert facts.tensors["y"].shape == (None, 4, 5)


def test_computed_reshapes_are_inferred() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s zero one", "head"),
        node("Concat", "head rest", "sizes", axis=0),
        node("Reshape", "x sizes", "y"),
    ]
    proto = model(nodes, {"x": ["n", 3, 4]}, "y", zero=[0], one=[1], rest=[12])
    facts = collect_facts(wrap_proto(proto, path=Path("m.onnx")))
    assert facts.tensors["y"].shape == ("n", 12)


@pytest.mark.parametrize("name", ["cnn", "vit", "detr", "mlp"])
def test_no_node_of_a_real_model_is_left_out(name: str) -> None:
    proto = onnx.load(Path(__file__).parents[1] / "data" / "aimet" / name / "model.onnx")
    assert explosive_nodes(proto.graph) == frozenset()


def test_the_integers_of_quantized_weights_are_no_shapes() -> None:
    """Three stored tables of 900 integers, dequantized and joined, are more numbers than a shape may have sizes."""
    tables = [numpy_helper.from_array(np.ones((30, 30), np.int8), f"w{i}") for i in range(3)]
    scale = numpy_helper.from_array(np.asarray(0.5, np.float32), "s")
    pairs = [helper.make_node("DequantizeLinear", [f"w{i}", "s"], [f"d{i}"], domain="com.microsoft") for i in range(3)]
    nodes = [*pairs, node("Concat", "d0 d1 d2", "t", axis=0), node("Add", "x t", "y")]
    graph = helper.make_graph(
        nodes, "g", [info("x", [1, 30], TensorProto.FLOAT)], [info("y", None, TensorProto.FLOAT)], [*tables, scale]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert not explosive_nodes(made.graph)
    assert collect_facts(wrap_proto(made, path=Path("m.onnx"))).tensors["y"].shape == (90, 30)


def ones(rank: int) -> list[int | str]:
    return [1] * rank


def of_rank(rank: int, **attributes: Any) -> onnx.ModelProto:
    """One operator on two tensors of so many dimensions, an operator with a list of so many numbers otherwise."""
    return model([node(attributes.pop("op"), attributes.pop("on"), "y", **attributes)], {"x": ones(rank)}, "y", a=[0])


def resized(count: int, *between: onnx.NodeProto, by: str = "i", op: str = "Reshape", **lists: Any) -> onnx.ModelProto:
    """A Reshape by ``by``, which the nodes between make of ``i`` with ``count`` numbers and ``j`` with one."""
    nodes = [*between, node(op, by if op == "ConstantOfShape" else f"x {by}", "y")]
    return model(nodes, {"x": [2, 3], "i": [count], "j": [1]}, "y", **lists)


EDGES = {
    "an operator that keeps the rank": lambda more: of_rank(1024 + more, op="Relu", on="x"),
    "Gather adds the ranks": lambda more: model(
        [node("Gather", "x i", "y")], {"x": ones(513 + more), "i": ones(512)}, "y"
    ),
    "Unsqueeze adds what a tensor says": lambda more: model(
        [node("Unsqueeze", "x a", "y")], {"x": ones(4)}, "y", a=list(range(1020 + more))
    ),
    "Einsum is as long as its equation": lambda more: of_rank(4, op="Einsum", on="x", equation="a" * (1024 + more)),
    "Reshape by so many numbers": lambda more: resized(1024 + more),
    "Concat adds up": lambda more: resized(1023 + more, node("Concat", "i j", "s", axis=0), by="s"),
    "Gather has as many as its indices": lambda more: resized(1024 + more, node("Gather", "j i", "s"), by="s"),
    "pairs have the larger count": lambda more: resized(1024 + more, node("Mul", "j i", "s"), by="s"),
    "movement keeps the count": lambda more: resized(1024 + more, node("Slice", "i j j", "s"), by="s"),
    "what is made of ones": lambda more: resized(1, node("ConstantOfShape", "n", "s"), by="s", n=[1024 + more]),
    "a shape has the rank as its count": lambda more: model(
        [node("Shape", "x", "s"), node("Concat", "s s", "t", axis=0), node("Reshape", "x t", "y")],
        {"x": ones(512 + more)},
        "y",
    ),
}
"""Both sides of the limit of 1024 dimensions: (how many more than fit) -> a model."""


@each_row("case", EDGES)
def test_both_sides_of_the_limit(case: str) -> None:
    assert not explosive_nodes(EDGES[case](0).graph)
    assert explosive_nodes(EDGES[case](1).graph)


def test_what_nobody_counts_is_beyond_every_limit() -> None:
    assert explosive_nodes(resized(4, node("NoSuchOperator", "i", "s"), by="s").graph)

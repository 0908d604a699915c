"""inline-control-flow: branches and loops that fixed shapes settle become straight lines; others stay."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from deploykit.flow.cure import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds

NAME = "inline-control-flow"
FLOAT = TensorProto.FLOAT


def _body(name: str, op: str) -> onnx.GraphProto:
    made = helper.make_tensor_value_info(f"{name}.y", FLOAT, [2, 3])
    return helper.make_graph([helper.make_node(op, ["x"], [f"{name}.y"], name=f"{name}.node")], name, [], [made])


def _branching(condition: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Relu or Neg of the input, by a condition that the nodes make as ``which``."""
    chosen = helper.make_node(
        "If", ["which"], ["y"], name="if", then_branch=_body("then", "Relu"), else_branch=_body("else", "Neg")
    )
    graph = helper.make_graph(
        [*condition, chosen],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, [2, 3])],
        [onnx.numpy_helper.from_array(np.asarray(5, np.int64), "five")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_branch_that_the_shape_of_an_input_settles_is_put_in() -> None:
    model = _branching([helper.make_node("Size", ["x"], ["n"]), helper.make_node("Greater", ["n", "five"], ["which"])])
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,)
    operators = [node.op_type for node in done.model.graph.node]
    assert "Relu" in operators and "If" not in operators and "Neg" not in operators


def test_a_branch_that_values_decide_stays() -> None:
    reduced = helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0)
    model = _branching([reduced, helper.make_node("Greater", ["sum", "sum"], ["which"])])
    matched = load_transform(NAME).match(model)
    assert not matched and matched.reason == "the conditions depend on the values of inputs"


def test_both_branches_are_computed_where_values_decide() -> None:
    reduced = helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0)
    model = _branching([reduced, helper.make_node("Greater", ["sum", "half"], ["which"])])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(0.5, np.float32), "half"))
    done = rewrite(model, None, ["both-branches"], random_feeds(model, samples=4))
    assert done.kept == ("both-branches",), done.steps
    operators = [node.op_type for node in done.model.graph.node]
    assert {"Relu", "Neg", "Where"} <= {*operators} and "If" not in operators


def test_branches_of_different_sizes_stay() -> None:
    model = _branching([helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0)])
    model.graph.node.insert(1, helper.make_node("Greater", ["sum", "sum"], ["which"]))
    (branch,) = (a.g for a in model.graph.node[-1].attribute if a.name == "then_branch")
    branch.node[0].CopyFrom(helper.make_node("ReduceMax", ["x"], ["then.y"], axes=[0]))
    branch.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert not load_transform("both-branches").match(model)

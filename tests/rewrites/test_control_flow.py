"""inline-control-flow: branches and loops that fixed shapes settle become straight lines; others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from deploykit.flow.cure import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model

NAME = "inline-control-flow"
THEN, ELSE = "(float[2,3] t) { t = Relu (x) }", "(float[2,3] e) { e = Neg (x) }"


def _branching(condition: str, then: str = THEN, made: str = "float[2,3] y", **stored: Any) -> onnx.ModelProto:
    """Relu or Neg of the input, by a condition that is made as ``which``."""
    body = f"{condition}  y = If (which) <then_branch = t () => {then}, else_branch = e () => {ELSE}>"
    return text_model("float[2,3] x", body, made, **stored)


def test_a_branch_that_the_shape_of_an_input_settles_is_put_in() -> None:
    model = _branching("n = Size (x)  which = Greater (n, five)", five=5)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,)
    operators = [node.op_type for node in done.model.graph.node]
    assert "Relu" in operators and "If" not in operators and "Neg" not in operators


def test_a_branch_that_values_decide_stays_or_both_are_computed() -> None:
    model = _branching("sum = ReduceSum <keepdims = 0> (x)  which = Greater (sum, half)", half=0.5)
    matched = load_transform(NAME).match(model)
    assert not matched and matched.reason == "the conditions depend on the values of inputs"
    done = rewrite(model, None, ["both-branches"], random_feeds(model, samples=4))
    assert done.kept == ("both-branches",), done.steps
    operators = {node.op_type for node in done.model.graph.node}
    assert {"Relu", "Neg", "Where"} <= operators and "If" not in operators


LOOPED = "y = Loop (count, on, x) <body = b (int64 i, bool go, float[2,3] a) => (bool more, float[2,3] c) "
LOOPED += "{ more = Identity (go)  c = Add (a, a) }>"


@each_row(("count", "on", "left"), [(3, True, "Add Add Add"), (0, True, "Loop"), (3, False, "Loop"), (3, None, "Loop")])
def test_a_loop_whose_rounds_are_settled_is_written_out(count: int, on: bool | None, left: str) -> None:
    stored: dict[str, Any] = {} if on is None else {"on": np.asarray(on)}
    given = "float[2,3] x, bool on" if on is None else "float[2,3] x"
    model = text_model(given, LOOPED, "float[2,3] y", count=count, **stored)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert [
        node.op_type for node in done.model.graph.node if node.op_type not in ("Identity", "Constant")
    ] == left.split()


def test_branches_of_different_sizes_stay() -> None:
    then = "(float[1,3] t) { t = ReduceMax <axes = [0]> (x) }"
    model = _branching("sum = ReduceSum <keepdims = 0> (x)  which = Greater (sum, sum)", then, "y")
    assert not load_transform("both-branches").match(model)

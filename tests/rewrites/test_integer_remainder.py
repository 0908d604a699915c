"""integer-remainder: the same remainders for every sign; floats are refused."""

from __future__ import annotations

import numpy as np
import onnx

from deploykit.accuracy.simulate.sessions import Session
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.tiny_graphs import TinyGraph


def _remainder(dtype: str, *, positive: bool) -> onnx.ModelProto:
    graph = TinyGraph()
    given = graph.input("x", (8,), dtype)
    if positive:
        given = graph.op("Clip", [given, graph.stored("low", 0, dtype), graph.stored("high", 99, dtype)], "clipped")
    graph.op("Mod", [given, graph.stored("by", [3, 3, 4, 4, 5, 5, 7, 7], dtype)], "y", fmod=1)
    return graph.model("y")


def _rewritten(model: onnx.ModelProto) -> list[str]:
    feed = {"x": np.array([-7, 7, -8, 8, -1, 1, 0, 50], np.int64)}
    done = rewrite(model, None, ["integer-remainder"], [feed])
    assert done.kept == ("integer-remainder",)
    np.testing.assert_array_equal(Session(done.model).run(feed)["y"], Session(model).run(feed)["y"])
    onnx.checker.check_model(done.model, full_check=True)
    return [node.op_type for node in done.model.graph.node]


def test_a_dividend_of_either_sign_keeps_its_sign() -> None:
    assert _rewritten(_remainder("int64", positive=False)) == ["Div", "Mul", "Sub"]


def test_where_nothing_is_negative_the_other_mod_does() -> None:
    assert _rewritten(_remainder("int64", positive=True)) == ["Clip", "Mod"]


def test_floats_are_refused() -> None:
    matched = load_transform("integer-remainder").match(_remainder("float32", positive=True))
    assert not matched
    assert "floats" in matched.reason

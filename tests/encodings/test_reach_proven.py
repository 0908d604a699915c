"""What exceeds float16: attained values are told from bounds, masks and what is proven impossible from trouble."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from deploykit.encodings.reach import Reach, collect_reach, only_masks, proven_bounds
from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts, constant_range
from deploykit.model.load import Model
from sample_models.tiny_graphs import TinyGraph

ZOO = Path(__file__).parents[1] / "data" / "zoo"
FLOAT16 = 65504.0


def beyond(model: Model) -> Mapping[str, Reach]:
    """Tensors beyond float16 that are no masks."""
    facts = collect_facts(model)
    proven = proven_bounds(model, None)
    reach = collect_reach(facts, None, lambda name: constant_range(model, name), bounds=proven)
    return {n: r for n, r in reach.items() if r.magnitude > FLOAT16 and not only_masks(facts, n, r)}


def wrapped(proto: ModelProto) -> Model:
    return wrap_proto(proto, path=Path("tiny.onnx"))


@pytest.mark.parametrize("name", ["distilbert", "segformer", "superres", "gru_lstm"])
def test_true_float_models_that_fit_float16_are_not_accused(name: str) -> None:
    """Epsilons of 1e-12 below a root, -inf in attention masks: the largest real value of distilbert is 3.6."""
    assert beyond(load_model(ZOO / name / "model.onnx")) == {}


def test_without_bounds_the_estimate_accuses_them() -> None:
    model = load_model(ZOO / "distilbert" / "model.onnx")
    reach = collect_reach(collect_facts(model), None, lambda name: constant_range(model, name))
    assert sum(found.magnitude > FLOAT16 for found in reach.values()) > 20


def _attention(mask: float, *, also: bool = False, after: str = "Softmax") -> Model:
    graph = TinyGraph()
    graph.input("scores", (2, 4, 4))
    graph.stored("mask", np.where(np.tri(4), 0, mask))
    graph.op("Add", ["scores", "mask"], "masked")
    graph.op(after, ["masked"], "y")
    outputs = ["y"]
    if also:
        outputs.append(graph.op("Neg", ["masked"], "z"))
    return wrapped(graph.model(*outputs))


@pytest.mark.parametrize("mask", [-np.inf, -3.4e38, -1e9])
def test_a_mask_that_only_reaches_a_softmax_is_no_trouble(mask: float) -> None:
    assert beyond(_attention(mask)) == {}


@pytest.mark.parametrize("mask", [-np.inf, -3.4e38, -1e9])
def test_a_mask_that_reaches_arithmetic_is(mask: float) -> None:
    assert "masked" in beyond(_attention(mask, also=True))
    assert "masked" in beyond(_attention(mask, after="Neg"))


def test_a_large_positive_constant_is_no_mask() -> None:
    assert "masked" in beyond(_attention(1e9))


def test_what_passes_through_is_attained_and_what_extremes_make_is_at_most() -> None:
    graph = TinyGraph()
    graph.input("x", (4,))
    graph.stored("huge", [1e6, 1, 2, 3])
    graph.stored("wide", [300.0, 1, 2, 3])
    graph.op("Add", ["x", "huge"], "sum")
    graph.op("Mul", ["wide", graph.op("Mul", ["wide", graph.op("Sigmoid", ["x"], "s")], "first")], "second")
    found = beyond(wrapped(graph.model("sum", "second")))
    assert found["sum"].attained
    assert found["sum"].cause == "huge"
    assert not found["second"].attained
    assert found["second"].high == 90000


def test_a_bound_holds_where_the_estimate_lies_wholly_outside() -> None:
    """RWKV's exp(k - max(k, s - w)): k counts as moderate, so that the estimate of the difference is w and more."""
    graph = TinyGraph()
    graph.input("k", (4,))
    graph.input("s", (4,))
    graph.stored("decay", [-24.0, -20.0, -16.0, -12.0])
    graph.op("Max", [graph.op("Add", ["s", "decay"], "faded"), "k"], "highest")
    graph.op("Exp", [graph.op("Sub", ["k", "highest"], "difference")], "weight")
    model = wrapped(graph.model("weight"))
    facts = collect_facts(model)
    proven = proven_bounds(model, None)
    found = collect_reach(facts, None, lambda name: constant_range(model, name), bounds=proven)
    assert (found["difference"].high, found["weight"].high) == (0.0, 1.0)
    assert beyond(model) == {}

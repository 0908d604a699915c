"""How far values reach, and where an infinity does no harm."""

from __future__ import annotations

from typing import Any

import pytest

from deploykit.contract.tiny_graphs import TinyGraph
from deploykit.graph.collect import collect_facts
from deploykit.graph.facts import GraphFacts
from deploykit.graph.loading import wrap_proto
from deploykit.quantization.reach import collect_reach, saturates


def facts_of(graph: TinyGraph, *outputs: str) -> GraphFacts:
    from pathlib import Path

    return collect_facts(wrap_proto(graph.model(*outputs), path=Path("tiny.onnx")))


def end_in(op_type: str, *more: float | None, **attributes: Any) -> GraphFacts:
    """x + 1e30, reshaped, then one op."""
    graph = TinyGraph()
    added = graph.op("Add", [graph.input("x", (2, 2)), graph.stored("huge", 1e30)], "added")
    flat = graph.op("Reshape", [added, graph.stored("shape", [4], dtype="int64")], "flat")
    names = ["" if value is None else graph.stored(f"c{index}", value) for index, value in enumerate(more)]
    return facts_of(graph, *[graph.op(op_type, [flat, *names], "y", **attributes)][:1])


@pytest.mark.parametrize("op_type", ["Sigmoid", "Tanh", "HardSigmoid", "Erf"])
def test_an_infinity_before_a_saturating_op_is_harmless(op_type: str) -> None:
    assert saturates(end_in(op_type), "added")


@pytest.mark.parametrize("op_type", ["Relu", "Exp", "Softmax", "Neg"])
def test_an_infinity_before_any_other_op_is_harm(op_type: str) -> None:
    assert not saturates(end_in(op_type), "added")


def test_a_clip_saturates_where_it_has_both_bounds() -> None:
    assert saturates(end_in("Clip", -1.0, 1.0), "added")
    assert not saturates(end_in("Clip", 0.0), "added")
    assert not saturates(end_in("Clip", None, 1.0), "added")


def test_an_output_of_the_graph_is_harm() -> None:
    graph = TinyGraph()
    added = graph.op("Add", [graph.input("x", (2, 2)), graph.stored("huge", 1e30)], "added")
    assert not saturates(facts_of(graph, added, graph.op("Sigmoid", [added], "y")), "added")


def test_bounded_ops_end_a_reach_and_moves_pass_it_on() -> None:
    facts = end_in("Sigmoid")
    ranges = {"huge": (1e30, 1e30)}
    reach = collect_reach(facts, None, ranges.get)
    assert (reach["flat"].magnitude, reach["flat"].cause) == (1e30, "huge")
    assert (reach["y"].low, reach["y"].high) == (0.0, 1.0)

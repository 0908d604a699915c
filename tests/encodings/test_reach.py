"""How far values reach, and where an infinity does no harm."""

from __future__ import annotations

import math
from typing import Any

import pytest

from deploykit.encodings.reach import Reach, collect_reach, only_masks, saturates
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from sample_models.tiny_graphs import TinyGraph
from tables import each_row


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


def reach_of(op_type: str, *operands: tuple[float, float] | None, **attributes: Any) -> Reach | None:
    """The reach of one operator on stored operands with these ranges, or on an input where there is none."""
    graph = TinyGraph()
    names = [
        graph.input(f"x{index}", (2,)) if ends is None else graph.stored(f"c{index}", list(ends))
        for index, ends in enumerate(operands)
    ]
    facts = facts_of(graph, graph.op(op_type, names, "y", **attributes))
    ranges = {f"c{index}": ends for index, ends in enumerate(operands)}
    return collect_reach(facts, None, ranges.get).get("y")


@each_row(
    ("op_type", "operands", "expected"),
    [
        ("Neg", [(-3.0, 2.0)], (-2, 3)),
        ("Abs", [(-3.0, 2.0)], (0, 3)),
        ("Relu", [(-3.0, 2.0)], (0, 2)),
        ("Relu", [(-3.0, -2.0)], (0, 0)),
        ("Exp", [(0.0, 1.0)], (1, math.e)),
        ("Exp", [(699.0, 701.0)], (math.exp(699), math.exp(700))),
        ("Log", [(1.0, math.e)], (0, 1)),
        ("Log", [(0.0, 1.0)], None),
        ("Sqrt", [(0.0, 4.0)], (0, 2)),
        ("Sqrt", [(-1.0, 4.0)], None),
        ("Add", [(-3.0, 2.0), (1.0, 5.0)], (-2, 7)),
        ("Sub", [(-3.0, 2.0), (1.0, 5.0)], (-8, 1)),
        ("Mul", [(-3.0, 2.0), (1.0, 5.0)], (-15, 10)),
        ("Div", [(-3.0, 2.0), (0.5, 5.0)], (-6, 4)),
        ("Div", [(-3.0, 2.0), (0.0, 5.0)], None),
        ("Div", [(-3.0, 2.0), (-5.0, 0.0)], None),
        ("Add", [None, (1.0, 5.0)], (1, 5)),
        ("Add", [(1.0, 5.0), None], (1, 5)),
        ("Max", [(-3.0, 2.0), (1.0, 5.0)], (1, 5)),
        ("Max", [(-9.0, 2.0), (1.0, 5.0)], (-9, 2)),
        ("Transpose", [(-3.0, 2.0)], (-3, 2)),
        ("Sigmoid", [(-3.0, 2.0)], (0, 1)),
        ("Sigmoid", [None], (0, 1)),
        ("Relu", [None], None),
        ("Erf", [None], (-1, 1)),
        ("Softsign", [(-3.0, 2.0)], None),
        ("Clip", [None, (-1.0, -1.0), (4.0, 4.0)], (-1, 4)),
        ("Clip", [(-3.0, 2.0), (-1.0, -1.0)], (-1, 2)),
        ("Clip", [(-3.0, 2.0)], (-3, 2)),
        ("Clip", [None, (-1.0, -1.0)], None),
    ],
)
def test_what_one_operator_reaches(
    op_type: str, operands: list[tuple[float, float] | None], expected: tuple[float, float] | None
) -> None:
    found = reach_of(op_type, *operands)
    assert (None if found is None else (found.low, found.high)) == (
        None if expected is None else pytest.approx(expected)
    )


@each_row(
    ("op_type", "operands", "cause", "attained"),
    [
        ("Add", [(0.0, 2.0), (0.0, 5.0)], "c1", True),
        ("Add", [(0.0, 5.0), (0.0, 2.0)], "c0", True),
        ("Add", [(0.0, 5.0), (0.0, 5.0)], "c0", True),
        ("Mul", [(0.0, 5.0), (0.0, 2.0)], "c0", False),
        ("Mul", [(0.0, 5.0), (2.0, 2.0)], "c0", True),
        ("Mul", [(0.0, 2.0), (5.0, 5.0)], "c1", True),
        ("Div", [(0.0, 5.0), (0.5, 0.5)], "c1", True),
        ("Div", [(0.0, 5.0), (1.0, 1.0)], "c0", True),
        ("Div", [(0.0, 5.0), (0.5, 1.0)], "c1", False),
    ],
)
def test_what_makes_it_that_large(
    op_type: str, operands: list[tuple[float, float] | None], cause: str, attained: bool
) -> None:
    found = reach_of(op_type, *operands)
    assert found is not None
    assert (found.cause, found.attained) == (cause, attained)


@each_row(
    ("reach", "after", "mask"),
    [
        ((-1e9, 0.0), "Softmax", True),
        ((-1e9, 65504.0), "Softmax", True),
        ((-1e9, 65505.0), "Softmax", False),
        ((-9.0, 9.0), "Softmax", True),
        ((-9.0, 9.1), "Softmax", False),
        ((0.0, 9.0), "Softmax", False),
        ((-1e9, 0.0), "Relu", False),
    ],
)
def test_what_only_switches_positions_off(reach: tuple[float, float], after: str, mask: bool) -> None:
    graph = TinyGraph()
    added = graph.op("Add", [graph.input("x", (2, 2)), graph.input("m", (2, 2))], "added")
    facts = facts_of(graph, graph.op(after, [added], "y"))
    assert only_masks(facts, "m", Reach(low=reach[0], high=reach[1], cause="m")) is mask
    shown = facts_of(graph, "y", added)
    assert not only_masks(shown, "m", Reach(low=reach[0], high=reach[1], cause="m"))

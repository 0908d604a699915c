"""The places where two graphs differ."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts, changes_between

HEAD = '<ir_version: 8, opset_import: ["" : 17]> net (float[4] x, float[4] w) => (float[4] y, float[4] z)'


def facts(body: str) -> GraphFacts:
    return collect_facts(wrap_proto(onnx.parser.parse_model(f"{HEAD} {{ {body} }}"), path=Path("net.onnx")))


GIVEN = facts("a = Mul(x, w) b = Relu(a) c = Neg(b) y = Abs(c) d = Sin(x) z = Cos(d)")


def test_the_same_graph_has_no_changes() -> None:
    assert changes_between(GIVEN, GIVEN) == ()
    again = facts("d = Sin(x) a = Mul(x, w) b = Relu(a) z = Cos(d) c = Neg(b) y = Abs(c)")
    assert changes_between(GIVEN, again) == (), "the order of nodes is no change"


def test_places_apart_are_told_apart_and_neighbours_together() -> None:
    after = facts("a = Mul(x, w) b = Sigmoid(a) c = Neg(b) y = Abs(c) z = Tan(x)")
    first, second = changes_between(GIVEN, after)
    assert str(first) == "Relu → Sigmoid"
    assert str(second) == "Sin, Cos → Tan"
    assert first.to_json() == {"before": ["Relu"], "after": ["Sigmoid"], "nodes": ["Relu -> b"]}
    assert second.where == "Sin -> d"


def test_a_shared_input_or_weight_makes_no_neighbours() -> None:
    after = facts("a = Add(x, w) b = Relu(a) c = Neg(b) y = Abs(c) d = Exp(x) z = Cos(d)")
    assert [str(change) for change in changes_between(GIVEN, after)] == ["Mul → Add", "Sin → Exp"]


@pytest.mark.parametrize(("before", "after"), [("y = Abs(x) z = Neg(x)", "y = Abs(w) z = Neg(x)")])
def test_another_input_is_a_change(before: str, after: str) -> None:
    (change,) = changes_between(facts(before), facts(after))
    assert str(change) == "Abs with other inputs or attributes"


def test_what_only_went_or_only_came() -> None:
    gone = facts("a = Mul(x, w) b = Relu(a) c = Neg(b) y = Abs(c) z = Sin(x)")
    (change,) = changes_between(GIVEN, gone)
    assert str(change) == "Sin, Cos → Sin"

"""How far values reach: where an infinity does no harm, and what exceeds float16 in truth and not by a bound."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploykit.encodings.reach import Reach, collect_reach, only_masks, proven_bounds, saturates
from deploykit.model.collect import collect_facts, constant_range
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model, load_model, wrap_proto
from tables import each_row
from text_models import text_model

ZOO = Path(__file__).parents[1] / "data" / "zoo"
FLOAT16 = 65504.0


def read(body: str, made: str = "y", given: str = "float[2,2] x", **stored: Any) -> Model:
    return wrap_proto(text_model(given, body, made, **stored), path=Path("tiny.onnx"))


def facts_of(*args: str, **stored: Any) -> GraphFacts:
    return collect_facts(read(*args, **stored))


@each_row(
    ("end", "harmless"),
    *((f"y = {op} (flat)", True) for op in ("Sigmoid", "Tanh", "HardSigmoid", "Erf", "Reciprocal")),
    *((f"y = {op} (flat)", False) for op in ("Relu", "Exp", "Softmax", "Neg")),
    ("y = Clip (flat, low, high)", True),
    ("y = Div (low, flat)", True),
    ("y = Div (flat, low)", False),
    ("y = Clip (flat, low)", False),
    ("y = Clip (flat, , high)", False),
)
def test_an_infinity_is_harmless_before_an_operator_that_saturates(end: str, harmless: bool) -> None:
    body = f"added = Add (x, huge)  flat = Reshape (added, shape)  {end}"
    stored: dict[str, Any] = {"huge": 1e30, "shape": [4], "low": -1.0, "high": 1.0}
    assert saturates(facts_of(body, **stored), "added") is harmless
    assert not saturates(facts_of(body, "y, added", **stored), "added"), "an output of the graph is harm"


def reach_of(op_type: str, *operands: tuple[float, float] | None) -> Reach | None:
    """The reach of one operator on stored operands with these ranges, or on an input where there is none."""
    names = ["x" if ends is None else f"c{index}" for index, ends in enumerate(operands)]
    ranges = {f"c{index}": ends for index, ends in enumerate(operands) if ends is not None}
    facts = facts_of(f"y = {op_type} ({', '.join(names)})", **{name: list(ends) for name, ends in ranges.items()})
    return collect_reach(facts, None, ranges.get).get("y")


@each_row(
    ("op_type", "operands", "expected"),
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
)
def test_what_one_operator_reaches(
    op_type: str, operands: list[tuple[float, float] | None], expected: tuple[float, float] | None
) -> None:
    found = reach_of(op_type, *operands)
    assert (None if found is None else (found.low, found.high)) == (
        None if expected is None else pytest.approx(expected)
    )


@each_row(
    ("reach", "after", "mask"),
    *((reach, "Softmax", True) for reach in ((-1e9, 0.0), (-1e9, 65504.0), (-9.0, 9.0))),
    *((reach, "Softmax", False) for reach in ((-1e9, 65505.0), (-9.0, 9.1), (0.0, 9.0))),
    ((-1e9, 0.0), "Relu", False),
)
def test_what_only_switches_positions_off(reach: tuple[float, float], after: str, mask: bool) -> None:
    body, given = f"added = Add (x, m)  y = {after} (added)", "float[2,2] x, float[2,2] m"
    found = Reach(low=reach[0], high=reach[1], cause="m")
    assert only_masks(facts_of(body, "y", given), "m", found) is mask
    assert not only_masks(facts_of(body, "y, added", given), "m", found)


def beyond(model: Model) -> Mapping[str, Reach]:
    """Tensors beyond float16 that are no masks."""
    facts = collect_facts(model)
    proven = proven_bounds(facts, model, None)
    reach = collect_reach(facts, None, lambda name: constant_range(model, name), bounds=proven)
    return {n: r for n, r in reach.items() if r.magnitude > FLOAT16 and not only_masks(facts, n, r)}


@each_row("name", "distilbert", "segformer", "superres", "gru_lstm")
def test_true_float_models_that_fit_float16_are_not_accused(name: str) -> None:
    """Epsilons of 1e-12 below a root, -inf in attention masks: the largest real value of distilbert is 3.6."""
    model = load_model(ZOO / name / "model.onnx")
    assert beyond(model) == {}
    if name == "distilbert":  # without bounds the estimate accuses it
        reach = collect_reach(collect_facts(model), None, lambda name: constant_range(model, name))
        assert any(found.magnitude > FLOAT16 for found in reach.values())


def test_a_small_number_beside_one_that_nothing_is_known_of_tells_nothing() -> None:
    """Log-mel features over their deviation: neither the power nor the deviation is next to zero."""
    body = "p = MatMul (x, x)  a = Add (p, tiny)  l = Log (a)  d = Abs (p)  e = Add (d, tiny)  q = Div (l, e)"
    assert beyond(read(body, "q", "float[4,4] x", tiny=1e-6)) == {}

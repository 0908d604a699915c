"""How far values reach: where an infinity does no harm, and what exceeds float16 in truth and not by a bound."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploykit.encodings.reach import Reach, collect_reach, only_masks, proven_bounds
from deploykit.model.collect import collect_facts, constant_range
from deploykit.model.load import Model, load_model, wrap_proto
from tables import each_row
from text_models import text_model

ZOO = Path(__file__).parents[1] / "data" / "zoo"
FLOAT16 = 65504.0


def read(body: str, made: str = "y", given: str = "float[2,2] x", **stored: Any) -> Model:
    return wrap_proto(text_model(given, body, made, **stored), path=Path("tiny.onnx"))


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

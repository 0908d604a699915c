"""How far values reach: where an infinity does no harm, and what exceeds float16 in truth and not by a bound."""

from collections.abc import Mapping
from pathlib import Path

from deploykit.encodings.reach import Reach, collect_reach, only_masks, proven_bounds
from deploykit.model.collect import collect_facts, constant_range
from deploykit.model.load import Model, load_model
from tables import each_row

ZOO = Path(__file__).parents[1] / "data" / "zoo"
FLOAT16 = 65504.0


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

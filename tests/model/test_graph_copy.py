"""A graph that may be changed, and the blocks that are found in it."""

from collections import Counter
from pathlib import Path

import pytest

from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.graph import view_of
from deploykit.model.load import load_model
from deploykit.model.nodes import without_values
from deploykit.model.patterns import find_blocks
from text_models import text_model

ZOO = Path(__file__).parents[1] / "data" / "zoo"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("distilbert", {"LayerNormalization": 5, "Gelu": 2}), ("segformer", {"LayerNormalization": 19, "Gelu": 4})],
)
def test_every_block_of_true_exports_is_found(name: str, kinds: dict[str, int]) -> None:
    found = find_blocks(collect_facts(load_model(ZOO / name / "model.onnx")))
    assert Counter(block.kind for block in found) == kinds


def test_a_view_holds_as_long_as_its_model_stays_the_same() -> None:
    model, other = text_model("float[4] x", "y = Relu (x)"), text_model("float[4] x", "z = Neg (x)", "z")
    assert [facts_of(one).outputs for one in (model, other, model)] == [("y",), ("z",), ("y",)]
    seen = view_of(model)
    assert view_of(model).makers is seen.makers
    model.graph.node.add(op_type="Neg", input=["y"], output=["more"])
    assert view_of(model).makers.keys() == {"y", "more"} and len(facts_of(model).nodes) == 2


def test_a_copy_to_run_has_all_but_stored_values() -> None:
    model = text_model("float[4] x", "y = own.Own (x)", w=[1.0])
    model.graph.value_info.add(name="y")
    model.graph.sparse_initializer.add(dims=[4])
    model.functions.add(name="Own")
    made = without_values(model, "node")
    del model.graph.initializer[:]
    assert made == model
    del model.graph.node[:]
    assert without_values(model) == model

"""A graph that may be changed, and the blocks that are found in it."""

from collections import Counter
from pathlib import Path

import pytest

from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.model.patterns import find_blocks

ZOO = Path(__file__).parents[1] / "data" / "zoo"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("distilbert", {"LayerNormalization": 5, "Gelu": 2}), ("segformer", {"LayerNormalization": 19, "Gelu": 4})],
)
def test_every_block_of_true_exports_is_found(name: str, kinds: dict[str, int]) -> None:
    found = find_blocks(collect_facts(load_model(ZOO / name / "model.onnx")))
    assert Counter(block.kind for block in found) == kinds

"""The registry of transforms: found by convention, names checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.errors import UsageError
from deploykit.rewrites.contract import load_transform, transform_names


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        load_transform("no-such-rewrite")
    assert "no-such-rewrite" in caught.value.what


def test_matching_leaves_external_weights_alone(tmp_path: Path) -> None:
    """Every matcher runs on a model whose weights were not read; nothing is opened, nothing fails."""
    import numpy as np
    import onnx

    from sample_models.tiny_graphs import TinyGraph

    graph = TinyGraph()
    weight = graph.stored("weight", np.ones((64, 64)))
    product = graph.op("MatMul", [graph.input("x", (1, 8, 64)), weight], "product")
    total = graph.op("Add", [product, graph.stored("offset", np.full((8, 64), 1e30))], "sum")
    graph.op("Log", [graph.op("Sigmoid", [total], "s")], "y")
    onnx.save(graph.model("y"), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for name in transform_names():
        load_transform(name).match(model)

"""Weights from files beside the model, read into a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from deploykit.accuracy.simulate.sessions import Session
from deploykit.model import load_model
from deploykit.model.weights import load_small_weights, load_weights
from deploykit.rewrites.contract import load_transform
from sample_models.tiny_graphs import TinyGraph


def _external(folder: Path) -> Path:
    graph = TinyGraph()
    weight = graph.stored("weight", np.random.default_rng(0).normal(size=(40, 40)))
    product = graph.op("MatMul", [graph.input("x", (1, 2, 40)), weight], "product")
    anchors = graph.op("Add", [product, graph.stored("anchors", np.full((2, 40), 1e30))], "sum")
    graph.op("Sigmoid", [anchors], "y")
    path = folder / "m.onnx"
    onnx.save(graph.model("y"), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_weights_beside_the_model_are_loaded_into_a_copy(tmp_path: Path) -> None:
    model = load_model(_external(tmp_path))
    whole = load_weights(model)
    assert Session(whole).run({"x": np.zeros((1, 2, 40), np.float32)})["y"].shape == (1, 2, 40)
    assert all(tensor.data_location == tensor.EXTERNAL for tensor in model.proto.graph.initializer)


def test_small_weights_are_enough_to_match(tmp_path: Path) -> None:
    model = load_model(_external(tmp_path))
    transform = load_transform("saturating-constant")
    assert not transform.match(model.proto)
    partly = load_small_weights(model, limit=100)
    assert transform.match(partly)
    loaded = {t.name for t in partly.graph.initializer if t.data_location != t.EXTERNAL}
    assert loaded == {"anchors"}

"""Samples by their files' shape and names; weights from files beside the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.contract.tiny_graphs import TinyGraph
from deploykit.deciding.entry_values import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.errors import InputError
from deploykit.graph import load_model
from deploykit.numerics.samples.feeds import gather_samples, load_small_weights, load_weights, read_samples
from deploykit.numerics.sessions import Session
from deploykit.rewrites.contract import load_transform


def _model() -> onnx.ModelProto:
    graph = TinyGraph()
    graph.op("Add", [graph.input("a", (1, 3)), graph.input("b", (1, 3))], "y")
    return graph.model("y")


def _single() -> onnx.ModelProto:
    graph = TinyGraph()
    graph.op("Relu", [graph.input("a", (1, 3))], "y")
    return graph.model("y")


def test_one_file_is_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((1, 3)), b=np.zeros((1, 3)))
    samples = list(read_samples(_model(), tmp_path / "x.npz"))
    assert len(samples) == 1
    assert samples[0]["a"].dtype == np.float32


def test_longer_arrays_are_several_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(12).reshape(4, 3), b=np.zeros((4, 3)))
    samples = list(read_samples(_model(), tmp_path / "x.npz"))
    assert [sample["a"].tolist() for sample in samples] == [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8]], [[9, 10, 11]]]


def test_numbered_names_are_samples_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    arrays = {f"{n}:{name}": np.full((1, 3), n, np.float32) for n in (10, 2) for name in ("a", "b")}
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    assert [sample["a"][0, 0] for sample in read_samples(_model(), tmp_path / "x.npz")] == [2, 10]


def test_a_folder_of_npy_files_feeds_a_model_with_one_input(tmp_path: Path) -> None:
    for index in range(3):
        np.save(tmp_path / f"s{index}.npy", np.full((1, 3), index, np.float32))
    assert len(gather_samples(_single(), tmp_path)) == 3
    assert len(gather_samples(_single(), tmp_path, samples=2)) == 2


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((1, 3)))
    with pytest.raises(InputError, match="'b'"):
        list(read_samples(_model(), tmp_path / "x.npz"))


def test_random_samples_stay_within_the_encoding_of_the_input() -> None:
    entry = Encoding(name="a", value=affine_for_range(0, 640, GridKind(bits=16, signed=False)))
    samples = gather_samples(_model(), None, samples=50, encodings=EncodingSet(version="1.0.0", entries={"a": entry}))
    values = np.concatenate([sample["a"] for sample in samples])
    assert 0 <= values.min() < 100
    assert 540 < values.max() <= 640.01
    assert any((sample["b"] < 0).any() for sample in samples)


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

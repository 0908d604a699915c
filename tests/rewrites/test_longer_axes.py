"""longer-axes: means and sums over the same values without the axes of length 1, in every form of the operator set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.pipeline import make_package
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

NAME = "longer-axes"


def pooled(
    op_type: str = "ReduceMean", *, axes: list[int] | None = None, keepdims: int = 1, opset: int = 17
) -> ModelProto:
    """Nine tokens of 16 channels, turned to [1, 16, 1, 9] and pooled."""
    graph = TinyGraph(opset)
    turned = graph.op("Transpose", [graph.input("x", (1, 9, 16))], "turned", perm=[0, 2, 1])
    image = graph.op("Unsqueeze", [turned, graph.stored("at", [2], "int64")], "image")
    named = [-1, -2] if axes is None else axes
    if opset >= 18 or op_type == "ReduceSum":
        return graph.model(graph.op(op_type, [image, graph.stored("axes", named, "int64")], "y", keepdims=keepdims))
    return graph.model(graph.op(op_type, [image], "y", axes=named, keepdims=keepdims))


def reduced(model: ModelProto) -> list[int]:
    (node,) = [node for node in model.graph.node if node.op_type.startswith("Reduce")]
    if len(node.input) == 1:
        return next(list(a.ints) for a in node.attribute if a.name == "axes")
    return next(onnx.numpy_helper.to_array(t).tolist() for t in model.graph.initializer if t.name == node.input[1])


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 17, 18])
def test_the_same_values_over_the_longer_axis_alone(op_type: str, keepdims: int, opset: int) -> None:
    model = pooled(op_type, keepdims=keepdims, opset=opset)
    done = rewrite(model, None, [NAME], random_feeds(model, samples=2))
    assert done.kept == (NAME,)
    onnx.checker.check_model(done.model, full_check=True)
    assert reduced(done.model) == [3]
    assert done.model.graph.output[0].type == model.graph.output[0].type


def test_all_axes_are_meant_where_none_is_named() -> None:
    graph = TinyGraph(17)
    turned = graph.op("Transpose", [graph.input("x", (1, 9, 16))], "turned", perm=[0, 2, 1])
    model = graph.model(graph.op("ReduceMean", [turned], "y"))
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept and reduced(done.model) == [1, 2]


@pytest.mark.parametrize("axes", [[3], [2], [1, 3]])
def test_nothing_is_done_without_both_kinds_of_axes(axes: list[int]) -> None:
    assert not load_transform(NAME).match(pooled(axes=axes))


def test_what_was_not_turned_stays() -> None:
    graph = TinyGraph()
    image = graph.op("Unsqueeze", [graph.input("x", (1, 16, 9)), graph.stored("at", [2], "int64")], "image")
    assert not load_transform(NAME).match(graph.model(graph.op("ReduceMean", [image], "y", axes=[2, 3])))


def test_computed_axes_are_refused() -> None:
    model = pooled(opset=18)
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "axes"))
    model.graph.input.append(helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [2]))
    matched = load_transform(NAME).match(model)
    assert not matched and matched.refusals[0].reason == "its axes are computed"


def quantized(model: ModelProto, bits: int = 16) -> EncodingSet:
    steps = {16: 1e-4, 8: 0.026}
    grid = Affine(bits=bits, signed=False, scale=np.asarray(steps[bits]), zero_point=np.asarray(2.0 ** (bits - 1)))
    names = ("x", "turned", "image", "y")
    return EncodingSet(version="1.0.0", entries={n: Encoding(name=n, value=grid, is_param=False) for n in names})


def test_what_is_kept_first_has_the_grid_of_the_result() -> None:
    model = pooled(keepdims=0)
    done = rewrite(model, quantized(model), [NAME], random_feeds(model))
    assert done.encodings is not None and not done.open
    made = set(done.encodings.entries) - {"x", "turned", "image", "y"}
    assert len(made) == 1
    assert done.encodings.entries[made.pop()].value is done.encodings.entries["y"].value


def compiled(folder: Path, *without: str) -> Any:
    model = pooled()
    onnx.save(model, folder / "m.onnx")
    (folder / "m.encodings").write_text(write_encodings(quantized(model), "1.0.0"))
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.uniform(-2, 3, (4, 1, 9, 16)).astype(np.float32))
    given = Request(
        model=folder / "m.onnx",
        encodings=folder / "m.encodings",
        calibration=folder / "data.npz",
        target="sm8650",
        backend="ort-qnn",
        no_rewrite=without,
        adapter_options={"audit": "off"},  # else another way is found for it
    )
    return make_package(given, folder / "p")


@pytest.mark.heavy
def test_the_compiler_is_given_the_longer_axes(tmp_path: Path) -> None:
    """As it is the kernel gives 13 dB less than nothing; the day it is right, the second half says so."""
    pytest.importorskip("onnxruntime_qnn")
    (tmp_path / "as-it-is").mkdir()
    done = compiled(tmp_path)
    assert done.exit_status == 0
    spoilt = compiled(tmp_path / "as-it-is", NAME)
    assert spoilt.exit_status == 1
    assert {"ORT120"} <= {finding.code for finding in spoilt.findings if finding.blocks}

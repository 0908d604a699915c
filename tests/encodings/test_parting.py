"""Graphs over the same weights, cut alike: the parts compute what the whole does, and weights stay together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from deploykit.encodings.cut import CutPart, cut_alike, large_weights
from deploykit.errors import UsageError
from deploykit.model import load_model
from deploykit.model.weights import load_weights
from sample_models.decoder_feeds import decoder_feeds
from sample_models.decoders import TINY, Form, write_decoder


def graphs(folder: Path, form: Form) -> list[ModelProto]:
    """Prefill and decode with their weights in them."""
    write_decoder(TINY, folder, form)
    return [load_weights(load_model(folder / f"{name}.onnx")) for name in ("prefill", "decode")]


def run(model: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    given = {item.name: feeds[item.name] for item in session.get_inputs()}
    return dict(zip(names, session.run(names, given), strict=True))


@pytest.mark.parametrize("form", ["float", "blocks"])
@pytest.mark.parametrize("count", [1, 3])
def test_parts_compute_what_the_whole_does(tmp_path: Path, form: Form, count: int) -> None:
    models = graphs(tmp_path, form)
    cut = cut_alike(models, count, large_weights(models[0]))
    for model, parts in zip(models, cut, strict=True):
        feeds = decoder_feeds(model, TINY)
        wanted, known = run(model, feeds), dict(feeds)
        for part in parts:
            known |= run(part.model, known)
        assert len(parts) == count
        for name, values in wanted.items():
            np.testing.assert_array_equal(known[name], values, err_msg=name)


@pytest.mark.parametrize("form", ["float", "blocks"])
def test_one_tensor_crosses_and_weights_stay_together(tmp_path: Path, form: Form) -> None:
    models = graphs(tmp_path, form)
    sizes = large_weights(models[0])
    prefill, decode = cut_alike(models, 3, sizes)
    assert [set(part.weights) for part in prefill] == [set(part.weights) for part in decode]
    assert set().union(*(part.weights for part in prefill)) == sizes.keys()
    shares = [sum(sizes[name] for name in part.weights) for part in prefill]
    assert max(shares) < 1.5 * sum(shares) / 3
    given = {item.name for item in models[0].graph.input}
    for part in (*prefill[1:], *decode[1:]):
        (crossing,) = set(part.inputs) - given
        assert "hidden" in crossing


def test_a_cut_tensor_keeps_its_grid_on_both_sides(tmp_path: Path) -> None:
    models = graphs(tmp_path, "blocks")
    parts = cut_alike(models, 2, large_weights(models[0]))[0]
    (crossing,) = set(parts[1].inputs) & set(parts[0].outputs)
    made = next(node for node in parts[0].model.graph.node if crossing in node.output)
    assert made.op_type == "DequantizeLinear"
    readers = [node for node in parts[1].model.graph.node if crossing in node.input]
    assert [node.op_type for node in readers] == ["QuantizeLinear"]
    assert list(readers[0].input[1:]) == list(made.input[1:])


def chain(names: list[str]) -> ModelProto:
    """One MatMul after the other, by these weights."""
    weights = [numpy_helper.from_array(np.eye(32, dtype=np.float32), name) for name in names]
    nodes = [
        helper.make_node("MatMul", [f"x{i}", name], [f"x{i + 1}"], name=f"by_{name}") for i, name in enumerate(names)
    ]
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, 32]) for end in ("x0", f"x{len(names)}")]
    return helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights))


def cut_chains(*names: list[str], count: int = 2) -> tuple[tuple[CutPart, ...], ...]:
    models = [chain(row) for row in names]
    return cut_alike(models, count, large_weights(models[0]))


def test_a_graph_without_a_weight_of_the_other_is_cut_all_the_same() -> None:
    first, second = cut_chains(["a", "b", "c", "d"], ["a", "b", "extra", "c", "d"])
    assert [part.weights for part in first] == [("a", "b"), ("c", "d")]
    assert [{"a", "b"} <= set(part.weights) for part in second] == [True, False]


def test_no_part_begins_at_a_node_that_leads_nowhere() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["m"], name="first"),
        helper.make_node("Relu", ["m"], ["dead"], name="dead"),
        helper.make_node("MatMul", ["m", "b"], ["out"], name="second"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("x", "out")]
    weights = [numpy_helper.from_array(np.eye(64, dtype=np.float32), name) for name in ("a", "b")]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights))
    ((first, second),) = cut_alike([model], 2, dict.fromkeys(("a", "b"), 64 * 64))
    assert [node.name for part in (first, second) for node in part.model.graph.node] == ["first", "second"]


def test_weights_in_another_order_are_refused() -> None:
    with pytest.raises(UsageError, match="where the first one is"):
        cut_chains(["a", "b", "c", "d"], ["d", "c", "b", "a"])


def test_a_weight_larger_than_a_part_is_a_part_of_its_own() -> None:
    (parts,) = cut_alike([chain(["a", "b", "c", "d"])], 4, {"a": 4096, "b": 16, "c": 16, "d": 16})
    assert [part.weights for part in parts] == [("a",), ("b",), ("c",), ("d",)]


def test_more_parts_than_there_are_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be cut into 3 parts"):
        cut_chains(["a", "b"], count=3)

"""Models whose tensors would have fewer than no elements: refused with the tensor, and nothing ends the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.shape_inference import infer

START = [
    numpy_helper.from_array(np.array([value], np.int64), name) for name, value in zip("sea", (0, 5, 2), strict=True)
]
KERNEL = numpy_helper.from_array(np.zeros((1, 1, 5, 5), np.float32), "kernel")
SMALLER: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "a window": ("Conv", ["x", "kernel"], {}),
    "a pool": ("MaxPool", ["x"], {"kernel_shape": [5, 5]}),
    "dilated": ("Conv", ["x", "kernel"], {"dilations": [4, 4]}),
    "cut off": ("ConvTranspose", ["x", "kernel"], {"pads": [9, 9, 9, 9]}),
}


def _model(*nodes: onnx.NodeProto, shape: tuple[int | str, ...] = (1, 1, 2, 2)) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([*nodes], "g", values, outputs, [*START, KERNEL])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _slice(read: str, made: str) -> onnx.NodeProto:
    return helper.make_node("Slice", [read, "s", "e", "a"], [made], name=made)


def test_a_slice_of_fewer_than_no_elements_is_refused(within_a_gigabyte: Callable[..., list[str]]) -> None:
    """In a process of its own: where this is not seen, onnx or ONNX Runtime ends it."""
    models = []
    for op_type, inputs, attributes in SMALLER.values():
        for before in (False, True):
            first = [_slice("x", "cut")] if before else []
            names = ["cut" if before and name == "x" else name for name in inputs]
            shrunk = helper.make_node(op_type, names, ["less"], name="shrunk", **attributes)
            models.append(_model(*first, shrunk, _slice("less", "y")).SerializeToString())
    said = within_a_gigabyte(*models)
    assert all("'less' would have fewer than no elements" in line for line in said), said


def test_dimensions_below_zero_that_a_file_declares_are_unknown(tmp_path: Path) -> None:
    """What some exporters write for an open batch: ONNX Runtime takes it for one."""
    model = _model(helper.make_node("Relu", ["x"], ["r"]), _slice("r", "y"), shape=(-1, 1, 9, 2))
    facts = collect_facts(wrap_proto(model, path=tmp_path / "m.onnx"))
    assert facts.tensors["y"].shape == (None, 1, 5, 2)


def test_slices_behind_windows_have_their_shapes() -> None:
    """As in a network that splits channels between its layers: none of them stays hidden."""
    nodes, read = [], "x"
    for number in range(12):
        nodes.append(_slice(read, f"cut{number}"))
        padded: dict[str, Any] = (
            {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]} if number % 2 else {"pads": [2, 2, 2, 2]}
        )
        nodes.append(helper.make_node("Conv", [f"cut{number}", "kernel"], [f"conv{number}"], **padded))
        read = f"conv{number}"
    nodes.append(_slice(read, "y"))
    found = infer(_model(*nodes, shape=(1, 1, 9, 9)))
    assert found.types["y"] == ("float", (1, 1, 5, 9))
    assert not found.negative


def test_what_waits_too_long_is_unknown_and_nothing_else_is() -> None:
    nodes, read = [], "x"
    for number in range(40):
        narrower = helper.make_node("Conv", [f"cut{number}", "kernel"], [f"c{number}"], pads=[2, 0, 2, 0])
        nodes += [_slice(read, f"cut{number}"), narrower]
        read = f"c{number}"
    found = infer(_model(*nodes, _slice(read, "y"), shape=(1, 1, 9, 400)))
    assert found.types["c3"] == ("float", (1, 1, 5, 384))
    assert found.types.get("y", ("", None))[1] is None

"""Models whose tensors would have fewer than no elements: refused with the tensor, and nothing ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.errors import InputError
from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.shape_inference import infer
from tables import each_row

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


@pytest.mark.parametrize("kind", SMALLER)
@each_row("before", [False, True])
def test_a_slice_of_fewer_than_no_elements_is_refused(kind: str, before: bool, tmp_path: Path) -> None:
    """In a process of its own: where this is not seen, onnx or ONNX Runtime ends it."""
    op_type, inputs, attributes = SMALLER[kind]
    first = [_slice("x", "cut")] if before else []
    inputs = ["cut" if before and name == "x" else name for name in inputs]
    shrunk = helper.make_node(op_type, inputs, ["less"], name="shrunk", **attributes)
    path = tmp_path / "m.onnx"
    onnx.save(_model(*first, shrunk, _slice("less", "y")), path)
    for words in (["check", path, "--target", "sm8650"], ["accuracy", "simulate", path, "--encodings", "absent"]):
        argv = [sys.executable, "-m", "deploykit", *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stderr
    with pytest.raises(InputError, match="'less' would have fewer than no elements"):
        collect_facts(load_model(path))


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
    for number in range(20):
        narrower = helper.make_node("Conv", [f"cut{number}", "kernel"], [f"c{number}"], pads=[2, 0, 2, 0])
        nodes += [_slice(read, f"cut{number}"), narrower]
        read = f"c{number}"
    found = infer(_model(*nodes, _slice(read, "y"), shape=(1, 1, 9, 200)))
    assert found.types["c3"] == ("float", (1, 1, 5, 184))
    assert found.types.get("y", ("", None))[1] is None

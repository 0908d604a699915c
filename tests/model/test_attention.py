"""Attention whose operands have ranks that it does not take: refused, and nothing ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

SHAPES: dict[str, tuple[int, ...]] = {
    "Q": (2, 3, 4, 8),
    "K": (2, 3, 6, 8),
    "V": (2, 3, 6, 8),
    "mask": (2, 3, 4, 18),
    "keys": (2, 3, 12, 8),
    "values": (2, 3, 12, 8),
}


def _saved(path: Path, shapes: dict[str, tuple[int, ...]], inputs: list[str]) -> Path:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    made = {"Y": (2, 3, 4, 8), "k": (2, 3, 18, 8), "v": (2, 3, 18, 8), "qk": (2, 3, 4, 18)}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in made.items()]
    node = helper.make_node("Attention", inputs, [*made], name="attention", is_causal=1, qk_matmul_output_mode=1)
    graph = helper.make_graph([node], "g", given, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)
    return path


@pytest.mark.parametrize(
    ("shapes", "inputs", "said"),
    [
        ({"values": ()}, [*SHAPES], "past_value 'values' has rank 0"),
        ({"keys": (3, 12, 8)}, [*SHAPES], "past_key 'keys' has rank 3"),
        ({"Q": (4, 8)}, [*SHAPES], "Q 'Q' has rank 2"),
        ({}, [*SHAPES][:5], "not both"),
    ],
)
def test_it_is_refused(shapes: dict[str, tuple[int, ...]], inputs: list[str], said: str, tmp_path: Path) -> None:
    """In a process of its own: run by ONNX Runtime, the first ends it."""
    path = _saved(tmp_path / "m.onnx", {**SHAPES, **shapes}, inputs)
    argv = [sys.executable, "-m", "deploykit", "accuracy", "layers", str(path), "--precision", "w8a8"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert said in done.stderr


def test_attention_with_a_cache_is_taken(tmp_path: Path) -> None:
    path = _saved(tmp_path / "m.onnx", SHAPES, [*SHAPES])
    argv = [sys.executable, "-m", "deploykit", "accuracy", "layers", str(path), "--precision", "w8a8"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

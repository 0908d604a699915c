"""Models whose inputs are open get fixed sizes when they are read, each for a reason that is said."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from deploykit.backend.requests import Request
from deploykit.flow.read import Pinned, pin
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def save(path: Path, graph: str, *, opset: int = 17, metadata: dict[str, str] | None = None, **stored: Any) -> Path:
    """A model from ONNX's text form, with stored tensors."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items())
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return path


def pinned(path: Path, *inputs: str, calibration: Path | None = None) -> Pinned:
    model = load_model(path)
    request = Request(model=path, target="any", inputs=inputs, calibration=calibration)
    return pin(request, model, collect_facts(model), None)


def shapes(made: Pinned) -> dict[str, tuple[int, ...]]:
    return {item.name: item.shape for item in made.sizes}


DENSE = "g (float[n,3,h,w] x) => (float[n,3,h,w] y) { y = Relu (x) }"


def test_the_maker_s_metadata_outranks_the_habit(tmp_path: Path) -> None:
    made = pinned(save(tmp_path / "m.onnx", DENSE, metadata={"imgsz": "[320, 480]"}))
    assert shapes(made) == {"x": (1, 3, 320, 480)}
    # Pictures whose recipe leaves their size to the model say none.
    (tmp_path / "0.png").write_bytes(b"")
    (tmp_path / "calibration.toml").write_text("schema = 1\nscale = 0.1\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n")
    assert shapes(pinned(tmp_path / "m.onnx", calibration=tmp_path)) == {"x": (1, 3, 320, 480)}


def test_only_a_size_at_which_the_model_runs_is_taken(tmp_path: Path) -> None:
    """A position table for 14 x 14 patches of 16 fits pictures of 224 alone."""
    graph = """g (float[n,3,h,w] x) => (float[n,4,p] y) {
        patches = Conv <strides = [16, 16]> (x, weight)
        rows = Reshape (patches, sizes)
        y = Add (rows, positions)
    }"""
    stored: dict[str, Any] = {
        "weight": np.ones((4, 3, 16, 16), np.float32),
        "sizes": np.array([0, 4, -1], np.int64),
        "positions": np.zeros((1, 4, 196), np.float32),
    }
    assert shapes(pinned(save(tmp_path / "m.onnx", graph, **stored))) == {"x": (1, 3, 224, 224)}

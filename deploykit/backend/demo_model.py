"""The example that ``deploykit demo`` packages: a small box decoder with activations of huge range, mixed encodings.

The model is built here with a fixed seed, and its encodings are measured by running it: nothing is stored that could
become outdated.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference

from deploykit.findings.records import Json
from deploykit.model.nodes import copy_of

__all__ = ["FLOAT_TENSORS", "write_demo"]

FLOAT_TENSORS = frozenset({"anchored", "ratio", "logit", "anchors"})
"""The tensors that the example keeps in float16: no 16-bit grid can hold their ranges."""

_INVALID_ANCHOR = 1e30
_BITS = 16
_ROWS = 16


def write_demo(folder: Path) -> tuple[Path, Path]:
    """Writes the model and its encodings into a folder, and returns both paths.

    The model is a linear layer, anchors of which some are invalid (1e30), an inverse sigmoid, boxes in pixels; opset
    17. The encodings are 0.6.1 by min-max over random inputs, 16-bit activations and 8-bit weights, float tensors left
    out.
    """
    rng = np.random.default_rng(7)
    anchors = rng.normal(0, 1, (1, _ROWS, 4))
    weight, bias = rng.normal(0, 0.3, (8, 4)), rng.normal(0, 0.1, (4,))
    anchors[:, ::5] = _INVALID_ANCHOR
    values = {
        "head.weight": weight,
        "head.bias": bias,
        "anchors": anchors,
        "eps": 1e-5,
        "one": 1.0,
        "one_more": 1.0,
        "image_size": np.full((4,), 640.0),
    }
    stored = {name: np.asarray(value, dtype=np.float32) for name, value in values.items()}
    nodes = [
        ("MatMul", ["features", "head.weight"], "projected"),
        ("Add", ["projected", "head.bias"], "offsets"),
        ("Add", ["offsets", "anchors"], "anchored"),
        ("Sigmoid", ["anchored"], "reference"),
        ("Clip", ["reference", "eps", "one"], "numerator"),
        ("Sub", ["one_more", "reference"], "complement"),
        ("Clip", ["complement", "eps", "one"], "denominator"),
        ("Div", ["numerator", "denominator"], "ratio"),
        ("Log", ["ratio"], "logit"),
        ("Sigmoid", ["logit"], "normalized"),
        ("Mul", ["normalized", "image_size"], "boxes"),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output], name=f"/decoder/{output}") for op, inputs, output in nodes],
        "detector",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, _ROWS, 8])],
        [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, _ROWS, 4])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, producer_name="deploykit demo", opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    model = shape_inference.infer_shapes(model, strict_mode=True)
    checker.check_model(model, full_check=True)
    model_path, encodings_path = folder / "detector.onnx", folder / "detector.encodings"
    onnx.save(model, model_path)
    # Every computed tensor becomes an output of a copy, so that one run shows all ranges.
    probe = copy_of(model)
    del probe.graph.output[:]
    names = [name for node in model.graph.node for name in node.output if name != "projected"]
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(11)
    seen = {name: [stored[name]] for name in ("one_more", "image_size")}
    for _ in range(8):
        features = rng.normal(0, 1, (1, _ROWS, 8)).astype(np.float32)
        shown = {"features": features, **dict(zip(names, session.run(names, {"features": features}), strict=True))}
        for name, values in shown.items():
            seen.setdefault(name, []).append(values)
    activations = {}
    for name in sorted(seen.keys() - FLOAT_TENSORS):
        low = min(0.0, *(float(values.min()) for values in seen[name]))
        high = max(0.0, *(float(values.max()) for values in seen[name]))
        scale = (high - low) / (2**_BITS - 1)
        activations[name] = [_entry(_BITS, scale, round(low / scale), symmetric=False)]
    largest = np.abs(stored["head.weight"]).max(axis=0)
    encodings = {
        "version": "0.6.1",
        "producer": {"package": "deploykit demo", "version": "1"},
        "activation_encodings": activations,
        "param_encodings": {"head.weight": [_entry(8, float(most) / 127, -128, symmetric=True) for most in largest]},
    }
    encodings_path.write_text(json.dumps(encodings, indent=1), "utf-8")
    return model_path, encodings_path


def _entry(bits: int, scale: float, offset: int, *, symmetric: bool) -> Json:
    return {
        "bitwidth": bits,
        "dtype": "int",
        "is_symmetric": str(symmetric),
        "max": (offset + 2**bits - 1) * scale,
        "min": offset * scale,
        "offset": float(offset),
        "scale": scale,
    }

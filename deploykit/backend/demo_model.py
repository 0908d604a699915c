"""The example that ``deploykit demo`` packages: a small box decoder with activations of huge range, mixed encodings.

The model is built here with a fixed seed, and its encodings are measured by running it: nothing is stored that could
become outdated.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.new_grids import affine_per_channel, entry_for_range
from deploykit.encodings.values import Encoding, EncodingSet

__all__ = ["FLOAT_TENSORS", "write_demo"]

FLOAT_TENSORS = frozenset({"anchored", "ratio", "logit", "anchors"})
"""The tensors that the example keeps in float16: no 16-bit grid can hold their ranges."""

_WITHOUT_ENTRY = {"projected", "head.weight", "head.bias", "eps", "one"}
_INVALID_ANCHOR = 1e30
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
    model_path, encodings_path = folder / "detector.onnx", folder / "detector.encodings"
    onnx.save(model, model_path)
    names = sorted({name for _, read, made in nodes for name in (*read, made)} - FLOAT_TENSORS - _WITHOUT_ENTRY)
    rng = np.random.default_rng(11)
    feeds = [{"features": rng.normal(0, 1, (1, _ROWS, 8)).astype(np.float32)} for _ in range(8)]
    seen = Session(model, capture=names).runs(feeds)
    empty = EncodingSet("0.6.1", {}, producer={"package": "deploykit demo", "version": "1"})
    ends = [[float(end([one[name] for one in seen])) for end in (np.min, np.max)] for name in names]
    activations = [entry_for_range(name, empty, low, high) for name, (low, high) in zip(names, ends, strict=True)]
    weights = Encoding(name="head.weight", value=affine_per_channel(stored["head.weight"], 1, 8), is_param=True)
    encodings_path.write_text(write_encodings(empty.with_entries([*activations, weights]), "0.6.1"), "utf-8")
    return model_path, encodings_path

"""Models from ONNX's text form, for tests that are tables."""

from typing import Any

import numpy as np
import onnx.parser
from onnx import ModelProto, numpy_helper


def text_model(given: str, body: str, made: str = "y", *, opset: int = 17, **stored: Any) -> ModelProto:
    """``text_model("float[2,3] x", "y = Add (x, w)", w=[1.0, 2.0, 3.0])``; outputs have a type where one is written.

    Plain numbers that are stored are float32 or int64.
    """
    names = made.split(", ")
    outputs = ", ".join(name if " " in name else f"float {name}" for name in names)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({given}) => ({outputs}) {{ {body} }}'
    )
    for item, name in zip(model.graph.output, names, strict=True):
        if " " not in name:
            item.ClearField("type")
    for name, value in stored.items():
        array = np.asarray(value)
        if not isinstance(value, np.ndarray) and array.dtype.kind == "f":
            array = array.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model

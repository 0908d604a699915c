"""Writes small ONNX models node by node, for tests of transforms, plugins and numerics; it runs nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper, shape_inference


class TinyGraph:
    """Collects inputs, stored values and nodes in order; ``model`` builds the checked model with inferred shapes."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self._inputs: list[Any] = []
        self._stored: list[Any] = []
        self._nodes: list[NodeProto] = []

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Declare an input; its name."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def stored(self, name: str, value: npt.ArrayLike, dtype: str = "float32") -> str:
        """Add an initializer; its name."""
        self._stored.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def op(self, op_type: str, inputs: Sequence[str], output: str | Sequence[str], **attributes: Any) -> str:
        """Add a node named after its first output; the name of that output."""
        outputs = [output] if isinstance(output, str) else list(output)
        node = helper.make_node(op_type, list(inputs), outputs, name=f"{op_type}:{outputs[0]}", **attributes)
        self._nodes.append(node)
        return outputs[0]

    def model(self, *outputs: str) -> ModelProto:
        """The model with the given outputs; raises what the ONNX checker raises."""
        infos = [ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "tiny", self._inputs, infos, self._stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 8
        inferred = shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred

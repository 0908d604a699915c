"""A model computed in float64: whether a difference of float32 results is a wrong graph or rounding.

Where numbers cancel, ONNX Runtime's own float32 result may lie hundreds of roundings from the true one, and a
rewritten graph cannot be asked to lie nearer to it than the graph that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["outputs_in_double"]

_ELEMENT_TYPES = ("to", "dtype")


def outputs_in_double(model: Any, feed: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by ONNX's reference, with every float32 replaced by float64. Raises InputError where it cannot."""
    from deploykit.accuracy.simulate.sessions import reference_outputs

    wide = type(model)()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    for function in wide.functions:
        _widen_nodes(function.node)
        _widen_types(function.value_info)
    return dict(reference_outputs(wide, [{name: _widened(value) for name, value in feed.items()}])[0])


def _widened(value: Any) -> Any:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _widen_graph(graph: Any) -> None:
    for stored in graph.initializer:
        _widen_tensor(stored)
    for group in (graph.input, graph.output, graph.value_info):
        _widen_types(group)
    _widen_nodes(graph.node)


def _widen_types(items: Iterable[Any]) -> None:
    from onnx import TensorProto

    for item in items:
        if item.type.tensor_type.elem_type == TensorProto.FLOAT:
            item.type.tensor_type.elem_type = TensorProto.DOUBLE


def _widen_tensor(tensor: Any) -> None:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _widen_nodes(nodes: Iterable[Any]) -> None:
    from onnx import AttributeProto, TensorProto, helper

    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _ELEMENT_TYPES and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                wide = helper.make_attribute("value", _stored(np.asarray(values, np.float64)))
                attribute.CopyFrom(wide)


def _stored(values: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(values)

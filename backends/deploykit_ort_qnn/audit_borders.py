"""Puts conversions where an excerpt in float16 was cut out of the midst of a model; it cuts and runs nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from deploykit.model.graph import copy_of

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["with_conversions"]


def with_conversions(model: ModelProto, ends: Collection[str]) -> ModelProto:
    """The excerpt between float32 borders, but for those of its tensors that are ``ends`` of the whole model.

    What is given to a graph in float16 is not what lies in its midst: an AveragePool of QAIRT 2.51 that reads it so is
    off by half its range, and right behind a conversion.
    """
    values = [*model.graph.input, *model.graph.output]
    if all(value.type.tensor_type.elem_type != TensorProto.FLOAT16 or value.name in ends for value in values):
        return model
    made = copy_of(model)
    graph = made.graph
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16 and value.name not in ends:
            name, value.name = value.name, f"{value.name} given"
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            graph.node.insert(0, helper.make_node("Cast", [value.name], [name], to=TensorProto.FLOAT16))
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16 and value.name not in ends:
            name, value.name = value.name, f"{value.name} taken"
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            graph.node.append(helper.make_node("Cast", [name], [value.name], to=TensorProto.FLOAT))
    return made

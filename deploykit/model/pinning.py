"""Gives a model fixed input shapes, and fixed values for inputs that only choose a branch; the caller chooses both.

Devices take graphs in which every size is a number. Which sizes to take is decided in ``accuracy.samples.sizes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import captured_names, reached
from deploykit.model.operators import Trait, ops
from deploykit.model.values import dtype_name

__all__ = ["branch_choices", "has_stale_shapes", "keep_weights_constant", "pin_shapes", "settle_outputs"]

# What may stand between an input that chooses a branch and the If: nothing here computes a tensor that anyone keeps.
_CHOOSING = ops(Trait.LOGICAL, Trait.RESHAPES) | {"Cast", "Gather"}

_DEFAULTS_SINCE_IR = 4


def pin_shapes(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], values: Mapping[str, int | float | bool] | None = None
) -> ModelProto:
    """A copy of the model with these input shapes; inputs in ``values`` become stored constants.

    Shapes of computed tensors that were declared with symbols are forgotten, so that inference finds them anew.
    """
    pinned = GraphCopy(model)
    graph = pinned.model.graph
    symbols = dict[str, int]()
    for item in graph.input:
        if item.name not in shapes:
            continue
        for dim, size in zip(item.type.tensor_type.shape.dim, shapes[item.name], strict=True):
            if dim.dim_param:
                symbols[dim.dim_param] = size
            dim.dim_value = size
    for at, item in reversed([*enumerate(graph.input)]):
        if item.name in (values or {}):  # an initializer of its own type and shape
            tensor = item.type.tensor_type
            kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            array = np.full([dim.dim_value for dim in tensor.shape.dim], (values or {})[item.name], kind)
            graph.initializer.append(numpy_helper.from_array(array, item.name))
            del graph.input[at]
    fixed = [item for item in graph.value_info if not _is_stale(item)]
    del graph.value_info[:]
    graph.value_info.extend(fixed)
    # What the graph computes comes before the symbols of its declarations: an exporter calls any size "batch".
    settle_outputs(pinned.model)
    for item in graph.output:
        # An output whose shape cannot be inferred gets the sizes of the symbols that it shares with the inputs.
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
            elif dim.dim_param or dim.dim_value < 0:  # another symbol, or a formula of symbols
                dim.Clear()
    return pinned.model


def keep_weights_constant(model: ModelProto) -> bool:
    """Take stored tensors out of the graph's inputs, in place; True where there were any.

    As an input a weight is only a default: compilers keep it as a tensor that is fed, fold nothing into it and refuse
    operators whose parameters must be constant. IR version 4 is the first that lets a weight be no input.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    fed = [item for item in model.graph.input if item.name not in stored]
    if len(fed) == len(model.graph.input):
        return False
    del model.graph.input[:]
    model.graph.input.extend(fed)
    model.ir_version = max(model.ir_version, _DEFAULTS_SINCE_IR)
    return True


def settle_outputs(model: ModelProto) -> None:
    """Write the shapes of outputs that follow from the inputs, in place.

    An open declaration may have a wrong rank, a fixed one the sizes of the inputs that an exporter traced. What
    inference cannot tell stays as it was declared.
    """
    asked = GraphCopy(model)
    for item in asked.model.graph.output:
        if item.type.HasField("tensor_type"):
            item.type.tensor_type.ClearField("shape")
    for item in model.graph.output:
        shape = asked.static_shape(item.name)
        if shape is not None and item.type.HasField("tensor_type"):
            dims = item.type.tensor_type.shape.dim
            del dims[:]  # of a scalar the shape stays, empty
            for size in shape:
                dims.add(dim_value=size)


def _is_stale(item: ValueInfoProto) -> bool:
    dims = item.type.tensor_type.shape.dim if item.type.HasField("tensor_type") else ()
    return any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in dims)


def has_stale_shapes(model: ModelProto) -> bool:
    """True where every input has a fixed shape but computed tensors were declared with symbols all the same."""
    return not any(map(_is_stale, model.graph.input)) and any(
        map(_is_stale, [*model.graph.value_info, *model.graph.output])
    )


def branch_choices(model: ModelProto) -> dict[str, int]:
    """Inputs of one element that do nothing but choose a branch, each with the value that the graph asks for.

    ``sr`` of a voice detector that has a branch for 16 kHz and one for 8 kHz is one: the graph compares it with 16000.
    """
    graph = view_of(model)
    found = dict[str, int]()
    for item in model.graph.input:
        if item.name in graph.stored or not item.type.HasField("tensor_type"):
            continue
        tensor = item.type.tensor_type
        single = all(dim.dim_value == 1 for dim in tensor.shape.dim)
        if not single or dtype_name(tensor.elem_type) not in ("int64", "int32", "bool"):
            continue
        asked = _asked_value(graph, item.name)
        if asked is not None:
            found[item.name] = asked
    # A model without any input left would be no model.
    return found if len(found) < len(graph.inputs) else {}


def _asked_value(graph: GraphCopy, name: str) -> int | None:
    """The constant that the input is compared with on its way to an If; None where it reaches anything else."""
    asked, chooses = None, False

    def made(read: str) -> Iterator[str]:
        return (made for node in graph.readers(read) if node.op_type != "If" for made in node.output)

    for tensor in reached([name], made):
        if tensor in graph.outputs:
            return None
        for node in graph.readers(tensor):
            if node.op_type == "If" and node.input[0] == tensor and tensor not in captured_names(node):
                chooses = True
                continue
            if node.op_type not in _CHOOSING:
                return None
            if node.op_type == "Equal" and asked is None:
                others = [graph.scalar(other) for other in node.input if other != tensor]
                asked = next((int(value) for value in others if value is not None), None)
    if not chooses:
        return None
    return 1 if asked is None else asked

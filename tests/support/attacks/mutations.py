"""Bad files, made from good ones by Hypothesis: bytes, JSON and graphs with something wrong in them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

__all__ = ["broken_bytes", "broken_json", "broken_models"]

_ODD_NUMBERS = (0, 1, -1, 2, 7, 2**31, -(2**31), 2**63 - 1, -(2**63), 4096, 1 << 40)
_ODD_TEXTS = (
    "",
    " ",
    "a" * 5000,
    "../../etc/passwd",
    "$(touch x)",
    "<script>x</script>",
    "\u202e\x1b[31m",
    "é",
    "x",
)
_ODD_VALUES: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": {}}, "", "x", -1, 0, 1e308, 10**40, [None], {"": None})


@st.composite
def broken_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """A file of which bits are changed, parts are cut out, doubled or swapped, or which ends early."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(1, 64))
        match draw(st.sampled_from(("flip", "cut", "double", "end", "set", "insert"))):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
            case "end":
                del data[at:]
            case "set":
                data[at : at + length] = bytes([draw(st.integers(0, 255))]) * length
            case _:
                data[at:at] = draw(st.binary(max_size=32))
    return bytes(data)


@st.composite
def broken_json(draw: st.DrawFn, good: bytes) -> bytes:
    """JSON of which values are replaced by odd ones, taken out, renamed or doubled, still JSON."""
    value = json.loads(good)
    for _ in range(draw(st.integers(1, 4))):
        holder, key = _somewhere(draw, value)
        if holder is None:
            return json.dumps(draw(st.sampled_from(_ODD_VALUES))).encode()
        match draw(st.sampled_from(("odd", "odd", "gone", "renamed", "twice"))):
            case "gone":
                del holder[key]
            case "renamed" if isinstance(holder, dict):
                holder[draw(st.sampled_from(_ODD_TEXTS))] = holder.pop(key)
            case "twice" if isinstance(holder, list):
                holder.append(holder[key])
            case _:
                holder[key] = draw(st.sampled_from((*_ODD_VALUES, *_ODD_TEXTS, *_ODD_NUMBERS)))
    return json.dumps(value).encode()


def _somewhere(draw: st.DrawFn, value: Any) -> tuple[Any, Any]:
    """A container inside ``value`` and one of its keys; (None, None) where it holds nothing."""
    holder, key = None, None
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        holder, key = value, draw(st.sampled_from(keys))
        value = value[key]
        if draw(st.integers(0, 3)) == 0:
            break
    return holder, key


@st.composite
def broken_models(draw: st.DrawFn, good: bytes) -> bytes:
    """A model that still parses: nodes, names, shapes, types, attributes and stored values that do not fit."""
    model = ModelProto.FromString(good)
    for _ in range(draw(st.integers(1, 6))):
        _change(draw, model)
    return bytes(model.SerializeToString())


_KINDS = ("input", "output", "name", "op", "attribute", "shape", "tensor", "node", "head", "edge")


def _change(draw: st.DrawFn, model: ModelProto) -> None:  # noqa: C901 (one case for each thing that can be wrong)
    graph = model.graph
    node = graph.node[draw(st.integers(0, len(graph.node) - 1))] if graph.node else NodeProto()
    names = sorted({name for other in graph.node for name in (*other.input, *other.output)} | {"", "nothing"})
    match draw(st.sampled_from(_KINDS)):
        case "input" if node.input:
            node.input[draw(st.integers(0, len(node.input) - 1))] = draw(st.sampled_from(names))
        case "output" if node.output:
            node.output[0] = draw(st.sampled_from((*names, *_ODD_TEXTS)))
        case "name":
            node.name = draw(st.sampled_from(_ODD_TEXTS))
        case "op":
            others = [other.op_type for other in graph.node] or [""]
            node.op_type = draw(st.sampled_from((*others, "Loop", "If", "Reshape", "QuantizeLinear", "NoSuchThing")))
            node.domain = draw(st.sampled_from(("", "", "ai.onnx", "com.microsoft", "x.y")))
        case "attribute":
            _change_attribute(draw, node)
        case "shape":
            _change_shape(draw, model)
        case "tensor" if graph.initializer:
            _change_tensor(draw, graph.initializer[draw(st.integers(0, len(graph.initializer) - 1))])
        case "node":
            graph.node.add().CopyFrom(node)
        case "head":
            model.ir_version = draw(st.sampled_from((0, 3, 8, 99)))
            if model.opset_import:
                model.opset_import[0].version = draw(st.sampled_from((0, 1, 7, 13, 18, 21, 999)))
        case _:
            if node.input:
                del node.input[-1]


def _change_attribute(draw: st.DrawFn, node: NodeProto) -> None:
    if node.attribute and draw(st.booleans()):
        attribute = node.attribute[draw(st.integers(0, len(node.attribute) - 1))]
        if draw(st.booleans()):
            node.attribute.remove(attribute)
            return
    else:
        attribute = node.attribute.add()
        attribute.name = draw(st.sampled_from(("axis", "perm", "pads", "value", "to", "group", "block_size", "x")))
    attribute.type = draw(st.sampled_from((AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT)))
    attribute.i = draw(st.sampled_from(_ODD_NUMBERS))
    attribute.f = draw(st.sampled_from((0.0, float("nan"), float("inf"), -1.0)))
    del attribute.ints[:]
    attribute.ints.extend(draw(st.lists(st.sampled_from(_ODD_NUMBERS), max_size=6)))


def _change_shape(draw: st.DrawFn, model: ModelProto) -> None:
    items = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not items:
        return
    tensor = items[draw(st.integers(0, len(items) - 1))].type.tensor_type
    tensor.elem_type = draw(st.sampled_from((tensor.elem_type, 1, 7, 8, 10, 16, 0, 99)))
    del tensor.shape.dim[draw(st.integers(0, 4)) :]
    for _ in range(draw(st.integers(0, 2))):
        dim = tensor.shape.dim.add()
        if draw(st.booleans()):
            dim.dim_value = draw(st.sampled_from(_ODD_NUMBERS))
        else:
            dim.dim_param = draw(st.sampled_from(_ODD_TEXTS))


def _change_tensor(draw: st.DrawFn, tensor: TensorProto) -> None:
    match draw(st.sampled_from(("dims", "type", "data", "name", "external"))):
        case "dims":
            del tensor.dims[:]
            tensor.dims.extend(draw(st.lists(st.sampled_from((0, 1, 2, 3, -1, 1 << 40)), max_size=5)))
        case "type":
            tensor.data_type = draw(st.sampled_from((0, 1, 6, 7, 8, 10, 16, 21, 99)))
        case "data":
            tensor.raw_data = draw(st.binary(max_size=64))
        case "name":
            tensor.name = draw(st.sampled_from(_ODD_TEXTS))
        case _:
            tensor.data_location = TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key = draw(st.sampled_from(("location", "offset", "length", "x")))
            entry.value = draw(st.sampled_from(("w.bin", "ok/", "../w", "-1", "9" * 30, "", "/dev/zero")))

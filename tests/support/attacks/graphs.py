"""Bad models, made from good ones by chance: graphs that still parse, with a few things wrong or merely unusual.

Most changes are small and keep the graph connected, so that what lies behind the first look is reached.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from attacks.mutations import ODD_NUMBERS, ODD_TEXTS

__all__ = ["broken_models"]

_SAME_SHAPE = (
    *("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Sqrt", "Identity", "Softmax", "LeakyRelu", "HardSwish", "Erf"),
    *("Floor", "Log", "Reciprocal", "Elu", "Gelu", "Clip", "Dropout", "HardSigmoid", "Sign", "LogSoftmax", "Mish"),
)
_TWO_SIDED = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Mod", "MatMul")
_DOMAINS = ("", "", "", "ai.onnx", "com.microsoft", "x.y", "ai.onnx.ml")
_FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3e38, -1.0, 1e-7, 65504.0)


def broken_models(chance: random.Random, good: bytes) -> bytes:
    """A model with one to four changes."""
    model = ModelProto.FromString(good)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
        chance.choice(_CHANGES)(chance, model)
    return bytes(model.SerializeToString())


def _node(chance: random.Random, model: ModelProto) -> NodeProto:
    node: NodeProto = chance.choice(model.graph.node) if model.graph.node else model.graph.node.add()
    return node


def _tensors(graph: GraphProto) -> list[str]:
    made = {name for node in graph.node for name in node.output}
    return sorted(made | {item.name for item in graph.input} | {item.name for item in graph.initializer})


def _rewire(chance: random.Random, model: ModelProto) -> None:
    node = _node(chance, model)
    if node.input:
        names = ["", "nothing", *_tensors(model.graph)] if chance.random() < 0.3 else _tensors(model.graph)
        node.input[chance.randrange(len(node.input))] = chance.choice(names)


def _rename(chance: random.Random, model: ModelProto) -> None:
    """One tensor under an odd name everywhere, as a hostile exporter would call it."""
    names = _tensors(model.graph)
    if not names:
        return
    old, new = chance.choice(names), chance.choice(ODD_TEXTS)
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for item in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        item.name = new if item.name == old else item.name


def _retitle(chance: random.Random, model: ModelProto) -> None:
    match chance.choice(("node", "graph", "producer", "doc", "meta", "output")):
        case "node":
            _node(chance, model).name = chance.choice((*ODD_TEXTS, *(node.name for node in model.graph.node)))
        case "graph":
            model.graph.name = chance.choice(ODD_TEXTS)
        case "producer":
            model.producer_name = chance.choice(ODD_TEXTS)
        case "doc":
            model.doc_string = chance.choice(ODD_TEXTS)
        case "meta":
            row = model.metadata_props.add()
            row.key, row.value = chance.choice(ODD_TEXTS), chance.choice(ODD_TEXTS)
        case _:
            node = _node(chance, model)
            if node.output:
                node.output[0] = chance.choice((*ODD_TEXTS, *_tensors(model.graph)))


def _other_op(chance: random.Random, model: ModelProto) -> None:
    node = _node(chance, model)
    if chance.random() < 0.7:
        node.op_type = chance.choice(_TWO_SIDED if len(node.input) == 2 else _SAME_SHAPE)
    else:
        known = [other.op_type for other in model.graph.node]
        node.op_type = chance.choice((*known, "Loop", "If", "Reshape", "QuantizeLinear", "Einsum", "NoSuchThing", ""))
        node.domain = chance.choice(_DOMAINS)


def _attribute(chance: random.Random, model: ModelProto) -> None:
    node = _node(chance, model)
    if not node.attribute or chance.random() < 0.2:
        name = chance.choice(("axis", "axes", "perm", "pads", "value", "to", "group", "block_size", "keepdims", "x"))
        node.attribute.append(helper.make_attribute(name, chance.choice((*ODD_NUMBERS[:6], 1.5, [0, 1], "NOTSET"))))
        return
    attribute = chance.choice(node.attribute)
    if chance.random() < 0.15:
        node.attribute.remove(attribute)
        return
    if chance.random() < 0.1:
        attribute.type = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13))
    match attribute.type:
        case AttributeProto.INTS if attribute.ints:
            attribute.ints[:] = _other_ints(chance, list(attribute.ints))
        case AttributeProto.INT:
            attribute.i = chance.choice((*ODD_NUMBERS, 3, -2, 10, 16))
        case AttributeProto.FLOAT:
            attribute.f = chance.choice(_FLOATS)
        case AttributeProto.STRING:
            attribute.s = chance.choice((*ODD_TEXTS, "SAME_UPPER", "bilinear", "ij,jk->ik", "...i->i")).encode()


def _other_ints(chance: random.Random, values: list[int]) -> list[int]:
    at = chance.randrange(len(values))
    near = max(min(values[at] + chance.choice((-1, 1)), 2**63 - 1), -(2**63))
    changed = (chance.choice(ODD_NUMBERS), near)
    return chance.choice(
        (
            *([*values[:at], value, *values[at + 1 :]] for value in changed),
            values[::-1],
            [*values, chance.choice((0, 1, 2))],
            values[:at] + values[at + 1 :],
        )
    )


def _shape(chance: random.Random, model: ModelProto) -> None:
    items = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not items:
        return
    tensor = chance.choice(items).type.tensor_type
    if chance.random() < 0.3:
        tensor.elem_type = chance.choice((1, 7, 8, 9, 10, 11, 16, 0, 17, 22, 99))
    dims = tensor.shape.dim
    if not dims or chance.random() < 0.3:
        tensor.ClearField("shape") if chance.random() < 0.5 else dims.add()
        return
    dim = chance.choice(dims)
    if chance.random() < 0.5:
        dim.dim_value = chance.choice((*ODD_NUMBERS, 3, 5, 8))
    else:
        dim.dim_param = chance.choice((*ODD_TEXTS, "N", "batch"))


def _stored(chance: random.Random, model: ModelProto) -> None:
    """Values, shape, type or place of a stored tensor."""
    if not model.graph.initializer:
        return
    tensor = chance.choice(model.graph.initializer)
    match chance.choice(("values", "values", "values", "dims", "type", "data", "external")):
        case "values" if tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) >= 4:
            data = bytearray(tensor.raw_data)
            for _ in range(chance.choice((1, 1, 9))):
                struct.pack_into("<f", data, 4 * chance.randrange(len(data) // 4), chance.choice(_FLOATS))
            tensor.raw_data = bytes(data)
        case "values" if tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) >= 8:
            data = bytearray(tensor.raw_data)
            struct.pack_into("<q", data, 8 * chance.randrange(len(data) // 8), chance.choice(ODD_NUMBERS))
            tensor.raw_data = bytes(data)
        case "dims":
            dims = list(tensor.dims)
            tensor.dims[:] = chance.choice((dims[::-1], [*dims, 1], dims[1:], [1, *dims], [-1], [1 << 40], [0], []))
        case "type":
            tensor.data_type = chance.choice((0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 16, 17, 21, 22, 99))
        case "data":
            tensor.raw_data = chance.choice((b"", tensor.raw_data[:-1], tensor.raw_data * 2, chance.randbytes(16)))
        case _:
            tensor.data_location = TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key = chance.choice(("location", "location", "offset", "length", "x"))
            entry.value = chance.choice(
                ("w.bin", "ok/", "../w", "-1", "9" * 30, "", "/dev/zero", "m.onnx", ".", "a\0b")
            )


def _nodes(chance: random.Random, model: ModelProto) -> None:
    """A node twice, gone, moved, or another put behind it."""
    graph, node = model.graph, _node(chance, model)
    match chance.choice(("twice", "gone", "moved", "behind", "behind")):
        case "twice":
            graph.node.add().CopyFrom(node)
        case "gone" if len(graph.node) > 1:
            graph.node.remove(node)
        case "moved":
            copied = NodeProto()
            copied.CopyFrom(node)
            graph.node.remove(node)
            graph.node.insert(chance.randrange(len(graph.node) + 1), copied)
        case _ if node.output:
            old = node.output[0]
            node.output[0] = f"{old}/before"
            added = helper.make_node(chance.choice(_SAME_SHAPE), [node.output[0]], [old], name=f"{old}/added")
            graph.node.insert(list(graph.node).index(node) + 1, added)


def _signature(chance: random.Random, model: ModelProto) -> None:
    """Inputs and outputs of the model: one more, one less, twice the same, an input that is an output."""
    graph = model.graph
    rows = graph.input if chance.random() < 0.5 else graph.output
    match chance.choice(("twice", "gone", "inner", "through")):
        case "twice" if rows:
            rows.add().CopyFrom(chance.choice(rows))
        case "gone" if rows:
            del rows[chance.randrange(len(rows))]
        case "inner":
            names = _tensors(graph)
            if names:
                rows.append(helper.make_tensor_value_info(chance.choice(names), TensorProto.FLOAT, None))
        case _ if graph.input:
            graph.output.add().CopyFrom(graph.input[0])


def _inside(chance: random.Random, model: ModelProto) -> None:
    """The nodes inside a branch of an If, or called as a function of the model."""
    graph = model.graph
    node = _node(chance, model)
    if not node.output:
        return
    branch = helper.make_graph([NodeProto.FromString(node.SerializeToString())], "branch", [], [])
    branch.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))
    condition = helper.make_tensor("always", TensorProto.BOOL, [], [True])
    branch.node[0].output[0] = f"{node.output[0]}/inner"
    branch.output[0].name = f"{node.output[0]}/inner"
    if "always" not in {item.name for item in graph.initializer}:
        graph.initializer.append(condition)
    chosen = helper.make_node("If", ["always"], [node.output[0]], then_branch=branch, else_branch=branch)
    at = list(graph.node).index(node)
    del graph.node[at]
    graph.node.insert(at, chosen)


def _head(chance: random.Random, model: ModelProto) -> None:
    if chance.random() < 0.3:
        model.ir_version = chance.choice((0, 3, 8, 13, 99))
    elif model.opset_import:
        row = chance.choice(model.opset_import)
        row.version = chance.choice((0, 1, 6, 7, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 999))
    else:
        model.opset_import.add().version = 17


_CHANGES: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    *(_rewire, _rename, _retitle, _other_op, _other_op, _attribute, _attribute, _attribute),
    *(_shape, _stored, _stored, _stored, _nodes, _nodes, _signature, _inside, _head),
)

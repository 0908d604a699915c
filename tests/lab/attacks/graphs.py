"""Bad models, made from good ones by chance: graphs that still parse, with a few things wrong or merely unusual.

Most changes are small and keep the graph connected, so that what lies behind the first look is reached.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from attacks.mutations import ODD_NUMBERS, ODD_TEXTS, broken_bytes

__all__ = ["broken_models"]

_OPERATORS = (
    *("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Sqrt", "Identity", "Softmax", "LeakyRelu", "HardSwish", "Erf"),
    *("Floor", "Log", "Reciprocal", "Elu", "Gelu", "Clip", "Dropout", "HardSigmoid", "Sign", "LogSoftmax", "Mish"),
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Mod", "MatMul"),
    *("Loop", "If", "Reshape", "QuantizeLinear", "Einsum", "NoSuchThing", ""),
)
_TEXTS: dict[str, tuple[str, ...]] = {
    "op_type": _OPERATORS,
    "domain": ("", "", "", "ai.onnx", "com.microsoft", "x.y", "ai.onnx.ml"),
    "dim_param": ("N", "batch", *ODD_TEXTS),
    "value": ("w.bin", "ok/", "../w", "-1", "9" * 30, "", "/dev/zero", "m.onnx", ".", "a\0b"),
    "name": (*ODD_TEXTS, "axis", "axes", "perm", "pads", "to", "group", "block_size", "keepdims"),
}
_FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3e38, -1.0, 1e-7, 65504.0)
_SMALL = (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 13, 16, 17, 21, 22, 99)
"""Element types, kinds of attributes, operator sets."""


def broken_models(chance: random.Random, good: bytes) -> bytes:
    """A model with one to four changes."""
    model = ModelProto.FromString(good)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
        chance.choice(_CHANGES)(chance, model)
    return bytes(model.SerializeToString())


def _tensors(graph: GraphProto) -> list[str]:
    made = {name for node in graph.node for name in node.output}
    return sorted(made | {item.name for item in (*graph.input, *graph.initializer)})


def _places(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every field that is set in a message and inside of it, with the message that holds it."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            for item in value if _is_list(message, field) else [value]:
                yield from _places(item)


def _is_list(message: Any, field: Any) -> bool:
    return hasattr(getattr(message, field.name), "extend")


def _of_a_node(chance: random.Random, model: ModelProto) -> None:
    if model.graph.node:
        _change(chance, model, chance.choice(model.graph.node))


def _of_a_tensor(chance: random.Random, model: ModelProto) -> None:
    graph = model.graph
    items = [*graph.initializer, *graph.input, *graph.output, *graph.value_info]
    if items:
        _change(chance, model, chance.choice(items))


def _of_the_model(chance: random.Random, model: ModelProto) -> None:
    """Its versions and texts, the lists of its graph, and whatever lies one level below them."""
    _change(chance, model, chance.choice((model, model.graph, *model.opset_import)))


def _change(chance: random.Random, model: ModelProto, inside: Any) -> None:
    """One field of a message: another value, or its list with one thing more, less, doubled or moved."""
    places = [*_places(inside)] if inside is not model else [(model, field) for field, _ in model.ListFields()]
    if not places:  # an operator set of version 0 has no field
        return
    message, field = chance.choice(places)
    if not _is_list(message, field):
        with suppress(ValueError):  # a number that the field cannot hold
            if field.type == field.TYPE_MESSAGE:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, _other(chance, model, field, getattr(message, field.name)))
        return
    values = getattr(message, field.name)
    at, kept = chance.randrange(len(values)), list(values)
    match chance.choice(("one", "one", "one", "gone", "twice", "moved")):
        case "one" if field.type != field.TYPE_MESSAGE:
            kept[at] = _other(chance, model, field, kept[at])
        case "gone":
            del kept[at]
        case "twice":
            kept.append(kept[at])
        case _:
            kept.insert(chance.randrange(len(kept)), kept.pop(at))
    copies = [type(item).FromString(item.SerializeToString()) if hasattr(item, "ListFields") else item for item in kept]
    with suppress(ValueError):
        del values[:]
        values.extend(copies)


def _other(chance: random.Random, model: ModelProto, field: Any, value: Any) -> Any:
    match value:
        case str():
            of_tensors = field.name in ("input", "output", "name")
            return chance.choice(_tensors(model.graph) if of_tensors and chance.random() < 0.7 else _texts(field.name))
        case bytes():
            return _stored(chance, value) if field.name == "raw_data" else chance.choice(ODD_TEXTS).encode()
        case float():
            return chance.choice(_FLOATS)
        case int() if field.name in ("elem_type", "data_type", "type", "data_location", "ir_version"):
            return chance.choice(_SMALL)
    return chance.choice((value + 1, value - 1, -value, *_SMALL[:4], *ODD_NUMBERS))


def _texts(name: str) -> list[str]:
    return [*_TEXTS.get(name, ODD_TEXTS), "nothing"]


def _stored(chance: random.Random, data: bytes) -> bytes:
    """Odd numbers among the stored ones; now and then another length."""
    if chance.random() < 0.2 or len(data) < 8:
        return broken_bytes(chance, data)
    changed = bytearray(data)
    form, values = chance.choice((("<f", _FLOATS), ("<q", ODD_NUMBERS)))
    size = struct.calcsize(form)
    struct.pack_into(form, changed, size * chance.randrange(len(data) // size), chance.choice(values))
    return bytes(changed)


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


def _behind(chance: random.Random, model: ModelProto) -> None:
    """Another operator between a node and whoever reads it."""
    nodes = [node for node in model.graph.node if node.output]
    if nodes:
        node = chance.choice(nodes)
        old = node.output[0]
        node.output[0] = f"{old}/before"
        added = helper.make_node(chance.choice(_OPERATORS[:20]), [node.output[0]], [old], name=f"{old}/added")
        model.graph.node.insert(list(model.graph.node).index(node) + 1, added)


def _inside(chance: random.Random, model: ModelProto) -> None:
    """A node inside a branch of an If."""
    graph, nodes = model.graph, [node for node in model.graph.node if node.output]
    if not nodes:
        return
    node = chance.choice(nodes)
    inner = NodeProto.FromString(node.SerializeToString())
    inner.output[0] = f"{node.output[0]}/inner"
    ends = [helper.make_tensor_value_info(inner.output[0], TensorProto.FLOAT, None)]
    branch = helper.make_graph([inner], "branch", [], ends)
    if "always" not in {item.name for item in graph.initializer}:
        graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    chosen = helper.make_node("If", ["always"], [node.output[0]], then_branch=branch, else_branch=branch)
    at = list(graph.node).index(node)
    del graph.node[at]
    graph.node.insert(at, chosen)


_CHANGES: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    *(_of_a_node, _of_a_node, _of_a_node, _of_a_node, _of_a_tensor, _of_a_tensor, _of_a_tensor),
    *(_of_the_model, _rename, _behind, _inside),
)

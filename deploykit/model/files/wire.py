"""Walks the protobuf bytes of a model without building anything: is it whole, how deep, how many parts?

Protobuf itself only says that parsing failed, and a few megabytes of empty messages become gigabytes once parsed. It
knows the few message types of ONNX that nest and treats everything else as opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["DEPTH_LIMIT", "NODE_LIMIT", "PART_LIMIT", "ExcessError", "WireError", "scan"]

PART_LIMIT = 4_000_000
"""Fields in the nested messages of one model: enough for 150,000 nodes with names and shapes."""

NODE_LIMIT = 200_000
"""Nodes of one model, those of subgraphs and functions included: what can be looked at within seconds."""

DEPTH_LIMIT = 100
"""Levels of nested messages that protobuf reads; one subgraph takes three."""

_Kind: TypeAlias = Mapping[int, "str"]
# Message type -> field number -> message type of that field; fields that are not listed are opaque.
_NESTED: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 8: "flat", 14: "flat", 20: "training", 25: "function", 26: "flat"},
    "training": {1: "graph", 2: "graph", 3: "flat", 4: "flat"},
    "function": {7: "node", 9: "flat", 11: "attribute", 12: "value", 14: "flat"},
    "graph": {
        1: "node",
        5: "tensor",
        11: "value",
        12: "value",
        13: "value",
        14: "annotation",
        15: "sparse",
        16: "flat",
    },
    "node": {5: "attribute", 9: "flat", 10: "flat"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        14: "type",
        15: "type",
        22: "sparse",
        23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "flat", 16: "flat"},
    "annotation": {2: "flat"},
    "value": {2: "type", 4: "flat"},
    "type": {1: "tensor type", 4: "element", 5: "map", 8: "tensor type", 9: "element"},
    "element": {1: "type"},
    "map": {2: "type"},
    "tensor type": {2: "shape"},
    "shape": {1: "flat"},
    "flat": {},
}


class WireError(ValueError):
    """The bytes are not a whole model of a sane size; the text says why."""


class ExcessError(WireError):
    """The bytes may be a model, but one that would take too much time and memory."""


def scan(data: memoryview) -> None:
    """Raise WireError unless ``data`` is a well-formed model; time is linear in the number of fields.

    Payloads (weights, strings) are stepped over, never looked at.
    """
    stack: list[tuple[Mapping[int, str], int]] = []
    fields, end, position, parts, nodes = _NESTED["model"], len(data), 0, 0, 0
    while True:
        if position == end:
            if not stack:
                return
            fields, end = stack.pop()
            continue
        parts += 1
        if parts > PART_LIMIT or nodes > NODE_LIMIT:
            raise ExcessError(
                f"it has more than {NODE_LIMIT:,} nodes or {PART_LIMIT:,} parts; larger ones are not read"
            )
        tag, position = _varint(data, position, end)
        kind = fields.get(tag >> 3) if tag & 7 == 2 else None
        start, position = _skip(data, tag, position, end)
        if kind is not None:
            if len(stack) >= DEPTH_LIMIT:
                raise ExcessError(f"its messages are nested more than {DEPTH_LIMIT} levels deep")
            nodes += kind == "node"
            stack.append((fields, end))
            fields, end, position = _NESTED[kind], position, start


def _skip(data: memoryview, tag: int, position: int, end: int) -> tuple[int, int]:
    """Where the payload of a field starts and ends."""
    start = position
    match tag & 7:
        case 2:
            length, start = _varint(data, position, end)
            position = start + length
        case 0:
            _, position = _varint(data, position, end)
        case 5:
            position += 4
        case 1:
            position += 8
        case _:
            raise WireError(f"byte {position - 1:,} starts no field that ONNX has")
    if tag < 8:
        raise WireError(f"byte {start - 1:,} starts no field that ONNX has")
    if position > end:
        raise WireError(
            f"a part that starts at byte {start:,} claims {position - start:,} bytes, {end - start:,} are left"
        )
    return start, position


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise WireError(f"byte {position - 1:,} is in the middle of a number that never ends")
    raise WireError("it ends in the middle of a number")

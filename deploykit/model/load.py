"""Loads one ONNX file into a ``Model``, or says in one message what is wrong with it.

External data is located and measured but never opened here, and what is given is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from deploykit.errors import InputError
from deploykit.model.checks import check_arity, check_hazards, check_structure
from deploykit.model.operators import is_standard
from deploykit.model.values import (
    MAPPED,
    ExternalFile,
    check_inline,
    constant_tensor,
    is_external,
    locate_external,
    stored_tensors,
)
from deploykit.system.files import read_regular, regular_size

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

__all__ = [
    "DEPTH_LIMIT",
    "NODE_LIMIT",
    "PART_LIMIT",
    "ExcessError",
    "Model",
    "WireError",
    "load_model",
    "name_format",
    "scan",
    "wrap_proto",
]

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


_PREFIXES = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint, an .npz file or a packed model)"),
    (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint)"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file (a Keras model)"),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run 'git lfs pull'"),
    (b"\x7fELF", "an ELF binary (a compiled model library)"),
)


def name_format(head: bytes) -> str:
    """What a file that starts with ``head`` (at least 64 bytes, if it has them) looks like, or ""."""
    for prefix, name in _PREFIXES:
        if head.startswith(prefix):
            return name
    if head[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if head[4:8] == b"ORTM":
        return "a model in ONNX Runtime's own .ort format"
    if head[8:9] == b"{" and head[4:8] == b"\x00\x00\x00\x00":
        return "a safetensors file: weights without a graph"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return "JSON (an encodings or configuration file?)"
    if text.startswith((b"ir_version:", b"producer_name:", b"graph {")):
        return "ONNX in text form: convert it with onnx.parser or google.protobuf.text_format"
    if text[:1] == b"<":
        return "an XML or HTML file (an OpenVINO graph, or a web page saved by a failed download)"
    return ""


_PROTOBUF_LIMIT = 1 << 31
_WORTH_SCANNING = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as read. ``proto`` holds no external data; ``external`` are the files that do, in the order met.

    ``stored`` are the stored tensors of the main graph by name: initializers and outputs of Constant nodes.
    """

    path: Path
    proto: ModelProto
    external: tuple[ExternalFile, ...] = ()
    stored: Mapping[str, TensorProto] = field(default_factory=dict, repr=False)


def load_model(path: Path) -> Model:
    """The model of one file; InputError for whatever is not a whole ONNX model with its data beside it."""
    path = Path(path)
    size = regular_size(path)
    if not size:
        raise InputError(f"{path}: the file is empty", next="export or copy the model again")
    if size >= _PROTOBUF_LIMIT:
        raise _too_large(path, size)
    proto = _parse(path, read_regular(path, size=size))
    for stored in stored_tensors(proto):
        if any(entry.key == MAPPED for entry in stored.proto.external_data):
            raise InputError(
                f"{path}: {stored.where}: its external data has the entry {MAPPED!r}",
                why="it would name any file of this machine, and no exporter writes it",
                next="export the model again",
            )
    return wrap_proto(proto, path=path)


def wrap_proto(proto: ModelProto, *, path: Path) -> Model:
    """A model that is in memory already, with the same checks; external data is looked for beside ``path``."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise InputError(f"{path}: a model without a graph", why="there is nothing to deploy in it", next=_EXPORT)
    external = []
    for tensor in stored_tensors(proto):
        if is_external(tensor.proto):
            external.append(tensor)
        else:
            check_inline(tensor.proto, f"{path}: {tensor.where}")
    files = locate_external(path, external)
    check_structure(path, proto)
    check_arity(path, proto)
    check_hazards(path, proto)
    return Model(path=path, proto=proto, external=files, stored=_stored(proto))


_EXPORT = "export the model again; onnx.checker.check_model says whether it is whole"


def _too_large(path: Path, size: int) -> InputError:
    return InputError(
        f"{path}: {size:,} bytes; an ONNX file ends at 2 GiB",
        why="protobuf reads no larger message",
        next="save it with external data: onnx.save(model, path, save_as_external_data=True)",
    )


def _parse(path: Path, data: bytes) -> ModelProto:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    if len(data) > _WORTH_SCANNING:
        # Scan what was not scanned before: a package is read again by whoever judges it.
        content = sha256(data).digest()
        if content not in _SCANNED:
            _scan(path, data)
            _SCANNED[content] = None
            if len(_SCANNED) > _MOST_SCANNED:
                del _SCANNED[next(iter(_SCANNED))]
    try:
        proto: ModelProto = ModelProto.FromString(data)
    except DecodeError as error:
        _scan(path, data)
        raise _not_onnx(path, data, str(error)) from None
    if not proto.HasField("ir_version"):
        raise _not_onnx(path, data, "it holds no ir_version, which every ONNX model has")
    return proto


_SCANNED: dict[bytes, None] = {}
_MOST_SCANNED = 16


def _scan(path: Path, data: bytes) -> None:
    try:
        scan(memoryview(data))
    except ExcessError as error:
        raise InputError(
            f"{path}: too large or too deeply nested a graph",
            why=str(error),
            next="simplify it or split it before packaging, if it is not a broken file",
        ) from None
    except WireError as error:
        raise _not_onnx(path, data, str(error)) from None


def _not_onnx(path: Path, data: bytes, why: str) -> InputError:
    looks = name_format(data[:256])
    if looks:
        return InputError(f"{path}: not an ONNX model", why=f"it looks like {looks}", next="give the .onnx file")
    # Every writer puts ir_version first: field 1, a number.
    if data[:1] == b"\x08":
        return InputError(
            f"{path}: a truncated or damaged ONNX model",
            why=why,
            next="copy or export it again, and compare the size with the original's",
        )
    return InputError(f"{path}: not an ONNX model", why=why, next="give the .onnx file")


def _stored(proto: ModelProto) -> dict[str, TensorProto]:
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and is_standard(node) and len(node.output) == 1:
            tensor = constant_tensor(node)
            if tensor is not None:
                stored[node.output[0]] = tensor
    return stored

"""Loads one ONNX file into a ``Model``, or says in one message what is wrong with it.

External data is located and measured but never opened here, and what is given is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.errors import InputError
from deploykit.model.files.arity import check_arity
from deploykit.model.files.external import MAPPED, ExternalFile, locate_external
from deploykit.model.files.formats import name_format
from deploykit.model.files.hazards import check_hazards
from deploykit.model.files.structure import check_structure
from deploykit.model.files.tensors import check_inline, constant_tensor, is_external, stored_tensors
from deploykit.model.files.wire import ExcessError, WireError, scan
from deploykit.model.ops import is_standard
from deploykit.system.files import read_regular, regular_size

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

__all__ = ["Model", "load_model", "wrap_proto"]

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
    proto = _parse(path, _read(path))
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


def _read(path: Path) -> bytes:
    size = regular_size(path)
    if not size:
        raise InputError(f"{path}: the file is empty", next="export or copy the model again")
    if size >= _PROTOBUF_LIMIT:
        raise _too_large(path, size)
    return read_regular(path, size=size)


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
        _scan_once(path, data)
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


def _scan_once(path: Path, data: bytes) -> None:
    """Scan what was not scanned before: a package is read again by whoever judges it."""
    content = sha256(data).digest()
    if content not in _SCANNED:
        _scan(path, data)
        _SCANNED[content] = None
        if len(_SCANNED) > _MOST_SCANNED:
            del _SCANNED[next(iter(_SCANNED))]


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

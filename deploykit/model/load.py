"""Loads one ONNX file into a ``Model``, or says in one message what is wrong with it.

External data is located and measured but never opened here; no file and no given model is changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.errors import DeploykitError, InputError
from deploykit.findings.records import Record, replace
from deploykit.model.checks import check_graph, sort_nodes
from deploykit.model.values import (
    MAPPED,
    ExternalFile,
    all_graphs,
    check_inline,
    is_external,
    locate_external,
    named_tensors,
    stored_tensors,
)
from deploykit.system.files import read_regular, regular_size
from deploykit.system.limits import limited_memory, share_timeouts

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

__all__ = ["Model", "blaming", "load_model", "wrap_proto"]

NODE_LIMIT = 200_000
"""The most nodes of one model, with those of subgraphs and functions: as many as can be looked at within seconds."""

GRAPH_LIMIT = 4_000
"""The most graphs inside of nodes: ONNX Runtime takes 1.4 s to open 8,000, and each stage walks all of them."""

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
    """What a file looks like by its first bytes (at least 64, if it has so many), or ""."""
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
# Bytes that parsing may take: nodes take ten times their size in the file, weights just their size. A file of nothing
# but empty nodes would take fifty times its size.
_LEAST_MEMORY, _MEMORY_PER_BYTE = 256 << 20, 16

_EXPORT = "export the model again; onnx.checker.check_model says whether it is whole"


class Model(Record):
    """A model as read. ``proto`` holds no external data; ``external`` are the files that do, in the order met.

    ``stored`` are the stored tensors of the main graph by name: initializers and outputs of Constant nodes.
    ``reordered`` tells that the nodes of the file stood in an order that cannot be run.
    """

    path: Path
    proto: ModelProto
    external: tuple[ExternalFile, ...] = ()
    stored: Mapping[str, TensorProto]
    reordered: bool = False


def load_model(path: Path) -> Model:
    """The model of one file; InputError for whatever is not a whole ONNX model with its data beside it."""
    from onnx import IR_VERSION

    path = Path(path)
    size = regular_size(path)
    if not size:
        raise InputError(f"{path}: the file is empty", next="export or copy the model again")
    if size >= _PROTOBUF_LIMIT:
        raise InputError(
            f"{path}: {size:,} bytes; an ONNX file ends at 2 GiB",
            why="protobuf reads no larger message",
            next="save it with external data: onnx.save(model, path, save_as_external_data=True)",
        )
    proto = _parse(path, read_regular(path, size=size))
    for stored in stored_tensors(proto):
        if any(entry.key == MAPPED for entry in stored.proto.external_data):
            raise InputError(
                f"{path}: {stored.where}: its external data has the entry {MAPPED!r}",
                why="it would name any file of this machine, and no exporter writes it",
                next="export the model again",
            )
    if proto.ir_version > IR_VERSION:
        raise InputError(
            f"{path}: IR version {proto.ir_version}",
            why=f"the installed onnx reads versions up to {IR_VERSION}, and what it does not know is not judged here",
            next="export the model with an older onnx, or install a newer one",
        )
    reordered = sort_nodes(proto.graph)
    return replace(wrap_proto(proto, path=path), reordered=reordered)


def _parse(path: Path, data: bytes) -> ModelProto:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    try:
        with limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * len(data)):
            proto: ModelProto = ModelProto.FromString(data)
        if proto.HasField("ir_version"):
            nodes = sum(len(function.node) for function in proto.functions)
            for graphs, graph in enumerate(all_graphs(proto)):
                nodes += len(graph.node)
                if nodes > NODE_LIMIT or graphs > GRAPH_LIMIT:
                    most = f"{GRAPH_LIMIT:,} graphs inside of" if graphs > GRAPH_LIMIT else f"{NODE_LIMIT:,}"
                    raise InputError(
                        f"{path}: too large a graph",
                        why=f"it has more than {most} nodes",
                        next="simplify it or split it before packaging, if it is not a broken file",
                    )
            return proto
        why = "it holds no ir_version, which every ONNX model has"
    except (DecodeError, MemoryError) as error:
        why = str(error) or "it would take more memory than any real model of its size"
    looks = name_format(data[:256])
    if not looks and data[:1] == b"\x08":  # every writer puts ir_version first: field 1, a number
        raise InputError(
            f"{path}: a truncated or damaged ONNX model",
            why=why,
            next="copy or export it again, and compare the size with the original's",
        )
    why = f"it looks like {looks}" if looks else why
    raise InputError(f"{path}: not an ONNX model", why=why, next="give the .onnx file")


def wrap_proto(proto: ModelProto, *, path: Path) -> Model:
    """The ``Model`` of a proto in memory, after the same checks; external data is looked for beside ``path``."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise InputError(f"{path}: a model without a graph", why="there is nothing to deploy in it", next=_EXPORT)
    external = []
    for tensor in stored_tensors(proto):
        if is_external(tensor.proto):
            external.append(tensor)
        else:
            check_inline(tensor.proto, f"{path}: {tensor.where}")
    files = locate_external(path, external)
    check_graph(path, proto)
    return Model(path=path, proto=proto, external=files, stored=named_tensors(proto))


@contextmanager
def blaming(*models: Path) -> Iterator[None]:
    """Inside it, an unforeseen exception becomes an InputError where one of the models is not valid or cannot run.

    With sound models the exception goes on as it is: it is a defect. All runs inside share one ``share_timeouts``.
    """
    try:
        with share_timeouts():
            yield
    except (DeploykitError, MemoryError):
        raise
    except Exception as error:
        for path in models:
            wrong = what_is_wrong(path)
            if wrong:
                raise InputError(
                    f"{path}: not a model that can be used",
                    why=f"{wrong}; reading on ended with {type(error).__name__}: {error}",
                    next="export the model again; onnx.checker.check_model says more",
                ) from error
        raise


# The most elements of one input with which a model is tried out.
_MOST_FED = 1 << 24


def what_is_wrong(path: Path) -> str:
    """Which rule of ONNX a model file breaks, or why ONNX Runtime does not run it; "" for a model without fault.

    Also "" for a file that deploykit cannot load, which is not judged.
    """
    import numpy as np
    import onnx

    from deploykit.model.running import CpuSession, quiet_options

    try:
        model = load_model(path)
    except DeploykitError:
        return ""  # loading would have reported it: whatever failed had not come to the model yet
    kinds = {"float": "float32", "double": "float64"}
    fed = {}
    try:
        onnx.checker.check_model(str(path))
        files = [path, *(external.path for external in model.external)]
        session = CpuSession(str(path), quiet_options(), size=sum(file.stat().st_size for file in files))
        for item in session.inputs:
            shape = [dim if isinstance(dim, int) else 1 for dim in item.shape]
            kind = item.type.removeprefix("tensor(").removesuffix(")")
            if math.prod(shape) > _MOST_FED:
                return f"its input {item.name!r} has {math.prod(shape):,} elements"
            fed[item.name] = np.ones(shape, dtype=kinds.get(kind, kind))
        session.run(None, fed)
    except Exception as error:  # whatever the checker's or the runtime's binding raises is the answer
        return str(error).strip().partition("\n")[0][:300] or type(error).__name__
    return ""

"""The stored tensors of a model: where they are, what they claim, and which files hold their data.

Everything is checked by type, size and path; no weight is read and no file is opened.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from deploykit.errors import InputError
from deploykit.findings.records import Record, Shape, replace
from deploykit.model.nodes import bodies
from deploykit.model.operators import BITS, is_standard
from deploykit.system.files import regular_size

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

__all__ = [
    "MAPPED",
    "ExternalFile",
    "FileSpan",
    "StoredTensor",
    "all_graphs",
    "byte_size",
    "check_inline",
    "claim_of",
    "constant_tensor",
    "dtype_name",
    "element_count",
    "is_external",
    "is_heavy",
    "locate_external",
    "named_tensors",
    "nested_graphs",
    "stored_tensors",
]

_LARGEST = 1 << 62
_MOST_DIMS = 64
_MANY_ELEMENTS = 2 << 20  # 8 MB of floats

# The typed field that holds the elements where ``raw_data`` does not, and how many of its entries make one element.
_FIELDS = {
    **dict.fromkeys(BITS, ("int32_data", 1)),
    "float": ("float_data", 1),
    "complex64": ("float_data", 2),
    "double": ("double_data", 1),
    "complex128": ("double_data", 2),
    "int64": ("int64_data", 1),
    **dict.fromkeys(("uint32", "uint64"), ("uint64_data", 1)),
    "string": ("string_data", 1),
}


class StoredTensor(NamedTuple):
    """One stored tensor and where it was met: its name, or the node that holds it."""

    where: str
    proto: TensorProto


def stored_tensors(proto: ModelProto) -> Iterator[StoredTensor]:
    """Every tensor stored anywhere in the model: initializers, attributes, subgraphs, functions, training graphs."""
    for graph in all_graphs(proto):
        for tensor in graph.initializer:
            yield StoredTensor(f"tensor {tensor.name!r}", tensor)
        for sparse in graph.sparse_initializer:
            yield from _sparse_parts(f"sparse tensor {sparse.values.name!r}", sparse)
        yield from _node_tensors(graph.node)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[StoredTensor]:
    for node in nodes:
        for attribute in node.attribute:
            where = f"attribute {attribute.name!r} of node {node.name or node.op_type!r}"
            if attribute.HasField("t"):
                yield StoredTensor(
                    f"tensor {node.output[0]!r}" if (node.op_type == "Constant" and len(node.output) == 1) else where,
                    attribute.t,
                )
            yield from (StoredTensor(where, tensor) for tensor in attribute.tensors)
            if attribute.HasField("sparse_tensor"):
                yield from _sparse_parts(where, attribute.sparse_tensor)
            for sparse in attribute.sparse_tensors:
                yield from _sparse_parts(where, sparse)


def _sparse_parts(where: str, sparse: SparseTensorProto) -> Iterator[StoredTensor]:
    yield StoredTensor(f"values of {where}", sparse.values)
    yield StoredTensor(f"indices of {where}", sparse.indices)


def all_graphs(proto: ModelProto) -> Iterator[GraphProto]:
    """The main graph, then every graph nested in it, in functions and in training information."""
    yield proto.graph
    yield from nested_graphs(proto.graph.node)
    for function in proto.functions:
        yield from nested_graphs(function.node)
    for training in proto.training_info:
        for graph in (training.initialization, training.algorithm):
            yield graph
            yield from nested_graphs(graph.node)


def nested_graphs(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """Every graph in the attributes of the given nodes, at any depth."""
    todo = [nodes]
    while todo:
        for node in todo.pop():
            for graph in bodies(node):
                yield graph
                todo.append(graph.node)


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """The value of a Constant node as a tensor; None for a sparse or missing value."""
    from onnx import TensorProto, helper

    for attribute in node.attribute:
        name, plain = node.output[0], _PLAIN.get(attribute.name)
        if attribute.name == "value":
            held: TensorProto = attribute.t
            return held
        if plain is not None:
            value = helper.get_attribute_value(attribute)
            many = attribute.name.endswith("s")
            data_type = TensorProto.DataType.Value(plain)
            return helper.make_tensor(name, data_type, [len(value)] if many else [], value if many else [value])
    return None


def named_tensors(proto: ModelProto) -> dict[str, TensorProto]:
    """The tensors that the main graph stores, by name: initializers and the values of Constant nodes."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and is_standard(node) and (held := constant_tensor(node)) is not None:
            stored[node.output[0]] = held
    return stored


_PLAIN = {"value_float": "FLOAT", "value_floats": "FLOAT", "value_int": "INT64", "value_ints": "INT64"}
_PLAIN |= {"value_string": "STRING", "value_strings": "STRING"}


def is_external(tensor: TensorProto) -> bool:
    """True where the data lies in another file."""
    return bool(tensor.data_location == 1)  # TensorProto.EXTERNAL


@cache
def dtype_name(data_type: int) -> str:
    """ONNX's lower-case name of an element type, "" for one that the installed onnx does not know."""
    from onnx import TensorProto

    try:
        name = TensorProto.DataType.Name(data_type).lower()
    except ValueError:
        return ""
    return "" if name == "undefined" else name


def element_count(tensor: TensorProto, where: str) -> int:
    """The number of elements by the tensor's dimensions; InputError where they are negative or absurd."""
    dims = tuple(tensor.dims)
    if dims and min(dims) < 0:
        raise InputError(f"{where}: has the negative dimension {min(dims)}", why=f"its dimensions are {_brief(dims)}")
    if len(dims) > _MOST_DIMS:
        raise InputError(f"{where}: has {len(dims)} dimensions", why=f"no array has more than {_MOST_DIMS}")
    count: int = math.prod(dims)
    if count > _LARGEST:
        raise InputError(f"{where}: claims more elements than any file holds", why=f"its dimensions are {_brief(dims)}")
    return count


def byte_size(tensor: TensorProto, where: str) -> int:
    """The bytes of the elements as raw data, by type and dimensions; 0 for strings."""
    count, name = element_count(tensor, where), dtype_name(tensor.data_type)
    if not name:
        raise InputError(
            f"{where}: has the unknown element type {tensor.data_type}",
            next="upgrade onnx, if a newer version has that type",
        )
    return (count * BITS.get(name, 0) + 7) // 8


def is_heavy(proto: ModelProto) -> bool:
    """True where initializers inside the model have so many elements that writing the model costs more than it saves.

    ``ByteSize`` is no way to tell: it writes all of them.
    """
    claimed = 0
    for tensor in proto.graph.initializer:
        if tensor.data_location != 1:  # TensorProto.EXTERNAL
            claimed += math.prod(tensor.dims)
    return claimed > _MANY_ELEMENTS


def check_inline(tensor: TensorProto, where: str) -> None:
    """InputError unless the data stored in the model has the length that type and dimensions claim."""
    size = byte_size(tensor, where)
    name = dtype_name(tensor.data_type)
    if tensor.HasField("raw_data") and name != "string":
        present, wanted, unit = len(tensor.raw_data), size, "bytes"
    else:
        field, entries = _FIELDS[name]
        packed = BITS.get(name) in (2, 4)
        present, unit = len(getattr(tensor, field)), "values"
        wanted = size if packed else element_count(tensor, where) * entries
    if present != wanted:
        raise InputError(
            f"{where}: holds {present:,} {unit}, but its dimensions {_brief(tuple(tensor.dims))} need {wanted:,}",
            why="the file is damaged, or was written wrongly",
            next="export the model again",
        )


def _brief(dims: Shape) -> str:
    text = " x ".join(map(str, dims[:8])) or "(a scalar)"
    return text + (" x …" if len(dims) > 8 else "")


MAPPED = "deploykit.mapped"
"""The key of the entry by which a tensor in memory names the file located for it; no model file may hold this key."""

_FORBIDDEN = "a model may only use files in its own folder, or it could read anything on this machine"
# The claims on one file may add up to this many times its size, plus an amount that needs no question.
_SHARED, _SMALL = 4, 256 << 20
_KEEP_BESIDE = "put the real file into the model's folder and point 'location' to it by its bare name"


class FileSpan(Record):
    """What one tensor claims of an external file: ``length`` bytes from byte ``offset`` on."""

    tensor: str
    offset: int
    length: int


class ExternalFile(Record):
    """One external data file: ``location`` as written in the model, ``path`` the resolved file, ``size`` in bytes."""

    location: str
    path: Path
    size: int
    claims: tuple[FileSpan, ...] = ()


def locate_external(path: Path, tensors: Iterable[StoredTensor]) -> tuple[ExternalFile, ...]:
    """The external files of the model at ``path``, in the order met, with what is claimed of each.

    Raises InputError, naming model, tensor and file, for a location that leaves the folder, a file that is missing or
    no regular file, and data that is shorter than claimed. All locations are judged before any file is looked at.
    """
    users = dict[str, list[StoredTensor]]()
    located = dict[str, Path]()
    for stored in tensors:
        entries = _entries(path, stored)
        location = entries.get("location", "")
        users.setdefault(location, []).append(stored)
        if MAPPED in entries:
            located[location] = Path(entries[MAPPED])
    for location, claimants in users.items():
        # Refuse what leaves the folder by its spelling alone, in the notation of any system.
        where = f"{path}: {claimants[0].where}"
        if not location:
            raise InputError(f"{where}: its data is external, but no location is given", next="export the model again")
        if len(location) > 4096 or location.endswith("/") or any(ord(letter) < 32 for letter in location):
            raise InputError(f"{where}: its external data has the location {location[:80]!r}, which is no file name")
        windows = PureWindowsPath(location)
        if windows.anchor:  # a drive, or a root as POSIX has it too
            raise InputError(
                f"{where}: its external data {location[:200]!r} is an absolute path", why=_FORBIDDEN, next=_KEEP_BESIDE
            )
        if ".." in windows.parts:
            raise InputError(
                f"{where}: its external data {location[:200]!r} leaves the model's folder",
                why=_FORBIDDEN,
                next=_KEEP_BESIDE,
            )
    # A linked folder is followed, a linked model is not: data lies beside the name by which the model is known.
    folder = path.parent.resolve()
    files = [
        _resolve(path, folder, location, claimants[0])
        if location not in located
        else ExternalFile(location=location, path=located[location], size=regular_size(located[location]))
        for location, claimants in users.items()
    ]
    measured = []
    for file in files:
        claims = tuple(claim_of(path, stored, file.size) for stored in users[file.location])
        claimed = sum(claim.length for claim in claims)
        if claimed > _SHARED * file.size + _SMALL:
            raise InputError(
                f"{path}: {len(claims):,} tensors claim {claimed:,} bytes of {file.location!r}, "
                f"which has {file.size:,}",
                why="a few tensors may share their data; these would fill any memory from a small file",
                next="export the model again",
            )
        measured.append(replace(file, claims=claims))
    return tuple(measured)


def claim_of(path: Path | str, stored: StoredTensor, size: int) -> FileSpan:
    """The bytes that a tensor claims of a file of ``size`` bytes; InputError where the file does not have them."""
    entries = _entries(path, stored)
    where = f"{path}: {stored.where}"
    location, needed = entries.get("location", ""), byte_size(stored.proto, where)
    offset = _number(entries, "offset", where, default=0)
    length = _number(entries, "length", where, default=needed)
    if length != needed:
        raise InputError(
            f"{where}: claims {length:,} bytes of {location!r}, but its type and dimensions need {needed:,}",
            why="the model is damaged, or was written wrongly",
            next="export the model again",
        )
    if offset + length > size:
        raise InputError(
            f"{where}: needs bytes {offset:,} to {offset + length:,} of {location!r}, which has only {size:,}",
            why="the external data file is shorter than the model claims",
            next="copy the file again, completely; it belongs to exactly this model",
        )
    return FileSpan(tensor=stored.proto.name, offset=offset, length=length)


def _entries(path: Path | str, stored: StoredTensor) -> Mapping[str, str]:
    entries = {entry.key: entry.value for entry in stored.proto.external_data}
    if not set(map(type, (*entries, *entries.values()))) <= {str}:
        raise InputError(f"{path}: {stored.where}: its external data entries are not valid text")
    return entries


def _number(entries: Mapping[str, str], key: str, where: str, *, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InputError(f"{where}: the {key} {text[:40]!r} of its external data is not a number of bytes")
    return int(text)


def _resolve(path: Path, folder: Path, location: str, stored: StoredTensor) -> ExternalFile:
    """Follow symbolic links without opening anything. InputError unless they end at a regular file in the folder."""
    where = f"{path}: {stored.where}"
    try:
        target = (folder / location).resolve()
    except (OSError, RuntimeError, UnicodeError) as error:
        raise InputError(f"{where}: its external data {location!r} cannot be followed", why=str(error)) from None
    if not target.is_relative_to(folder):
        raise InputError(
            f"{where}: its external data {location!r} leaves the model's folder through a symbolic link",
            why=_FORBIDDEN,
            next="replace the link by the real file",
        )
    if target == folder / path.name:
        raise InputError(
            f"{where}: its external data {location!r} is the model itself",
            why="no exporter writes that; the bytes of a graph are no weights",
            next="export the model again",
        )
    try:
        status = target.stat()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise InputError(
            f"{where}: its external data {location!r} {'is missing' if missing else 'cannot be reached'}",
            why=f"{folder / location}: {error.strerror or error}",
            next="copy the file beside the model; it was written together with it",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{where}: its external data {location!r} is not a regular file", next=_KEEP_BESIDE)
    return ExternalFile(location=location, path=target, size=status.st_size)

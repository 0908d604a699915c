"""Reads a DLC that the provider's IR backend wrote, compares it with its model, and rewrites it with check sums.

A DLC is a zip whose member ``model`` has a header of eight bytes and a FlatBuffers buffer called ``NETD``. The fields
were identified by comparing files with the graphs that were handed over (onnxruntime-qnn 2.3.0 and 2.7.0, metadata
2.2.0 and 2.3.0). Anything that does not fit is an error.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from deploykit.errors import InputError
from deploykit.findings.records import Pairs, Record, Shape
from deploykit.model.nodes import attribute
from deploykit.model.operators import QUANTIZERS
from deploykit.model.values import is_external
from deploykit.system.files import open_regular
from deploykit_qualcomm.qnn_types import TYPE_CODES, same_grid

__all__ = ["DLC", "Compared", "compare_dlc", "read_dlc", "with_check_sums"]

DLC = "artifacts/model.dlc"
"""The path of the DLC in a package."""

_HEAD, _IDENTIFIER = 8, b"NETD"
_METADATA = "dlc.metadata"
_TIME, _NO_TIME = re.compile(rb'("timestamp": ")[^"]*'), rb"\g<1>1980-01-01 00:00:00 UTC"
_WRITER = re.compile(rb'"converterVersion": "v?([0-9]+(?:\.[0-9]+){2})')
_MOST = 1 << 20
"""No graph has a list with more entries."""
_MOST_DIMS = 16


class DlcTensor(Record):
    """One tensor: its type as deploykit names it, and the scales and zero points of its grid, empty for a float.

    ``axis`` is None if one grid holds for the whole tensor.
    """

    name: str
    dtype: str
    dims: Shape
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None


class Dlc(Record):
    """The content of a DLC: the version of its metadata, the operators (name, type) in order, and the tensors by name.

    ``writer`` is the release that wrote the file, "" if it does not say.
    """

    metadata: str
    writer: str
    graphs: int
    operators: Pairs
    tensors: dict[str, DlcTensor]


def read_dlc(path: Path) -> Dlc:
    """Reads the types and grids in a DLC. Raises InputError for another file or an unknown form."""
    try:
        members = _members(path)
        data = members["model"]
        if data[_HEAD + 4 : _HEAD + 8] != _IDENTIFIER:
            raise _FormError("the member 'model' is no NETD buffer")
        graphs = list(_FlatTable(data, _HEAD + _number("<I", data, _HEAD), [len(data) // 4]).tables(_GRAPHS))
        tensors = [_tensor(table) for graph in graphs for table in graph.tables(_GRAPH_TENSORS)]
        operators = [(op.text(_OP_NAME), op.text(_OP_TYPE)) for graph in graphs for op in graph.tables(_GRAPH_OPS)]
    except KeyError as error:
        raise InputError(f"{path}: not a DLC of a known form", why=f"it has no member {error}") from None
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a DLC of a known form", why=str(error)) from None
    named = (name.removeprefix(_METADATA) for name in members if name.startswith(_METADATA))
    texts = (data for name, data in members.items() if name.startswith(_METADATA))
    writer = next((found.group(1).decode() for text in texts if (found := _WRITER.search(text))), "")
    return Dlc(
        metadata=next((version for version in named if version[:1].isdigit()), ""),
        writer=writer,
        graphs=len(graphs),
        operators=tuple(operators),
        tensors={tensor.name: tensor for tensor in tensors},
    )


def with_check_sums(given: Path, target: Path) -> None:
    """Copies a DLC member by member, uncompressed, with check sums, which the IR backend leaves 0.

    Readers that verify check sums refuse a file without them. The time in the metadata is set to a fixed one, so that
    the same model gives the same bytes. Raises InputError.
    """
    try:
        members = _members(given)
    except _UNREADABLE as error:
        raise InputError(f"{given}: not a DLC", why=str(error)) from None
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            timeless = _TIME.sub(_NO_TIME, data) if name.startswith(_METADATA) else data
            archive.writestr(zipfile.ZipInfo(name), timeless)


class _FormError(Exception):
    """The file does not have the known form."""


_UNREADABLE = (
    *(OSError, zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError),
    _FormError,
)
"""The exceptions that a damaged archive or buffer causes."""

_GRAPHS = 0
_GRAPH_OPS, _GRAPH_TENSORS = 1, 2
_OP_NAME, _OP_TYPE = 0, 1
_TENSOR_NAME, _TENSOR_DIMS, _TENSOR_GRID, _TENSOR_TYPE = 1, 3, 5, 6
_GRID_WHOLE, _GRID_ALONG = 2, 3
_ALONG_AXIS, _ALONG_ITEMS = 0, 1
_ITEM_SCALE, _ITEM_OFFSET = 3, 4


def _members(path: Path) -> dict[str, bytes]:
    """The bytes of each member, read without ``zipfile``, which would take a check sum of 0 for damage."""
    found = dict[str, bytes]()
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        left = os.fstat(file.fileno()).st_size
        for info in archive.infolist():
            # Members that share bytes could be unpacked to any total size.
            left -= info.file_size
            if info.compress_type != zipfile.ZIP_STORED or left < 0 or info.filename in found:
                raise _FormError(f"the member {info.filename} is not stored, or not on its own")
            file.seek(info.header_offset + 26)
            file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
            found[info.filename] = file.read(info.file_size)
            if len(found[info.filename]) != info.file_size:
                raise _FormError(f"the member {info.filename} is cut off")
    return found


def _tensor(table: _FlatTable) -> DlcTensor:
    name, code = table.text(_TENSOR_NAME), table.integer(_TENSOR_TYPE)
    if code not in TYPE_CODES:
        raise _FormError(f"tensor {name!r} has the type {code:#x}")
    scales, zero_points, axis = _grid(table.table(_TENSOR_GRID))
    return DlcTensor(
        name=name,
        dtype=TYPE_CODES[code],
        dims=table.integers(_TENSOR_DIMS),
        scales=scales,
        zero_points=zero_points,
        axis=axis,
    )


def _grid(table: _FlatTable | None) -> tuple[tuple[float, ...], tuple[int, ...], int | None]:
    if table is None:
        return (), (), None
    along, whole = table.table(_GRID_ALONG), table.table(_GRID_WHOLE)
    items = list(along.tables(_ALONG_ITEMS)) if along is not None else [] if whole is None else [whole]
    scales = tuple(item.real(_ITEM_SCALE) for item in items)
    zero_points = tuple(-item.integer(_ITEM_OFFSET) for item in items)
    return scales, zero_points, None if along is None else along.integer(_ALONG_AXIS)


def _number(form: str, data: bytes, at: int) -> int:
    return int(struct.unpack_from(form, data, at)[0])


class _FlatTable:
    """One table of a FlatBuffers buffer; its fields are found through the list of offsets it points to.

    ``left`` is how many tables all lists together may still have: each takes four bytes, and lists of a real file share
    none. Without this limit a small file whose lists all point to one another could keep the reader busy for any time.
    """

    def __init__(self, data: bytes, at: int, left: list[int]) -> None:
        self._data, self._at, self._left = data, at, left
        self._list = at - _number("<i", data, at)
        if not 0 <= self._list <= len(data) - 4:
            raise _FormError(f"no table at {at}")
        self._size = _number("<H", data, self._list)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = _number("<H", self._data, self._list + entry) if entry + 2 <= self._size else 0
        return self._at + offset if offset else None

    def _entries(self, field: int, most: int) -> tuple[int, int]:
        """Where the entries of a list begin, and how many there are; none if the field is absent."""
        place = self._place(field)
        if place is None:
            return 0, 0
        at = place + _number("<I", self._data, place)
        count = _number("<I", self._data, at)
        if count > most:
            raise _FormError(f"a list of {count} entries")
        return at + 4, count

    def integer(self, field: int) -> int:
        """The integer in a field, 0 if the field is absent."""
        place = self._place(field)
        return 0 if place is None else _number("<i", self._data, place)

    def real(self, field: int) -> float:
        """The float in a field, 0 if the field is absent."""
        place = self._place(field)
        return 0.0 if place is None else float(struct.unpack_from("<f", self._data, place)[0])

    def text(self, field: int) -> str:
        """The text in a field, "" if the field is absent."""
        at, count = self._entries(field, _MOST)
        return self._data[at : at + count].decode("utf-8")

    def integers(self, field: int) -> tuple[int, ...]:
        """The integers of a short list, empty if the field is absent."""
        at, count = self._entries(field, _MOST_DIMS)
        return struct.unpack_from(f"<{count}I", self._data, at)

    def _table(self, place: int) -> _FlatTable:
        return _FlatTable(self._data, place + _number("<I", self._data, place), self._left)

    def table(self, field: int) -> _FlatTable | None:
        """The table that a field points to, None if the field is absent."""
        place = self._place(field)
        return None if place is None else self._table(place)

    def tables(self, field: int) -> Iterator[_FlatTable]:
        """Yields every table of a list."""
        at, count = self._entries(field, _MOST)
        self._left[0] -= count
        if self._left[0] < 0:
            raise _FormError("its lists hold more than there is room for")
        yield from map(self._table, range(at, at + 4 * count, 4))


_CLOSE = 1.6e-5
"""The relative difference below which two scales count as equal: a bias' scale is a product that is rounded in between,
and a 16-bit Sigmoid gets 2^-16 instead of 1/65535 from the provider, which is one step at the end of its range.
"""


class Compared(Record):
    """One tensor of the model that is in the DLC too; ``grid`` is False if its type is right and its grid is not."""

    tensor: str
    meant: str
    found: str
    grid: bool = True

    @property
    def ok(self) -> bool:
        """True if type and grid are as intended."""
        return self.meant == self.found and self.grid


def compare_dlc(model: ModelProto, dlc: Dlc) -> Iterator[Compared]:
    """Compares every pair of the model whose quantized tensor, or stored weight, is in the DLC under its own name."""
    stored = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in QUANTIZERS:
            continue
        # If ONNX Runtime moves a pair, it quantizes anew, under the second name.
        anew = [node.output[0], f"{node.input[0]}_QuantizeLinear"]
        names = [node.input[0]] if node.op_type == "DequantizeLinear" else anew
        name = next((name for name in names if name in dlc.tensors), "")
        meant = _meant(node, stored) if name and (len(names) > 1 or name in stored) else None
        if meant is None:
            continue
        found = dlc.tensors[name]
        kind, scales, zeros = meant
        same = same_grid(kind, found.dtype, static=name in stored)
        # Zero points shift by half the range if the same grid is stored with the other signedness.
        half = 1 << (int("".join(c for c in kind if c.isdigit())) - 1)
        signs = kind.startswith("int") - found.dtype.startswith("int")
        agrees = (
            len(found.scales) == len(scales)
            and np.allclose(np.asarray(found.scales), scales, rtol=_CLOSE, atol=0)
            and np.array_equal(found.zero_points, zeros + signs * half)
        )
        yield Compared(tensor=name, meant=kind, found=kind if same else found.dtype, grid=not same or agrees)


def _meant(node: NodeProto, stored: Mapping[str, TensorProto]) -> tuple[str, Any, Any] | None:
    """Type, scales and zero points of a pair with stored parameters; None for blocks or external values."""
    parameters = [stored.get(name) for name in node.input[1:3]]
    held = [item for item in parameters if item is not None and not is_external(item)]
    if len(held) < 2 or attribute(node, "block_size", 0):
        return None
    scale, zero = (numpy_helper.to_array(item) for item in held)
    return str(zero.dtype), scale.reshape(-1).astype(np.float64), zero.reshape(-1).astype(np.int64)

"""Reads the values of stored tensors: one tensor at a time, all at once, or as memory maps of their files.

A model with gigabytes of weights can be copied, searched and rewritten while they stay in their files. Paths to such
files are followed only in models that ``lean_weights`` made: a model file that has them is refused when loaded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from deploykit.errors import InputError, UsageError
from deploykit.findings.records import Numbers
from deploykit.model.nodes import copy_of
from deploykit.model.values import (
    MAPPED,
    StoredTensor,
    byte_size,
    claim_of,
    element_count,
    is_external,
    stored_tensors,
)
from deploykit.system.files import open_regular, regular_size

if TYPE_CHECKING:
    from deploykit.model.load import Model

__all__ = [
    "WeightFiles",
    "copy_bytes",
    "element_type",
    "is_mapped",
    "is_native",
    "is_unreadable",
    "lean_weights",
    "load_small_weights",
    "load_weights",
    "mapped_bytes",
    "numpy_type",
    "point_outside",
    "stored_values",
    "unmapped",
    "weight",
    "weight_files",
    "whole_model",
    "with_values_inside",
]

LEAST = 64 << 20
"""The least bytes of external data for which weights stay in their files: less is handled faster in memory."""

# Bytes of a tensor up to which it is always read: most such tensors are constants that rewrites look at.
_SMALL = 1 << 14

# Bytes of a file that are in memory at a time.
_AT_ONCE = 1 << 22

# ONNX element types that numpy has too, as they lie in a file (little endian).
_NATIVE = {1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2"}
_NATIVE |= {11: "<f8", 12: "<u4", 13: "<u8", 14: "<c8", 15: "<c16"}


def weight(model: Model, name: str, files: WeightFiles | None = None) -> Numbers:
    """The values of one stored tensor, in its own shape and type, read-only; large external data is a memory map.

    ``files`` keeps the files open, for many tensors of few files.
    Raises UsageError where the model stores no such tensor, InputError where its file changed since it was measured.
    """
    tensor = model.stored.get(name)
    if tensor is None:
        raise UsageError(f"{model.path}: stores no tensor {name!r}")
    if not is_external(tensor):
        return numpy_helper.to_array(tensor)
    location = _entry(tensor, "location")
    path = _paths(model).get(location)
    if path is None:
        raise UsageError(f"{model.path}: tensor {tensor.name!r} points to {location!r}, which was never located")
    with weight_files() as own:
        try:
            opened = (files or own)(str(path))
        except InputError as error:
            raise InputError(
                f"{model.path}: tensor {name!r}: its external data {location!r} cannot be read",
                why=error.why or error.what,
            ) from None
        return _values(opened, tensor, model.path)


def stored_values(tensor: TensorProto, files: WeightFiles | None = None) -> Numbers:
    """The values of a stored tensor in its own shape and type, read-only.

    A memory map where a large tensor lies in a file. ``files`` keeps the files open, for many tensors of few files.
    Raises InputError where the file is gone or has become shorter, and for external data that was never located.
    """
    if not is_external(tensor):
        return numpy_helper.to_array(tensor)
    place = _entry(tensor, MAPPED)
    if not place:
        raise InputError(f"tensor {tensor.name!r}: its values lie in a file that was never located")
    with weight_files() as own:
        return _values((files or own)(place), tensor, place)


def _values(opened: BinaryIO, tensor: TensorProto, where: Path | str) -> Numbers:
    """The values of a tensor from its open file: a memory map, or read where they are few.

    A map costs more than reading few bytes.
    """
    claim = claim_of(where, _named(tensor), os.fstat(opened.fileno()).st_size)
    native = _NATIVE.get(tensor.data_type)
    if native is not None and claim.length > _AT_ONCE:
        return np.memmap(opened, dtype=native, mode="r", offset=claim.offset, shape=tuple(tensor.dims))
    if native is not None:
        return np.frombuffer(os.pread(opened.fileno(), claim.length, claim.offset), native).reshape(tensor.dims)
    opened.seek(claim.offset)  # a type that numpy lacks is never mapped, and may need more than one read of the system
    inline = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    inline.raw_data = opened.read(claim.length)
    return numpy_helper.to_array(inline)


def _named(tensor: TensorProto) -> StoredTensor:
    return StoredTensor(f"tensor {tensor.name!r}", tensor)


def _entry(tensor: TensorProto, key: str) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == key), "")


WeightFiles: TypeAlias = Callable[[str], BinaryIO]
"""A function that gives the open file at a path; InputError where it is no regular file any more."""


@contextmanager
def weight_files() -> Iterator[WeightFiles]:
    """Opens files of weights, each once, and closes them at the end; memory maps of them stay valid."""
    with ExitStack() as opened:
        yield cache(lambda path: opened.enter_context(open_regular(Path(path))))


def is_native(tensor: TensorProto) -> bool:
    """True where numpy has the tensor's element type as it lies in a file, so that its values can be mapped."""
    return tensor.data_type in _NATIVE


def is_mapped(tensor: TensorProto) -> bool:
    """True for a tensor that was left in its file by ``lean_weights``."""
    return is_external(tensor) and bool(_entry(tensor, MAPPED))


def is_unreadable(tensor: TensorProto) -> bool:
    """True for a tensor whose values cannot be read: external data of a model that was not made by ``lean_weights``."""
    return is_external(tensor) and not is_mapped(tensor)


def mapped_bytes(model: ModelProto) -> int:
    """The total bytes of the initializers that ``lean_weights`` left in files."""
    return sum(byte_size(tensor, tensor.name) for tensor in model.graph.initializer if is_mapped(tensor))


def load_weights(model: Model, *, limit: float = math.inf) -> ModelProto:
    """The model as one proto, with its weights of at most ``limit`` elements: a copy where some lie in files."""
    return _taken_in(model, copy_of(model.proto), limit) if model.external else model.proto


def lean_weights(model: Model) -> ModelProto:
    """The model as one proto whose stored tensors can all be read with ``stored_values``.

    Where there are ``LEAST`` bytes of external data, large initializers stay in their files, except those of element
    types that numpy does not have.
    """
    if sum(file.size for file in model.external) < LEAST:
        return load_weights(model)
    lean, files = copy_of(model.proto), _paths(model)
    for tensor in lean.graph.initializer:
        if is_unreadable(tensor):
            path = files[_entry(tensor, "location")]
            if claim_of(model.path, _named(tensor), regular_size(path)).length > _SMALL and is_native(tensor):
                tensor.external_data.add(key=MAPPED, value=str(path))
    return _taken_in(model, lean)


def load_small_weights(model: Model, *, limit: int = 1 << 20) -> ModelProto:
    """The model with initializers of at most ``limit`` elements read, or a lean one where its external data is large.

    Enough for matching rewrites, which look at constants and never at the weights of linear ops.
    """
    is_large = sum(file.size for file in model.external) >= LEAST
    return lean_weights(model) if is_large else load_weights(model, limit=limit)


def _paths(model: Model) -> dict[str, Path]:
    return {file.location: file.path for file in model.external}


def _taken_in(model: Model, copy: ModelProto, limit: float = math.inf) -> ModelProto:
    """Read the external tensors of at most ``limit`` elements into ``copy``, in place, and return it."""
    files = _paths(model)
    for stored in stored_tensors(copy):
        tensor = stored.proto
        if is_unreadable(tensor) and element_count(tensor, stored.where) <= limit:
            with open_regular(files[_entry(tensor, "location")]) as opened:
                claim = claim_of(model.path, stored, os.fstat(opened.fileno()).st_size)
                opened.seek(claim.offset)
                tensor.raw_data = opened.read(claim.length)
            tensor.ClearField("external_data")
            tensor.data_location = tensor.DEFAULT
    return copy


def point_outside(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Mark a tensor as external: its bytes lie in a file beside the model."""
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def copy_bytes(source: Path, start: int, length: int, sink: BinaryIO) -> None:
    """Copy ``length`` bytes of a file into ``sink``, piece by piece; InputError where the file ends before that."""
    with source.open("rb") as file:
        file.seek(start)
        while length > 0:
            piece = file.read(min(length, _AT_ONCE))
            if not piece:
                raise InputError(f"{source}: ends before its data does")
            sink.write(piece)
            length -= len(piece)


def with_values_inside(tensor: TensorProto) -> TensorProto:
    """The tensor with its values inside; the same object where they are inside already."""
    return numpy_helper.from_array(stored_values(tensor), tensor.name) if is_mapped(tensor) else tensor


def unmapped(model: ModelProto) -> ModelProto:
    """The model as it is written beside its weight files: no tensor says where on this machine they lie."""
    if not any(map(is_mapped, model.graph.initializer)):
        return model
    plain = copy_of(model)
    for tensor in filter(is_mapped, plain.graph.initializer):
        entries = [(entry.key, entry.value) for entry in tensor.external_data if entry.key != MAPPED]
        tensor.ClearField("external_data")
        for key, value in entries:
            tensor.external_data.add(key=key, value=value)
    return plain


def whole_model(model: ModelProto) -> ModelProto:
    """The model with all values inside, to be written as one message; the same object where they are inside already."""
    if not any(map(is_mapped, model.graph.initializer)):
        return model
    whole = copy_of(model)
    for tensor in filter(is_mapped, whole.graph.initializer):
        tensor.CopyFrom(with_values_inside(tensor))
    return whole


def element_type(name: str) -> int:
    """The element type's number for a lower-case type name (``uint8``, ``int4``, ``float`` …)."""
    return int(TensorProto.DataType.Value(name.upper()))


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy type of a name, which is NumPy's own or, for ONNX's extensions (``bfloat16``, ``int4`` …), ONNX's."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(helper.tensor_dtype_to_np_dtype(element_type(name)))

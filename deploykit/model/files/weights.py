"""Reads the values of stored tensors, one at a time or all at once, when somebody really needs them.

External data is mapped, not copied, where numpy has the element type. Nothing else in deploykit opens weight files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from deploykit.errors import InputError, UsageError
from deploykit.model.files.external import Claim, ExternalFile, claim_of
from deploykit.model.files.tensors import StoredTensor, is_external, stored_tensors
from deploykit.system.files import open_regular, regular_size

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ModelProto, TensorProto

    from deploykit.model.files.loading import Model

__all__ = [
    "is_native",
    "iter_weights",
    "load_weights",
    "map_values",
    "take_in",
    "weight",
]


def weight(model: Model, name: str) -> npt.NDArray[Any]:
    """The values of one stored tensor, in its own shape and type; external data is a read-only memory map.

    Raises UsageError where the model stores no such tensor, InputError where its file changed since it was measured.
    """
    from onnx import numpy_helper

    tensor = model.stored.get(name)
    if tensor is None:
        raise UsageError(f"{model.path}: stores no tensor {name!r}")
    if is_external(tensor):
        return _read_external(model, name, tensor)
    return numpy_helper.to_array(tensor)


def iter_weights(model: Model) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Every stored tensor of the main graph with its values, one at a time."""
    return ((name, weight(model, name)) for name in model.stored)


def _read_external(model: Model, name: str, tensor: TensorProto) -> npt.NDArray[Any]:
    file = _file_of(model, tensor)
    try:
        size = regular_size(file.path)
    except InputError as error:
        raise InputError(
            f"{model.path}: tensor {name!r}: its external data {file.location!r} cannot be read",
            why=error.why or error.what,
        ) from None
    claim = claim_of(model.path, StoredTensor(f"tensor {name!r}", tensor), size)
    with open_regular(file.path) as opened:
        return map_values(opened, tensor, claim)


def is_native(tensor: TensorProto) -> bool:
    """True where numpy has the element type as it lies in a file, so that values can be mapped."""
    return tensor.data_type in _NATIVE


def map_values(opened: BinaryIO, tensor: TensorProto, claim: Claim) -> npt.NDArray[Any]:
    """The values of a tensor out of its open file: a read-only map, or a copy where numpy lacks the element type."""
    import numpy as np
    from onnx import numpy_helper

    native = _NATIVE.get(tensor.data_type)
    if native is not None and claim.length:
        return np.memmap(opened, dtype=native, mode="r", offset=claim.offset, shape=tuple(tensor.dims))
    opened.seek(claim.offset)
    return numpy_helper.to_array(_inline(tensor, opened.read(claim.length)))


# ONNX element types that numpy has too, as they lie in a file (little endian).
_NATIVE = {1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2"}
_NATIVE |= {11: "<f8", 12: "<u4", 13: "<u8", 14: "<c8", 15: "<c16"}


def _inline(tensor: TensorProto, data: bytes) -> TensorProto:
    from onnx import TensorProto

    copy = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    copy.raw_data = data
    return copy


def _file_of(model: Model, tensor: TensorProto) -> ExternalFile:
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    for file in model.external:
        if file.location == location:
            return file
    raise UsageError(f"{model.path}: tensor {tensor.name!r} points to {location!r}, which was never located")


def load_weights(model: Model) -> ModelProto:
    """The model as one value with all its weights: a copy where weights lie in files beside it."""
    if not model.external:
        return model.proto
    from onnx import ModelProto

    whole = ModelProto()
    whole.CopyFrom(model.proto)
    files = {file.location: file.path for file in model.external}
    for stored in stored_tensors(whole):
        if is_external(stored.proto):
            take_in(model.path, stored, files)
    return whole


def take_in(path: Path, stored: StoredTensor, files: Mapping[str, Path]) -> None:
    """Read what a tensor claims of its file into the tensor."""
    tensor = stored.proto
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    with open_regular(files[location]) as opened:
        claim = claim_of(path, stored, os.fstat(opened.fileno()).st_size)
        opened.seek(claim.offset)
        tensor.raw_data = opened.read(claim.length)
    tensor.ClearField("external_data")
    tensor.data_location = tensor.DEFAULT

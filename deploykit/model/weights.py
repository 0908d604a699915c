"""Reads the values of stored tensors: one at a time, all at once, or as maps of their files.

A model with gigabytes of weights can be copied, searched and rewritten while they stay in their files. Only what
``lean_weights`` made of a located model is followed: a file that claims to be such a model is refused when loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from deploykit.errors import InputError, UsageError
from deploykit.model.values import (
    MAPPED,
    Claim,
    ExternalFile,
    StoredTensor,
    byte_size,
    claim_of,
    element_count,
    is_external,
    stored_tensors,
)
from deploykit.system.files import open_regular, regular_size

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.model.load import Model

__all__ = [
    "LEAST",
    "WeightFiles",
    "constant_values",
    "element_type",
    "integer_tensor",
    "is_mapped",
    "is_native",
    "is_outside",
    "iter_weights",
    "lean_weights",
    "load_small_weights",
    "load_weights",
    "map_values",
    "mapped_bytes",
    "stored_values",
    "take_in",
    "taken_in",
    "unmapped",
    "weight",
    "whole_model",
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
    return numpy_helper.to_array(tensor)


def iter_weights(model: Model) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Every stored tensor of the main graph with its values, one at a time."""
    return ((name, weight(model, name)) for name in model.stored)


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


LEAST = 64 << 20
"""Bytes of external data from which on weights stay in their files: below it a model is handled faster in memory."""

_SMALL = 1 << 14
"""Bytes of a tensor that is read in any case: most of them are constants that rewrites look at."""


def lean_weights(model: Model, *, least: int = LEAST, small: int = _SMALL) -> ModelProto:
    """The model as one value in which the values of every stored tensor can be had with ``stored_values``.

    External initializers of more than ``small`` bytes stay in their files where there are ``least`` bytes of them, but
    for element types that numpy does not have.
    """
    if sum(file.size for file in model.external) < least:
        return load_weights(model)
    from onnx import ModelProto

    lean = ModelProto()
    lean.CopyFrom(model.proto)
    files = {file.location: file.path for file in model.external}
    for tensor in lean.graph.initializer:
        if is_external(tensor) and not is_mapped(tensor):
            path = files[_entry(tensor, "location")]
            claim = claim_of(model.path, StoredTensor(f"tensor {tensor.name!r}", tensor), regular_size(path))
            if claim.length > small and is_native(tensor):
                tensor.external_data.add(key=MAPPED, value=str(path))
    for stored in stored_tensors(lean):
        if is_external(stored.proto) and not is_mapped(stored.proto):
            take_in(model.path, stored, files)
    return lean


def load_small_weights(model: Model, *, limit: int = 1 << 20) -> ModelProto:
    """The model with initializers of at most ``limit`` elements read, or a lean one where its weights are many.

    Enough for matching rewrites, which look at constants and never at the weights of linear ops.
    """
    if sum(file.size for file in model.external) >= LEAST:
        return lean_weights(model)
    if not model.external:
        return model.proto
    from onnx import ModelProto

    partly = ModelProto()
    partly.CopyFrom(model.proto)
    files = {file.location: file.path for file in model.external}
    for tensor in partly.graph.initializer:
        if is_outside(tensor) and element_count(tensor, tensor.name) <= limit:
            take_in(model.path, StoredTensor(f"tensor {tensor.name!r}", tensor), files)
    return partly


def is_mapped(tensor: TensorProto) -> bool:
    """True for a tensor that was left in its file by ``lean_weights``."""
    return is_external(tensor) and bool(_entry(tensor, MAPPED))


def is_outside(tensor: TensorProto) -> bool:
    """True for a tensor whose values cannot be had: external data of a model that was not made by ``lean_weights``."""
    return is_external(tensor) and not is_mapped(tensor)


def mapped_bytes(model: ModelProto) -> int:
    """The bytes of the initializers that lie in files."""
    return sum(byte_size(tensor, tensor.name) for tensor in model.graph.initializer if is_mapped(tensor))


def stored_values(tensor: TensorProto, files: WeightFiles | None = None) -> npt.NDArray[Any]:
    """The values of a stored tensor in its own shape and type; of one that lies in a file a read-only map of it.

    ``files`` keeps what it opens, for many tensors of few files. Raises InputError where the file is gone or has become
    shorter, and for other external data, which nobody located.
    """
    from onnx import numpy_helper

    if not is_external(tensor):
        return numpy_helper.to_array(tensor)
    if not is_mapped(tensor):
        raise InputError(f"tensor {tensor.name!r}: its values lie in a file that was never located")
    path = Path(_entry(tensor, MAPPED))
    if files is None:
        with WeightFiles() as files:
            return stored_values(tensor, files)
    opened = files.open(path)
    size = os.fstat(opened.fileno()).st_size
    return map_values(opened, tensor, claim_of(path, StoredTensor(f"tensor {tensor.name!r}", tensor), size))


class WeightFiles:
    """Files of weights, each opened once and closed at the end; what was mapped of them stays."""

    def __init__(self) -> None:
        self._opened: dict[Path, BinaryIO] = {}

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._opened.values():
            opened.close()

    def open(self, path: Path) -> BinaryIO:
        """The file; InputError where it is none any more."""
        if path not in self._opened:
            self._opened[path] = open_regular(path)
        return self._opened[path]


def taken_in(tensor: TensorProto) -> TensorProto:
    """The tensor with its values in it; the same one where they are."""
    if not is_mapped(tensor):
        return tensor
    from onnx import numpy_helper

    return numpy_helper.from_array(stored_values(tensor), tensor.name)


def unmapped(model: ModelProto) -> ModelProto:
    """The model as it is written beside the files of its weights: no tensor says where on this machine they lie."""
    if not any(map(is_mapped, model.graph.initializer)):
        return model
    from onnx import ModelProto

    plain = ModelProto()
    plain.CopyFrom(model)
    for tensor in filter(is_mapped, plain.graph.initializer):
        entries = [(entry.key, entry.value) for entry in tensor.external_data if entry.key != MAPPED]
        tensor.ClearField("external_data")
        for key, value in entries:
            tensor.external_data.add(key=key, value=value)
    return plain


def whole_model(model: ModelProto) -> ModelProto:
    """The model with all values in it, to be written as one message; the same one where they are."""
    if not any(map(is_mapped, model.graph.initializer)):
        return model
    from onnx import ModelProto

    whole = ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if is_mapped(tensor):
            tensor.CopyFrom(taken_in(tensor))
    return whole


def _entry(tensor: TensorProto, key: str) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == key), "")


def constant_values(tensor: TensorProto) -> npt.NDArray[Any]:
    """The numbers of a stored tensor."""
    return np.asarray(stored_values(tensor))


def element_type(name: str) -> int:
    """The element type's number for a lower-case type name (``uint8``, ``int4``, ``float`` …)."""
    return int(TensorProto.DataType.Value(name.upper()))


def integer_tensor(name: str, values: npt.NDArray[Any], dtype: str) -> TensorProto:
    """A stored tensor of any integer type, 4-bit ones packed two to a byte, the first in the low half."""
    tensor = TensorProto(name=name, data_type=element_type(dtype), dims=values.shape)
    if dtype in ("int4", "uint4"):
        flat = np.append(values.reshape(-1), np.zeros(values.size % 2, np.int64)).astype(np.int64) & 0xF
        tensor.raw_data = (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8).tobytes()
    else:
        tensor.raw_data = np.ascontiguousarray(values.astype(np.dtype(dtype).newbyteorder("<"))).tobytes()
    return tensor

"""Models whose large weights stay in their files: each such tensor says itself where its bytes lie, and is read singly.

A model with gigabytes of weights can so be copied, searched and rewritten in no memory. Only what ``lean_weights`` made
of a located model is ever followed: a file that claims to be such a model is refused when it is loaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from deploykit.errors import InputError
from deploykit.model.files.external import MAPPED, claim_of
from deploykit.model.files.tensors import StoredTensor, byte_size, element_count, is_external, stored_tensors
from deploykit.model.files.weights import is_native, load_weights, map_values, take_in
from deploykit.system.files import open_regular, regular_size

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ModelProto, TensorProto

    from deploykit.model.files.loading import Model

__all__ = [
    "LEAST",
    "WeightFiles",
    "is_mapped",
    "is_outside",
    "lean_weights",
    "load_small_weights",
    "mapped_bytes",
    "stored_values",
    "taken_in",
    "unmapped",
    "whole_model",
]

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

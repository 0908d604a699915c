"""Stored tensors to arrays and back, 4-bit integers included; external data must have been loaded or mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from deploykit.model.files.mapped import stored_values

__all__ = ["constant_values", "element_type", "integer_tensor"]


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

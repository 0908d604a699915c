"""Seeded inputs without meaning, for tests that prove something by structure and need values to run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from deploykit.accuracy.samples.domains import arbitrary_values

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["random_feeds"]


def random_feeds(
    model: ModelProto, *, samples: int = 1, seed: int = 0, ranges: Mapping[str, tuple[float, float]] | None = None
) -> list[dict[str, npt.NDArray[Any]]]:
    """Seeded inputs; unknown dimensions are 1.

    Floats are uniform over the input's range where one is given, else standard normal; integers are 0 or 1.
    """
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    kinds = {item.name: item.type.tensor_type for item in model.graph.input if item.name not in stored}
    known = ranges or {}

    def values(name: str) -> npt.NDArray[Any]:
        shape = tuple(max(int(dim.dim_value), 1) for dim in kinds[name].shape.dim)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kinds[name].elem_type))
        if dtype.kind == "f" and name in known:
            return rng.uniform(*known[name], shape).astype(dtype)
        return arbitrary_values(rng, shape, dtype, is_float=dtype.kind == "f")

    return [{name: values(name) for name in kinds} for _ in range(samples)]

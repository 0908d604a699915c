"""Seeded inputs without meaning, for tests that prove something by structure and need values to run on."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper

from deploykit.accuracy.samples.domains import arbitrary_values


def random_feeds(model: ModelProto, *, samples: int = 1, seed: int = 0) -> list[dict[str, npt.NDArray[Any]]]:
    """Seeded inputs; unknown dimensions are 1, floats are standard normal, integers 0 or 1."""
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    kinds = {item.name: item.type.tensor_type for item in model.graph.input if item.name not in stored}

    def values(name: str) -> npt.NDArray[Any]:
        shape = tuple(max(int(dim.dim_value), 1) for dim in kinds[name].shape.dim)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kinds[name].elem_type))
        return arbitrary_values(rng, shape, dtype, is_float=dtype.kind == "f")

    return [{name: values(name) for name in kinds} for _ in range(samples)]

"""Inputs without meaning, for what is proven by structure and only needs something to run on; no ground for a verdict.

``gathering`` makes what is judged on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["arbitrary_values"]


def arbitrary_values(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_float: bool, low: int = 0
) -> npt.NDArray[Any]:
    """Standard normal floats; integers that are ``low`` or one more."""
    values = rng.standard_normal(shape) if is_float else rng.integers(low, low + 2, shape)
    return np.asarray(values).astype(dtype)

"""What the values of one tensor look like to a quantizer: range, spread, outliers, a histogram. Pure numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BINS", "FAR", "TensorStatistics", "statistics_of"]

BINS = 32
"""Bins of a histogram, of equal width from the least value to the greatest."""

FAR = 6.0
"""A value farther than so many standard deviations from the mean is an outlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistics:
    """Of all finite values of all samples. ``outliers`` is a share; ``not_finite`` counts what was left out.

    ``peak_db`` is the largest magnitude over the root mean square: about 6 dB of it cost one bit of the grid.
    """

    low: float
    high: float
    mean: float
    deviation: float
    outliers: float
    peak_db: float
    histogram: tuple[int, ...]
    not_finite: int = 0

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "range": [self.low, self.high],
            "mean": self.mean,
            "deviation": self.deviation,
            "outlier_share": self.outliers,
            "peak_db": self.peak_db,
            "not_finite": self.not_finite,
            "histogram": list(self.histogram),
        }


def statistics_of(arrays: Sequence[npt.NDArray[Any]]) -> TensorStatistics | None:
    """None where there is no finite value. Two passes, the memory of one array at a time."""
    parts = [_finite(array) for array in arrays]
    count = sum(part.size for part in parts)
    if not count:
        return None
    low = min(float(part.min()) for part in parts if part.size)
    high = max(float(part.max()) for part in parts if part.size)
    mean = math.fsum(float(part.sum()) for part in parts) / count
    # In units of the largest magnitude: values of 1e30 have no square in double precision that could be summed safely.
    peak = max(abs(low), abs(high))
    unit = peak or 1.0
    squares = math.fsum(float(np.square(part / unit).sum()) for part in parts) / count
    variance = math.fsum(float(np.square((part - mean) / unit).sum()) for part in parts) / count
    deviation = math.sqrt(variance) * unit
    far = sum(int((np.abs(part - mean) > FAR * deviation).sum()) for part in parts) if deviation else 0
    return TensorStatistics(
        low=low,
        high=high,
        mean=mean,
        deviation=deviation,
        outliers=far / count,
        peak_db=-10 * math.log10(squares) if squares else 0.0,
        histogram=_histogram(parts, low, high),
        not_finite=sum(array.size for array in arrays) - count,
    )


def _finite(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    flat = np.asarray(array, np.float64).ravel()
    return flat[np.isfinite(flat)]


def _histogram(parts: Sequence[npt.NDArray[np.float64]], low: float, high: float) -> tuple[int, ...]:
    if low == high:
        return (sum(part.size for part in parts),)
    counts = np.zeros(BINS, dtype=np.int64)
    for part in parts:
        counts += np.histogram(part, bins=BINS, range=(low, high))[0]
    return tuple(int(count) for count in counts)

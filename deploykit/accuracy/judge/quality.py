"""How close a candidate tensor is to its baseline: cosine, L2, PSNR, SSIM, SQNR, largest error, whole and per slice.

Cosine, L2, PSNR and SSIM equal those of the evaluate tool described in docs/evaluate.md, without its limits on shape.
Pure numpy; it reads no files and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Quality", "cosine", "l2_distance", "max_error", "measure", "psnr_db", "slices", "sqnr_db", "ssim"]

Numbers: TypeAlias = npt.NDArray[Any]
_Doubles: TypeAlias = npt.NDArray[np.float64]

_SSIM_C1 = (0.01 * 255) ** 2
_SSIM_C2 = (0.03 * 255) ** 2
_SSIM_RADIUS = 5
_SSIM_SIGMA = 1.5
_TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The numbers for one pair of tensors. ``nan`` where a number is not defined (cosine of a zero tensor)."""

    cosine: float
    l2: float
    psnr_db: float
    ssim: float
    sqnr_db: float
    max_error: float

    def to_json(self) -> dict[str, float | str | None]:
        """Numbers, None where a number is not defined, and the word ``infinite`` for an unbounded one."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: _json_number(value) for name, value in values.items()}


def _json_number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("infinite" if value > 0 else "-infinite")


def cosine(baseline: Numbers, candidate: Numbers) -> float:
    """The cosine of the angle between two tensors of the same shape, flattened; nan when one of them is all zero."""
    a, b = _flat(baseline), _flat(candidate)
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(a @ b) / norms if norms else math.nan


def l2_distance(baseline: Numbers, candidate: Numbers) -> float:
    """The Euclidean norm of the difference of two tensors of the same shape."""
    return float(np.linalg.norm(_flat(baseline) - _flat(candidate)))


def max_error(baseline: Numbers, candidate: Numbers) -> float:
    """The largest absolute difference of two tensors of the same shape; 0 for empty ones."""
    difference = np.abs(_flat(baseline) - _flat(candidate))
    return float(difference.max()) if difference.size else 0.0


def psnr_db(baseline: Numbers, candidate: Numbers) -> float:
    """Peak signal to noise, in dB. The peak is the baseline's largest value, not its range and not an absolute value.

    A mean square error of 0 and a peak that is not positive are taken as 1e-10, so no result is infinite.
    """
    a, b = _flat(baseline), _flat(candidate)
    if not a.size:
        return math.nan
    error = float(np.mean((a - b) ** 2)) or _TINY
    peak = float(a.max())
    peak = _TINY if peak <= 0 else peak
    return 20 * _log10(peak) - 10 * _log10(error)


def sqnr_db(baseline: Numbers, candidate: Numbers) -> float:
    """Signal to quantization noise, in dB: energy of the baseline over energy of the difference.

    Infinite without a difference; minus infinity when the baseline is all zero and the candidate is not.
    """
    a, b = _flat(baseline), _flat(candidate)
    signal, noise = float(a @ a), float((a - b) @ (a - b))
    if noise == 0:
        return math.inf
    return 10 * _log10(signal / noise) if signal else -math.inf


def ssim(baseline: Numbers, candidate: Numbers) -> float:
    """Structural similarity with the constants of 0..255 images, the first two axes as height and width.

    Every further axis counts as channels; a vector is one column. The second moments are not centred, as in the tool
    whose numbers these are: near 1 for whatever stays far under 255, so only meaningful for images.
    """
    if baseline.size == 0:
        return math.nan
    x, y = _image(baseline), _image(candidate)
    mean_x, mean_y = _blur(x), _blur(y)
    above = (2 * mean_x * mean_y + _SSIM_C1) * (2 * _blur(x * y) + _SSIM_C2)
    below = (mean_x**2 + mean_y**2 + _SSIM_C1) * (_blur(x * x) + _blur(y * y) + _SSIM_C2)
    return float(np.mean(above / (below + _TINY)))


def measure(baseline: Numbers, candidate: Numbers) -> Quality:
    """All numbers for one pair of tensors of the same shape, of any rank; raises ValueError when the shapes differ."""
    if baseline.shape != candidate.shape:
        raise ValueError(f"shapes differ: {baseline.shape} and {candidate.shape}")
    return Quality(
        cosine=cosine(baseline, candidate),
        l2=l2_distance(baseline, candidate),
        psnr_db=psnr_db(baseline, candidate),
        ssim=ssim(baseline, candidate),
        sqnr_db=sqnr_db(baseline, candidate),
        max_error=max_error(baseline, candidate),
    )


def slices(baseline: Numbers, candidate: Numbers, axis: int = -1) -> Iterator[tuple[Numbers, Numbers]]:
    """The pairs of slices along one axis, each with that axis removed; a scalar is its only slice."""
    if baseline.ndim == 0:
        yield baseline, candidate
        return
    yield from zip(np.moveaxis(baseline, axis, 0), np.moveaxis(candidate, axis, 0), strict=True)


def _flat(values: Numbers) -> _Doubles:
    return np.asarray(values, dtype=np.float64).ravel()


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf


def _image(values: Numbers) -> _Doubles:
    flat = np.asarray(values, dtype=np.float64)
    if flat.ndim < 2:
        return flat.reshape(-1, 1, 1)
    return flat.reshape(*flat.shape[:2], -1)


def _blur(image: _Doubles) -> _Doubles:
    """An 11 by 11 Gaussian of sigma 1.5 over the first two axes, mirrored at the borders without repeating the edge."""
    offsets = np.arange(-_SSIM_RADIUS, _SSIM_RADIUS + 1)
    kernel = np.exp(-(offsets**2) / (2 * _SSIM_SIGMA**2))
    kernel /= kernel.sum()
    return _convolve(_convolve(image, kernel, 0), kernel, 1)


def _convolve(image: _Doubles, kernel: _Doubles, axis: int) -> _Doubles:
    length = image.shape[axis]
    padding = [(0, 0)] * image.ndim
    padding[axis] = (_SSIM_RADIUS, _SSIM_RADIUS)
    padded = np.pad(image, padding, mode="reflect")
    result = np.zeros_like(image)
    moved, shifted = np.moveaxis(result, axis, 0), np.moveaxis(padded, axis, 0)  # views
    for index, weight in enumerate(kernel):
        moved += weight * shifted[index : index + length]
    return result

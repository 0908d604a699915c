"""Signal to noise of pairs of arrays, whole and per slice, where values may be infinite, constant or far apart.

Pure numpy over pairs of one output's samples; it knows no limits and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.quality import cosine

__all__ = [
    "Pair",
    "WorstSlice",
    "agreement",
    "gain_error",
    "has_signal",
    "mean_cosine",
    "overall_db",
    "worst_sample",
    "worst_slice",
]

Pair: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
_Doubles: TypeAlias = npt.NDArray[np.float64]

_LEAST_ELEMENTS = 16
"""Fewer numbers than that do not make a slice: their variance says nothing."""

_LEAST_SAMPLES = 3

_STEPS = 4
"""Slices that vary by fewer steps of the grid than that are not judged by themselves."""

_FLOAT16_BITS = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstSlice:
    """The slice of which least is left: what varies in it over what differs, in dB. ``where`` is "" for all values."""

    db: float
    where: str
    error: float


def has_signal(pairs: Sequence[Pair], bits: int = 0) -> bool:
    """False for a reference that hardly varies: less than one step of a grid that just holds its largest value."""
    values = _left(pairs)
    if not values.size:
        return False
    peak = float(np.abs(values).max())
    return float(values.std()) > math.ldexp(peak, -_width(bits))


def _width(bits: int) -> int:
    return min(bits, _FLOAT16_BITS) if bits else _FLOAT16_BITS


def _left(pairs: Sequence[Pair]) -> _Doubles:
    parts = [np.asarray(one, np.float64).ravel() for one, _ in pairs]
    every = np.concatenate(parts) if parts else np.zeros(0)
    return every[np.isfinite(every)]


def overall_db(pairs: Sequence[Pair]) -> float:
    """Energy of the left side over that of the difference, in dB, where both are finite. Infinite without difference.

    Minus infinity where the left side is all zero and the right side is not.
    """
    signal = noise = 0.0
    for one, two in pairs:
        a, b = _finite(one, two)
        signal += float(a @ a)
        noise += float((a - b) @ (a - b))
    return _db(signal, noise)


def gain_error(pairs: Sequence[Pair]) -> float:
    """By which share the right side is larger or smaller than the left as a whole, noise left out; 0 for no signal."""
    along = energy = 0.0
    for one, two in pairs:
        a, b = _finite(one, two)
        along += float(a @ b)
        energy += float(a @ a)
    return abs(along / energy - 1) if energy else 0.0


def _finite(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> tuple[_Doubles, _Doubles]:
    a, b = np.asarray(one, np.float64).ravel(), np.asarray(two, np.float64).ravel()
    both = np.isfinite(a) & np.isfinite(b)
    return a[both], b[both]


def _db(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and signal / noise > 0 else -math.inf


def worst_slice(pairs: Sequence[Pair], bits: int = 0, *, tolerance: float = 0.0) -> WorstSlice | None:
    """The worst of all values together and of every slice along every axis but the first, over all samples.

    A constant in the place of a slice leaves nothing of it, whatever its mean. Slices that hardly vary, beside
    themselves or beside the whole, are passed over, and so are those whose largest error is within ``tolerance``.
    """
    clean = [(np.asarray(one, np.float64), np.asarray(two, np.float64)) for one, two in pairs if one.size]
    if not clean:
        return None
    values = _left(clean)
    least = _STEPS * math.ldexp(float(np.ptp(values)) if values.size else 0.0, -_width(bits))
    found = [
        WorstSlice(db=db, where=where, error=error)
        for where, db, spread, error in _measured(clean, bits)
        if error > tolerance and (spread > least or not where)
    ]
    return min(found, key=lambda item: item.db, default=None)


def _measured(pairs: Sequence[tuple[_Doubles, _Doubles]], bits: int) -> Iterator[tuple[str, float, float, float]]:
    """Where, decibels, spread and largest error of everything that varies by itself."""
    rank = pairs[0][0].ndim
    whole = [(one.reshape(1, -1), two.reshape(1, -1)) for one, two in pairs]
    yield from _along(whole, 0, bits, "")
    yield from _between_samples(pairs, bits)
    for axis in range(1, rank):
        length = pairs[0][0].shape[axis]
        if length > 1 and all(one.ndim == rank and one.shape[axis] == length for one, _ in pairs):
            yield from _along(pairs, axis, bits, f"of axis {axis}")


def _between_samples(
    pairs: Sequence[tuple[_Doubles, _Doubles]], bits: int
) -> Iterator[tuple[str, float, float, float]]:
    """What differs from sample to sample: an answer that is the same for all may look good, and answers nothing."""
    if len(pairs) < _LEAST_SAMPLES or any(one.shape != pairs[0][0].shape for one, _ in pairs):
        return
    left, right = (np.nan_to_num(np.stack([pair[side] for pair in pairs]), posinf=0, neginf=0) for side in (0, 1))
    energy = float(((left - left.mean(axis=0)) ** 2).sum())
    spread, peak = math.sqrt(energy / left.size), float(np.abs(left).max())
    if left.size >= _LEAST_ELEMENTS and spread > math.ldexp(peak, -_width(bits)):
        difference = np.abs(left - right)
        yield "between samples", _db(energy, float((difference**2).sum())), spread, float(difference.max())


def _along(
    pairs: Sequence[tuple[_Doubles, _Doubles]], axis: int, bits: int, where: str
) -> Iterator[tuple[str, float, float, float]]:
    count = pairs[0][0].shape[axis]
    sums = np.zeros((4, count))
    peak, worst = np.zeros(count), np.zeros(count)
    for one, two in pairs:
        a, b = (np.moveaxis(side, axis, 0).reshape(count, -1) for side in (one, two))
        both = np.isfinite(a) & np.isfinite(b)
        a, difference = np.where(both, a, 0.0), np.where(both, a - np.where(both, b, 0.0), 0.0)
        sums += np.stack([both.sum(1), a.sum(1), (a * a).sum(1), (difference * difference).sum(1)])
        if a.shape[1]:
            peak = np.maximum(peak, np.abs(a).max(1))
            worst = np.maximum(worst, np.abs(difference).max(1))
    number = np.maximum(sums[0], 1)
    energy = np.maximum(sums[2] - sums[1] ** 2 / number, 0.0)
    spread = np.sqrt(energy / number)
    varies = (sums[0] >= _LEAST_ELEMENTS) & (spread > np.ldexp(peak, -_width(bits)))
    for index in np.flatnonzero(varies):
        label = f"slice {index} {where}" if where else ""
        yield label, _db(float(energy[index]), float(sums[3][index])), float(spread[index]), float(worst[index])


def worst_sample(pairs: Sequence[Pair], *, tolerance: float = 0.0) -> tuple[int, float] | None:
    """The sample that differs most and its decibels: energy over that of the difference; None for a single sample.

    A sample that holds less than the mean counts as the mean: the steps of a grid are as large there as elsewhere.
    Samples whose largest error is within ``tolerance`` are passed over.
    """
    clean = [_finite(one, two) for one, two in pairs if one.size]
    if len(clean) < 2:
        return None
    energies = [float(a @ a) for a, _ in clean]
    mean = sum(energies) / len(energies)
    found = [
        (number, _db(max(energy, mean), float((a - b) @ (a - b))))
        for number, (energy, (a, b)) in enumerate(zip(energies, clean, strict=True))
        if a.size and float(np.abs(a - b).max()) > tolerance
    ]
    return min(found, key=lambda item: item[1], default=None)


def mean_cosine(pairs: Sequence[Pair]) -> float:
    """The mean over all vectors (last axis) of the cosine between both sides; NaN when the left side has none.

    A vector that lost its direction (all zero) counts 0.
    """
    found = [
        cosine(a, b)
        for one, two in pairs
        for a, b in zip(one.reshape(-1, one.shape[-1]), two.reshape(-1, two.shape[-1]), strict=True)
        if np.any(a) and np.isfinite(a).all()
    ]
    return float(np.mean(np.nan_to_num(found))) if found else math.nan


def agreement(pairs: Sequence[Pair]) -> float:
    """The share of equal elements; NaN for empty arrays."""
    equal = sum(int((np.asarray(one) == np.asarray(two)).sum()) for one, two in pairs)
    total = sum(one.size for one, _ in pairs)
    return equal / total if total else math.nan

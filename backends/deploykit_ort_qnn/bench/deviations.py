"""How far the emulator's outputs are from the reference, in steps of the output's grid; it says no right and no wrong.

A step is the scale of an integer grid. A float16 output has none: its step is 2^-10 of the largest value of the
reference, which is what float16 can tell apart there. Whole numbers and truth values differ or do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from deploykit_ort_qnn.bench.together import Outputs

__all__ = ["FLOAT_STEP", "Deviation", "deviation"]

FLOAT_STEP = 2.0**-10
_MOST = 1e9
_FLOAT16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One graph's outputs against the reference, over all input sets; the worst output counts.

    ``most`` and ``usual`` are the largest deviation and the one that 99 of 100 values stay within, in steps; ``span``
    is the reference's range in steps. ``share`` of the values deviates by more than a hundredth of that range, and by
    two steps at least. ``factor`` is what the reference is best multiplied with to give the emulator's values, ``set``
    the input set with the largest deviation. ``odd`` counts values that are not finite where the reference is.
    """

    most: float
    usual: float
    span: float
    share: float
    factor: float | None = None
    set: int = 0
    odd: int = 0


def deviation(wanted: Outputs, got: Outputs, steps: Mapping[str, float]) -> Deviation:
    """The worst output's deviation; ``steps`` are the scales of the outputs that have an integer grid."""
    found = [_of_output(values, got[name], steps.get(name)) for name, values in wanted.items()]
    return max(found, key=lambda one: (one.odd, one.share, one.most / max(one.span, 1.0)))


def _of_output(wanted: Sequence[Any], got: Sequence[Any], step: float | None) -> Deviation:
    if any(one.shape != two.shape for one, two in zip(wanted, got, strict=True)):
        return Deviation(most=_MOST, usual=_MOST, span=0.0, share=1.0)
    if not np.issubdtype(wanted[0].dtype, np.floating):
        return _of_whole_numbers(wanted, got)
    one, two = _flat(wanted), _flat(got)
    known = np.isfinite(one)
    if not step:  # computed in float16: what that does not hold is no fault of a kernel, infinite is as far as it goes
        one, two = np.clip(one, -_FLOAT16, _FLOAT16), np.clip(two, -_FLOAT16, _FLOAT16)
    odd = int((known & ~np.isfinite(two)).sum())
    both = known & np.isfinite(two)
    if not both.any():
        return Deviation(most=_MOST if odd else 0.0, usual=0.0, span=0.0, share=float(bool(odd)), odd=odd)
    step = step or FLOAT_STEP * max(float(np.abs(one[both]).max()), 2.0**-20)
    errors = np.where(both, np.abs(two - one) / step, 0.0)
    span, square = float(np.ptp(one[both])) / step, float(one[both] @ one[both])
    return Deviation(
        most=_rounded(float(errors.max())),
        usual=_rounded(float(np.quantile(errors, 0.99))),
        span=_rounded(span),
        share=_rounded(float((errors > max(2.5, span / 100)).mean())),
        factor=round(float(one[both] @ two[both]) / square, 4) if square > 0 else None,
        set=_where(errors, wanted),
        odd=odd,
    )


def _of_whole_numbers(wanted: Sequence[Any], got: Sequence[Any]) -> Deviation:
    errors = (_flat(wanted) != _flat(got)).astype(np.float64)
    return Deviation(
        most=float(errors.max()),
        usual=float(np.quantile(errors, 0.99)),
        span=1.0,
        share=_rounded(float(errors.mean())),
        set=_where(errors, wanted),
    )


def _flat(values: Sequence[Any]) -> Any:
    return np.concatenate([np.ravel(value).astype(np.float64) for value in values])


def _where(errors: Any, wanted: Sequence[Any]) -> int:
    ends = np.cumsum([value.size for value in wanted])
    return int(np.searchsorted(ends, int(errors.argmax()), side="right"))


def _rounded(value: float) -> float:
    """Three digits: what is recorded need not tell more."""
    return value if value == 0 or math.isinf(value) else float(f"{min(value, _MOST):.3g}")

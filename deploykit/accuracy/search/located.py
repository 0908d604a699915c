"""What a search for the cause of a difference found: operators, tensors and constants. Plain values, no arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from deploykit.system.published import Published

__all__ = ["Culprit", "Divergence", "Located", "TensorView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One tensor on both sides. ``lost`` is the share of rows that only one side has (behind a TopK).

    ``typical`` is the median magnitude on the left; ``not_finite`` counts infinities and NaN on either side.
    """

    name: str
    sqnr_db: float
    left_range: tuple[float, float]
    right_range: tuple[float, float]
    left_dtype: str
    right_dtype: str
    reordered: bool = False
    lost: float = 0.0
    typical: float = 0.0
    not_finite: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None."""
        return {
            "tensor": self.name,
            "sqnr_db": _finite(self.sqnr_db),
            "left": _side(self.left_dtype, self.left_range, self.not_finite[0]),
            "right": _side(self.right_dtype, self.right_range, self.not_finite[1]),
            "reordered": self.reordered,
            "lost": round(self.lost, 4),
        }


def _side(dtype: str, ends: tuple[float, float], odd: int) -> dict[str, Any]:
    return {"dtype": dtype, "range": [_finite(end) for end in ends], "not_finite": odd}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A stored tensor that an operator fails by, and its value of the largest magnitude."""

    tensor: str
    value: float

    def to_json(self) -> dict[str, Any]:
        """The published shape; a value that is not finite is a word."""
        return {"tensor": self.tensor, "value": self.value if math.isfinite(self.value) else str(self.value)}

    def __str__(self) -> str:
        return f"the constant {self.tensor} ({self.value:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(Published):
    """The operator, its diverging output, and what it reads, on both sides; ``culprit`` is the constant behind it."""

    node: str
    op_type: str
    output: TensorView
    inputs: tuple[TensorView, ...]
    culprit: Culprit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """``first`` is None when every output agrees. ``rounds`` and ``compared`` say how much was looked at.

    ``hidden`` are computed tensors that one side cannot show: a divergence may lie in one of them instead.
    ``exhausted`` is True when the budget ended before the search did.
    """

    first: Divergence | None
    outputs: tuple[TensorView, ...]
    rounds: int
    compared: int
    hidden: tuple[str, ...]
    threshold_db: float
    exhausted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy locate --json``."""
        return {
            "diverges": self.first is not None,
            "first": None if self.first is None else self.first.to_json(),
            "outputs": [view.to_json() for view in self.outputs],
            "rounds": self.rounds,
            "compared": self.compared,
            "hidden": len(self.hidden),
            "threshold_db": self.threshold_db,
            "exhausted": self.exhausted,
        }

"""Input sets that cover what a tensor may hold: its whole range in even steps, both ends, zero, equal values, spikes.

Nothing is drawn that the range does not hold: what an operator is not defined for is not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COVERING", "Numbers", "Span", "covering"]

Numbers = npt.NDArray[Any]

COVERING = 6
"""How many input sets ``covering`` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What values an input may have: from ``low`` to ``high``; ``coarse`` are those that lie off every edge."""

    low: float
    high: float
    coarse: bool = False


def covering(shape: tuple[int, ...], span: Span, seed: int, *, dense: int = 1, turned: bool = False) -> list[Numbers]:
    """Float32 arrays: ``dense`` sorted ones, shuffled, one value everywhere, both ends, a spike, a bell in the middle.

    The sorted ones lie between each other; ``turned`` ones fall, so that two inputs do not rise together.
    """
    random = np.random.default_rng(seed)
    count = int(np.prod(shape))
    low, high = span.low, span.high
    even = np.linspace(low, high, max(count * dense, 2))[: count * dense]
    rising = [even[phase::dense] for phase in range(dense)]
    rest = min(max(0.0, low), high)
    spike = np.full(count, rest)
    spike[count // 3] = high
    bell = np.clip(random.normal((low + high) / 2, (high - low) / 8, count), low, high)
    values: list[Any] = [
        *(one[::-1] if turned else one for one in rising),
        random.permutation(rising[0] + (high - low) / (4 * count)).clip(low, high),
        np.full(count, low + 0.61 * (high - low)),
        random.choice([low, high], count),
        spike,
        bell,
    ]
    if span.coarse:
        # An eighth behind a multiple of a quarter, so that rounding carries nothing over an edge.
        ends = np.ceil(span.low * 4) / 4, np.floor(span.high * 4) / 4 - 0.25
        values = [np.clip(np.floor(value * 4) / 4, *ends) + 0.125 for value in values]
    return [value.reshape(shape).astype(np.float32) for value in values]

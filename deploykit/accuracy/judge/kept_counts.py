"""How many detections are kept, and what such a count is evidence for: a share, and the least that it shows.

Plain counts per sample, no arrays; who counts is ``deploykit.accuracy.judge.keeping``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["KeptCount", "fewest_for"]

_SURE = 1.6449
"""Standard deviations below which a normal variable lies with 95 %, on one side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCount:
    """Detections per sample: the reference's (``wanted``), the candidate's (``made``), and pairs of both (``kept``).

    A pair has one class and boxes that overlap by at least ``overlap`` (intersection over union); no detection is in
    two. What counts as a detection is a score of ``score`` at least, on either side, and nothing is forgiven.
    """

    wanted: tuple[int, ...]
    made: tuple[int, ...]
    kept: tuple[int, ...]
    score: float
    overlap: float

    @property
    def share(self) -> float:
        """The smaller of two shares: of the reference's detections that are kept, of the candidate's that are meant."""
        return min(_share(self.kept, self.wanted), _share(self.kept, self.made))

    @property
    def surely(self) -> float:
        """The share that other data of this kind will have with 95 % confidence, in the worse of the two directions."""
        return min(_at_least(self.kept, self.wanted), _at_least(self.kept, self.made))

    def can_show(self, share: float) -> bool:
        """False where there are too few detections for so large a share, even if all of them were kept."""
        return sum(self.wanted) >= fewest_for(share)

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "wanted": sum(self.wanted),
            "made": sum(self.made),
            "kept": sum(self.kept),
            "share": round(self.share, 4),
            "at_least": round(self.surely, 4),
            "samples": len(self.wanted),
            "score": self.score,
            "overlap": self.overlap,
        }

    def __str__(self) -> str:
        """For people: ``97.6 % of 126 detections kept (94.2 % at least)``."""
        lost, new = sum(self.wanted) - sum(self.kept), sum(self.made) - sum(self.kept)
        return (
            f"{self.share:.1%} of {sum(self.wanted)} detections kept ({lost} lost, {new} new; "
            f"at least {self.surely:.1%} on other data)"
        )


def fewest_for(share: float) -> int:
    """So many detections are needed to show a share, if all of them are kept."""
    return math.ceil(_SURE**2 * share / (1 - share) - 1e-9) if share < 1 else 0


def _share(kept: Sequence[int], of: Sequence[int]) -> float:
    return sum(kept) / sum(of) if sum(of) else 1.0


def _at_least(kept: Sequence[int], of: Sequence[int]) -> float:
    """Wilson's lower bound, for as many independent detections as these are worth.

    Detections of one sample are lost together. Where shares differ more between samples than by chance, the count is
    divided by how many times larger the variance is (the design effect of samples taken in clusters).
    """
    total = sum(of)
    if not total:
        return 1.0
    share = sum(kept) / total
    count = total / max(1.0, _design_effect(kept, of, share))
    square = _SURE**2
    spread = _SURE * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, (share + square / (2 * count) - spread) / (1 + square / count))


def _design_effect(kept: Sequence[int], of: Sequence[int], share: float) -> float:
    clusters, by_chance = len(of), share * (1 - share) * sum(of)
    if clusters < 2 or by_chance <= 0:
        return 1.0
    seen = math.fsum((one - share * count) ** 2 for one, count in zip(kept, of, strict=True))
    return clusters / (clusters - 1) * seen / by_chance

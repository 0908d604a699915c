"""How good one model's outputs are beside the float model's: the judge's verdict, and the detections that are kept.

It compares two of them and says whether one is good enough; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.numerics.goals import Goal, Reached
from deploykit.numerics.kept_detections import Kept, count_kept
from deploykit.numerics.output_judging import OutputJudge, Values
from deploykit.numerics.samples.labels import Label
from deploykit.numerics.verdicts import Verdict

if TYPE_CHECKING:
    from deploykit.graph.facts import GraphFacts

__all__ = ["ASKED_KEPT", "Quality", "judge_quality"]

ASKED_KEPT = 0.97
"""The share of the float model's detections that a format chosen by itself must keep. Two hundredths over the 0.95 that
users were promised: with some hundred detections the share on other pictures lies that much lower at times."""

_FEW_KEPT = 0.95
"""The same on the few samples that the quantizer did not see, where one detection is a hundredth."""

_SAME_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What was measured on some samples. ``kept`` is None for models without detections.

    ``unseen`` is the same on those among the samples that the quantizer did not see; None where it saw all.
    """

    verdict: Verdict
    samples: int
    kept: Kept | None = None
    unseen: Quality | None = None

    @property
    def described(self) -> str:
        """The verdict in words, and the strict counts."""
        counts = "" if self.kept is None else f", {self.kept}"
        if self.unseen is not None and self.unseen.kept is not None:
            counts += f" ({self.unseen.kept.share:.1%} on {self.unseen.samples} samples held out)"
        return f"{self.verdict.described}{counts}"

    @property
    def keeps_enough(self) -> bool:
        """True where no more detections are gone than a format chosen by itself may lose, on any of the samples."""
        few = None if self.unseen is None else self.unseen.kept
        return (self.kept is None or self.kept.share >= ASKED_KEPT) and (few is None or few.share >= _FEW_KEPT)

    @property
    def is_right(self) -> bool:
        """The judge's yes on all samples, and no veto of his on those that were held out."""
        return self.verdict.right is True and (self.unseen is None or self.unseen.verdict.right is not False)

    def meets(self, goal: Goal) -> bool:
        """True where the goal is reached on all samples and on those that were held out."""
        met = goal.is_met(Reached(sqnr_db=self.verdict.overall_db)) is True
        return met and (self.unseen is None or self.unseen.meets(goal))

    def is_better_than(self, other: Quality) -> bool:
        """True where this one is right and the other not, else where it keeps clearly more, else as the judge says."""
        if self.is_right is not other.is_right:
            return self.is_right
        if self.kept is not None and other.kept is not None:
            more = self.kept.share - other.kept.share
            if abs(more) > _SAME_SHARE:
                return more > 0
        return self.verdict.is_better_than(other.verdict)


def judge_quality(
    facts: GraphFacts, reference: Sequence[Values], candidate: Sequence[Values], held_out: Sequence[int] = ()
) -> Quality:
    """Judge one mapping of outputs per sample; ``held_out`` are the places of those that the quantizer did not see."""
    unseen = None
    if held_out:
        unseen = judge_quality(facts, [reference[i] for i in held_out], [candidate[i] for i in held_out])
    return Quality(
        verdict=OutputJudge(facts, label=Label.GIVEN).compare(reference, candidate),
        samples=len(reference),
        kept=count_kept(facts, reference, candidate),
        unseen=unseen,
    )

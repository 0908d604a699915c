"""How good one model's outputs are beside the float model's, on all samples and on those that nobody calibrated with.

It compares two of them and says whether one is good enough; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.kept_counts import KeptCount
from deploykit.accuracy.judge.output_judging import OutputJudge
from deploykit.accuracy.judge.verdicts import Verdict
from deploykit.accuracy.samples.labels import Label
from deploykit.accuracy.search.goals import Goal, Reached

if TYPE_CHECKING:
    import numpy.typing as npt

    from deploykit.model.facts import GraphFacts

__all__ = ["Quality", "judge_quality"]

_FEW_KEPT = 0.95
"""The share of detections to be kept on the few samples held out: too few to show more than the share itself."""

_SAME_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What was measured on some samples.

    ``unseen`` is the same on those among them that the quantizer did not see; None where it saw all.
    """

    verdict: Verdict
    samples: int
    unseen: Quality | None = None

    @property
    def kept(self) -> KeptCount | None:
        """The detections, counted strictly; None where the float model has none."""
        return Reached.of(self.verdict).counted

    @property
    def described(self) -> str:
        """The verdict in words, and the strict counts."""
        counts = "" if self.kept is None else f", {self.kept}"
        if self.unseen is not None and self.unseen.kept is not None:
            counts += f", {self.unseen.kept.share:.1%} on {self.unseen.samples} samples held out"
        return f"{self.verdict.described}{counts}"

    def is_met(self, goal: Goal) -> bool | None:
        """Whether a goal is reached and no sample held out speaks against it; None where nobody can say."""
        met = goal.is_met(Reached.of(self.verdict))
        return False if met and self.unseen is not None and self.unseen.speaks_against(goal) else met

    def speaks_against(self, goal: Goal) -> bool:
        """For a few samples: whether they miss a goal, where so few can say it."""
        if not goal.asks_outputs:
            return goal.is_met(Reached.of(self.verdict)) is False
        return self.verdict.right is False or (self.kept is not None and self.kept.share < _FEW_KEPT)

    def is_better_than(self, other: Quality) -> bool:
        """True where this one is right and the other not, else where it keeps clearly more, else as the judge says."""
        right, others = (side.verdict.right is True for side in (self, other))
        if right is not others:
            return right
        if self.kept is not None and other.kept is not None:
            more = self.kept.share - other.kept.share
            if abs(more) > _SAME_SHARE:
                return more > 0
        return self.verdict.is_better_than(other.verdict)


_Values = Mapping[str, "npt.NDArray[Any]"]


def judge_quality(
    facts: GraphFacts, reference: Sequence[_Values], candidate: Sequence[_Values], held_out: Sequence[int] = ()
) -> Quality:
    """Judge one mapping of outputs per sample; ``held_out`` are the places of those that the quantizer did not see."""
    unseen = None
    if held_out:
        unseen = judge_quality(facts, [reference[i] for i in held_out], [candidate[i] for i in held_out])
    verdict = OutputJudge(facts, label=Label.GIVEN).compare(reference, candidate)
    return Quality(verdict=verdict, samples=len(reference), unseen=unseen)

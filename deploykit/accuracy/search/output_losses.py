"""What runs of all samples lose against a reference run, and which goals they reach; fast enough for a thousand runs.

Rows behind a choice are matched first, as everywhere. Every comparison of candidates of one model is made here, so that
a goal means the same everywhere. It runs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.measures import overall_db
from deploykit.accuracy.judge.rows import ChosenRows
from deploykit.accuracy.judge.verdict import Context
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import Reached
from deploykit.findings.records import Arrays, Feeds, Numbers, Published
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    from deploykit.accuracy.judge.metric import UserMetric

__all__ = ["GoalMeter", "OutputLoss", "OutputLosses"]


class OutputLoss(Published):
    """Signal to noise of each output against the float model, in dB; infinite without any difference."""

    ALSO = ("db",)

    outputs: Mapping[str, float]

    @property
    def db(self) -> float:
        """The worst output's signal-to-noise ratio in dB."""
        return min(self.outputs.values(), default=math.inf)


class OutputLosses:
    """Compares runs with the reference outputs of all samples.

    ``shown`` must be in every run: the outputs that nodes make. Outputs that no node makes never differ. Outputs that
    are no floats are left out where there are others: the distance of two labels says nothing.
    """

    def __init__(self, facts: GraphFacts) -> None:
        made = {name for node in facts.nodes for name in node.outputs}
        outputs = [name for name in facts.outputs if name in made]
        self._names = [name for name in outputs if facts.tensors[name].is_float] or outputs
        self._rows = ChosenRows.of(facts)
        self._matches = any(self._rows.is_behind(name) for name in outputs)
        self.shown = tuple(outputs)
        self._reference: Sequence[Arrays] = ()

    def hold(self, reference: Sequence[Arrays]) -> None:
        """Set the float outputs of all samples, with which runs are compared."""
        self._reference = reference

    def loss(self, outputs: Sequence[Arrays]) -> OutputLoss:
        """The loss of one run over all samples."""
        both = list(zip(self._reference, outputs, strict=True))
        pairs = {n: [(one[n], two[n]) for one, two in both] for n in self._names}
        if self._matches:
            matched = [self._rows.all_matched(self.shown, one, two) for one, two in both]
            pairs = {n: [(sample[n].left, sample[n].right) for sample in matched] for n in self._names}
        broken = {  # a finite value became infinite or NaN, or the shape differs
            n
            for n, found in pairs.items()
            for one, two in found
            if one.shape != two.shape or (np.isfinite(one) & ~np.isfinite(two)).any()
        }
        return OutputLoss(outputs={n: -math.inf if n in broken else overall_db(pairs[n]) for n in pairs})


class GoalMeter:
    """What runs reach against one float model on some samples.

    ``shown`` must be in every run: the outputs that nodes make. On samples that mean nothing (``label``) no verdict is
    given.
    """

    def __init__(self, facts: GraphFacts, *, label: str = Label.GIVEN, metric: UserMetric | None = None) -> None:
        self._outputs = [name for name in facts.outputs if facts.producer_of(name) is not None]
        self._losses = OutputLosses(facts)
        self._facts, self._context = facts, Context(label)
        self._metric = metric
        self.shown = self._losses.shown
        self._feeds: Feeds = ()
        self._reference: Sequence[Arrays] = ()
        self._of_reference = math.nan

    def hold(self, feeds: Feeds, reference: Sequence[Arrays]) -> None:
        """Set the samples and the float model's outputs for them; the user's measure of these outputs is taken, too."""
        self._feeds, self._reference = feeds, reference
        self._losses.hold(reference)
        if self._metric is not None:
            rows = self._rows(reference)
            self._of_reference = self._metric.measure(rows, rows)

    def reached(self, runs: Sequence[Arrays]) -> Reached:
        """What one run over all samples reaches."""
        verdict = judge_outputs(self._facts, self._context, self._reference, runs, self._feeds)
        db = self._losses.loss(runs).db
        if self._metric is None:
            return Reached.of(verdict, sqnr_db=db)
        metric = self._metric.measure(self._rows(runs), self._rows(self._reference))
        return Reached.of(verdict, sqnr_db=db, metric=metric, reference=self._of_reference)

    def _rows(self, runs: Sequence[Arrays]) -> list[dict[str, Numbers]]:
        return [{name: values[name] for name in self._outputs} for values in runs]

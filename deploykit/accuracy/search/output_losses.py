"""What runs of all samples lose and reach against a reference run, fast enough to be asked a thousand times.

Rows behind a choice are matched first, as everywhere. Everybody who compares candidates of one model asks here, so
that a goal means the same everywhere. It runs no model.
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

__all__ = ["OutputLoss", "OutputLosses", "Reaching"]


class OutputLoss(Published):
    """Signal to noise of each output against the float model, in dB; infinite without any difference."""

    ALSO = ("db",)

    outputs: Mapping[str, float]

    @property
    def db(self) -> float:
        """Of the output that suffers most."""
        return min(self.outputs.values(), default=math.inf)


class OutputLosses:
    """Holds the reference outputs of all samples. ``shown`` must be in every run: the outputs that nodes make.

    Outputs that no node makes never differ. Those that are no floats are left out where there are others: the distance
    of two labels says nothing.
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
        """Take the float outputs of all samples as what others are compared with."""
        self._reference = reference

    def loss(self, outputs: Sequence[Arrays]) -> OutputLoss:
        """The loss of one run of all samples."""
        both = list(zip(self._reference, outputs, strict=True))
        pairs = {n: [(one[n], two[n]) for one, two in both] for n in self._names}
        if self._matches:
            matched = [self._rows.all_matched(self.shown, one, two) for one, two in both]
            pairs = {n: [(sample[n].left, sample[n].right) for sample in matched] for n in self._names}
        broken = {  # a value became no number, or the shape is another
            n
            for n, found in pairs.items()
            for one, two in found
            if one.shape != two.shape or (np.isfinite(one) & ~np.isfinite(two)).any()
        }
        return OutputLoss(outputs={n: -math.inf if n in broken else overall_db(pairs[n]) for n in pairs})


class Reaching:
    """One float model on some samples. ``shown`` must be in every run: the outputs, and what orders their rows.

    What is measured on samples that mean nothing (``label``) is not judged.
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
        """Take the samples and what the float model gives for them; the user's measure is taken of that, too."""
        self._feeds, self._reference = feeds, reference
        self._losses.hold(reference)
        if self._metric is not None:
            rows = self._rows(reference)
            self._of_reference = self._metric.measure(rows, rows)

    def reached(self, runs: Sequence[Arrays]) -> Reached:
        """What one run of all samples reaches."""
        verdict = judge_outputs(self._facts, self._context, self._reference, runs, self._feeds)
        db = self._losses.loss(runs).db
        if self._metric is None:
            return Reached.of(verdict, sqnr_db=db)
        metric = self._metric.measure(self._rows(runs), self._rows(self._reference))
        return Reached.of(verdict, sqnr_db=db, metric=metric, reference=self._of_reference)

    def _rows(self, runs: Sequence[Arrays]) -> list[dict[str, Numbers]]:
        return [{name: values[name] for name in self._outputs} for values in runs]

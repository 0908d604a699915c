"""What a run of all samples reaches: signal to noise, the judge's word, the detections kept, the user's own measure.

Everybody who compares candidates of one model asks here, so that a goal means the same everywhere. It runs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from deploykit.accuracy.judge.judge import OutputJudge
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import Reached
from deploykit.accuracy.search.output_losses import OutputLosses
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    from deploykit.accuracy.judge.metric import UserMetric
    from deploykit.accuracy.simulate.sessions import Feed

__all__ = ["Reaching"]

_Values = Mapping[str, npt.NDArray[Any]]


class Reaching:
    """One float model on some samples. ``shown`` must be in every run: the outputs, and what orders their rows.

    What is measured on samples that mean nothing (``label``) is not judged.
    """

    def __init__(self, facts: GraphFacts, *, label: str = Label.GIVEN, metric: UserMetric | None = None) -> None:
        self._outputs = [name for name in facts.outputs if facts.producer_of(name) is not None]
        self._losses = OutputLosses(facts)
        self._judge = OutputJudge(facts, label=label)
        self._metric = metric
        self.shown = self._losses.shown
        self._feeds: Sequence[Feed] = ()
        self._reference: Sequence[_Values] = ()
        self._of_reference = math.nan

    def hold(self, feeds: Sequence[Feed], reference: Sequence[_Values]) -> None:
        """Take the samples and what the float model gives for them; the user's measure is taken of that, too."""
        self._feeds, self._reference = feeds, reference
        self._losses.hold(reference)
        if self._metric is not None:
            rows = self._rows(reference)
            self._of_reference = self._metric.measure(rows, rows)

    def reached(self, runs: Sequence[_Values]) -> Reached:
        """What one run of all samples reaches."""
        verdict = self._judge.compare(self._reference, runs, self._feeds)
        db = self._losses.loss(runs).db
        if self._metric is None:
            return Reached.of(verdict, sqnr_db=db)
        metric = self._metric.measure(self._rows(runs), self._rows(self._reference))
        return Reached.of(verdict, sqnr_db=db, metric=metric, reference=self._of_reference)

    def _rows(self, runs: Sequence[_Values]) -> list[dict[str, npt.NDArray[Any]]]:
        return [{name: values[name] for name in self._outputs} for values in runs]

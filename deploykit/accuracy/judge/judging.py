"""The one judge: holds what a model gives on samples against what something else gave: right, wrong or not judged.

Everybody who compares outputs asks it: plans, simulations, evaluations, emulation, verification. It runs the reference
once; limits come from ``deploykit.accuracy.judge.thresholds``, meanings from ``deploykit.accuracy.judge.kinds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from deploykit.accuracy.judge.output_judging import OutputJudge
from deploykit.accuracy.judge.thresholds import Against, Thresholds
from deploykit.accuracy.judge.verdicts import JudgedNumber, Oddity, Verdict
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Judge", "JudgedNumber", "Numbers", "Oddity", "OutputJudge", "Verdict", "made_by"]

Numbers: TypeAlias = npt.NDArray[Any]


def made_by(model: ModelProto, names: Iterable[str]) -> tuple[str, ...]:
    """Those of some tensors that a model's nodes make."""
    made = {name for node in model.graph.node for name in node.output}
    return tuple(name for name in names if name in made)


class Judge:
    """One model's outputs on samples. ``choices`` are tensors that a run should show beside its outputs, if it can.

    Plain feeds come from nowhere in particular: their label is ``arbitrary`` unless it is given, and then nothing is
    judged. Of samples only those that vary are judged on. ``against`` says what the model is; ``bits`` is the narrowest
    activation type of what is judged (0: float). One that ``stays_open`` keeps its model for ``on``, until ``close``.
    """

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        samples: Sequence[Feed] | Samples,
        *,
        label: str = "arbitrary",
        against: Against = Against.FLOAT,
        bits: int = 0,
        thresholds: Thresholds | None = None,
        stays_open: bool = False,
    ) -> None:
        self.feeds: Sequence[Feed]
        if isinstance(samples, Samples):
            self.feeds, label = samples.varied, samples.label
        else:
            self.feeds = samples
        self.names = tuple(item.name for item in model.graph.output)
        self._judge = OutputJudge(facts, label=label, against=against, bits=bits, thresholds=thresholds)
        self.choices = made_by(model, self._judge.choices)
        session = Session(model, capture=self.choices)
        self.reference = session.runs(self.feeds)
        self._session = session if stays_open else None

    def on(self, feeds: Sequence[Feed]) -> Judge:
        """The same judge on other feeds of the same label; only for one that stays open, which both then do."""
        assert self._session is not None
        other = copy(self)
        other.feeds, other.reference = feeds, self._session.runs(feeds)
        return other

    def part(self, first: int, last: int) -> Judge:
        """The same judge on some of its samples."""
        other = copy(self)
        other.feeds, other.reference = self.feeds[first:last], self.reference[first:last]
        return other

    def close(self) -> None:
        """Let go of the opened model; what it gave stays."""
        self._session = None

    def judge(self, run: Callable[[Feed], Mapping[str, Numbers]]) -> Verdict:
        """Run every sample and compare; what ``run`` returns must hold the outputs and may hold the choices."""
        return self.compare([run(feed) for feed in self.feeds])

    def compare(self, outputs: Sequence[Mapping[str, Numbers]]) -> Verdict:
        """``judge`` for what was run already, one mapping per sample."""
        return self._judge.compare(self.reference, outputs, self.feeds)

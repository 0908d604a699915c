"""``deploykit accuracy compare`` as one call: read both sides, compare, judge, trace dead channels to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.comparison import Comparison, compare
from deploykit.accuracy.judge.judge import OutputJudge
from deploykit.accuracy.judge.outputs import Outputs, OutputSet, read_outputs, read_pair
from deploykit.accuracy.judge.rules import RULES as COMPARISON_RULES
from deploykit.accuracy.judge.rules import Judged, Thresholds
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.findings import Finding, exit_status
from deploykit.model import load_model
from deploykit.model.collect import collect_facts

if TYPE_CHECKING:
    from deploykit.model.facts import GraphFacts

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The numbers and what they mean."""

    comparison: Comparison
    findings: tuple[Finding, ...]
    verdict: Verdict | None = None

    @property
    def exit_status(self) -> int:
        """1 when an output is dead, a sample is missing or a threshold is missed."""
        return exit_status(self.findings)

    def to_json(self, *, slices: bool = False) -> dict[str, Any]:
        """The published shape; ``slices`` adds every slice of every axis."""
        verdict = None if self.verdict is None else self.verdict.to_json()
        findings = [finding.to_json() for finding in self.findings]
        return self.comparison.to_json(slices=slices) | {"verdict": verdict, "findings": findings}


def evaluate(
    baseline: Path,
    candidate: Path,
    *,
    data: Path | None = None,
    model: Path | None = None,
    target: str = "TARGET",
    thresholds: Thresholds | None = None,
) -> Evaluation:
    """How close ``candidate`` is to ``baseline``: two folders or files of outputs, or two models run on ``data``.

    ``model`` is the float model (default: ``baseline`` where that is a model); ``target`` only completes the command
    that is proposed for a dead output. Raises InputError and UsageError for what cannot be read or compared.
    """
    sides = read_pair(baseline, candidate, data)
    comparison = compare(*sides)
    known = baseline if model is None and baseline.suffix == ".onnx" else model
    facts = _facts(known)
    inputs = None if data is None else read_outputs(data)
    verdict = None if facts is None or comparison.mismatches else _judge(facts, sides, inputs, thresholds)
    judged = Judged(
        comparison=comparison,
        facts=facts,
        model=str(known or "MODEL"),
        target=target,
        thresholds=thresholds or Thresholds(),
        verdict=verdict,
    )
    return Evaluation(comparison=comparison, findings=COMPARISON_RULES.run(judged), verdict=verdict)


def _judge(
    facts: GraphFacts, sides: tuple[OutputSet, OutputSet], inputs: OutputSet | None, thresholds: Thresholds | None
) -> Verdict | None:
    """The judge's verdict on the samples that both sides have; what was saved was saved on data that somebody chose."""
    shared = sorted(sides[0].samples.keys() & sides[1].samples.keys())
    if not shared:
        return None
    one, two = ([_named(facts.outputs, side.samples[name]()) for name in shared] for side in sides)
    feeds = [] if inputs is None else [_named(facts.inputs, inputs.samples[name]()) for name in shared]
    return OutputJudge(facts, label="given", thresholds=thresholds).compare(one, two, feeds)


def _named(names: Sequence[str], arrays: Outputs) -> Outputs:
    """A lone array is the model's only input or output, whatever the file calls it."""
    alone = len(names) == len(arrays) == 1
    return dict(zip(names, arrays.values(), strict=True)) if alone else arrays


def _facts(model: Path | None) -> GraphFacts | None:
    if model is None:
        return None
    return collect_facts(load_model(model))

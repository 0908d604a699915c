"""``deploykit evaluate`` as one call: read both sides, compare, judge, and trace dead channels back to the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.findings import Finding, exit_status
from deploykit.numerics.comparison import Comparison, compare
from deploykit.numerics.outputs import read_pair
from deploykit.numerics.rules import RULES as COMPARISON_RULES
from deploykit.numerics.rules import Judged, Thresholds

if TYPE_CHECKING:
    from deploykit.graph.facts import GraphFacts

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The numbers and what they mean."""

    comparison: Comparison
    findings: tuple[Finding, ...]

    @property
    def exit_status(self) -> int:
        """1 when an output is dead, a sample is missing or a threshold is missed."""
        return exit_status(self.findings)

    def to_json(self, *, slices: bool = False) -> dict[str, Any]:
        """The published shape; ``slices`` adds every slice of every axis."""
        return self.comparison.to_json(slices=slices) | {"findings": [finding.to_json() for finding in self.findings]}


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
    comparison = compare(*read_pair(baseline, candidate, data))
    known = baseline if model is None and baseline.suffix == ".onnx" else model
    judged = Judged(
        comparison=comparison,
        facts=_facts(known),
        model=str(known or "MODEL"),
        target=target,
        thresholds=thresholds or Thresholds(),
    )
    return Evaluation(comparison=comparison, findings=COMPARISON_RULES.run(judged))


def _facts(model: Path | None) -> GraphFacts | None:
    if model is None:
        return None
    from deploykit.graph import load_model
    from deploykit.graph.collect import collect_facts

    return collect_facts(load_model(model))

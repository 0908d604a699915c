"""Runs the quantizer once and holds what its model gives against the float model, on calibration samples.

It decides nothing; ``execution`` and ``remedy`` do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.accuracy.judge.comparison import Comparison, compare
from deploykit.accuracy.judge.outputs import read_outputs
from deploykit.accuracy.samples.labels import Label
from deploykit.backend.backend import Progress
from deploykit.backend.status import Correctness, Right
from deploykit.system.folders import scratch
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import Draft
from deploykit_vitis_ai.quality import Quality, judge_quality
from deploykit_vitis_ai.runner import QuarkRun, run_quark

if TYPE_CHECKING:
    from deploykit.model.facts import GraphFacts
    from deploykit.system.environments import Environment

__all__ = ["Measured", "measure"]


_HELD_OUT = "held_out_"
"""What the names of samples begin with that the quantizer did not see (``scripts/quantize.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run, and how its model compares; both None for a model that was calibrated with random data."""

    run: QuarkRun
    comparison: Comparison | None = None
    quality: Quality | None = None

    @property
    def right(self) -> Correctness | None:
        """The judge's word on the quantized model, run in ONNX Runtime on calibration samples; None without any."""
        if self.quality is None:
            return None
        verdict = self.quality.verdict
        return Correctness(
            state={True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[verdict.right],
            label=Label.GIVEN,
            count=self.quality.samples,
            against="float",
            why=verdict.reason,
            numbers=tuple(number.to_json() for number in verdict.numbers),
        )


def measure(
    environment: Environment, package: Path, draft: Draft, progress: Progress, *, trial: bool = False
) -> Measured:
    """Quantize inside a package folder as its recipe says. Raises ToolError where no model comes out."""
    if draft.random_data:
        return Measured(run=run_quark(environment, package, recipe=configs.RECIPE, progress=progress))
    with scratch() as outputs:
        run = run_quark(environment, package, recipe=configs.RECIPE, compare=outputs, progress=progress, trial=trial)
        progress("comparing the quantized model with the float model")
        comparison = compare(read_outputs(outputs / "baseline"), read_outputs(outputs / "candidate"))
        quality = _judged(draft.facts, outputs)
    return Measured(run=run, comparison=comparison, quality=quality)


def _judged(facts: GraphFacts, outputs: Path) -> Quality:
    reference, candidate = (read_outputs(outputs / side).samples for side in ("baseline", "candidate"))
    names = sorted(reference.keys() & candidate.keys())
    held_out = [place for place, name in enumerate(names) if name.startswith(_HELD_OUT)]
    return judge_quality(facts, [reference[name]() for name in names], [candidate[name]() for name in names], held_out)

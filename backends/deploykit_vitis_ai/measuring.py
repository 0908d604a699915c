"""Runs the quantizer once and holds what its model gives against the float model, on calibration samples.

It decides nothing; ``execution`` and ``remedy`` do.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.contract.backend import Progress
from deploykit.contract.status import Correctness, Right
from deploykit.numerics.comparison import Comparison, compare
from deploykit.numerics.output_judging import OutputJudge
from deploykit.numerics.outputs import read_outputs
from deploykit.numerics.samples.labels import Label
from deploykit.numerics.verdicts import Verdict
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import Draft
from deploykit_vitis_ai.runner import QuarkRun, run_quark

if TYPE_CHECKING:
    from deploykit.graph.facts import GraphFacts
    from deploykit.system.environments import Environment

__all__ = ["Measured", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run, and how its model compares; both None for a model that was calibrated with random data."""

    run: QuarkRun
    comparison: Comparison | None = None
    verdict: Verdict | None = None
    samples: int = 0
    label: str = Label.GIVEN

    @property
    def right(self) -> Correctness | None:
        """The judge's word on the quantized model, run in ONNX Runtime on calibration samples; None without any."""
        if self.verdict is None:
            return None
        return Correctness(
            state={True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[self.verdict.right],
            label=self.label,
            count=self.samples,
            against="float",
            why=self.verdict.reason,
            numbers=tuple(number.to_json() for number in self.verdict.numbers),
        )


def measure(
    environment: Environment, package: Path, draft: Draft, progress: Progress, *, trial: bool = False
) -> Measured:
    """Quantize inside a package folder as its recipe says. Raises ToolError where no model comes out."""
    if draft.random_data:
        return Measured(run=run_quark(environment, package, recipe=configs.RECIPE, progress=progress))
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder)
        run = run_quark(environment, package, recipe=configs.RECIPE, compare=outputs, progress=progress, trial=trial)
        progress("comparing the quantized model with the float model")
        comparison = compare(read_outputs(outputs / "baseline"), read_outputs(outputs / "candidate"))
        verdict, count = _judged(draft.facts, outputs)
    return Measured(run=run, comparison=comparison, verdict=verdict, samples=count)


def _judged(facts: GraphFacts, outputs: Path) -> tuple[Verdict, int]:
    """The verdict, and on how many samples."""
    reference, candidate = (read_outputs(outputs / side).samples for side in ("baseline", "candidate"))
    names = sorted(reference.keys() & candidate.keys())
    judge = OutputJudge(facts, label=Label.GIVEN)
    verdict = judge.compare([reference[name]() for name in names], [candidate[name]() for name in names])
    return verdict, len(names)

"""How good quantized numbers are: deploykit's own simulation beside the quantizer's, both against the model as given.

Both run on the samples that the quantizer did not see. It judges; it neither runs a quantizer nor writes a report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.simulation import (
    Fidelity,
    Simulator,
    compare_outputs,
    overall_sqnr_db,
)
from deploykit.encodings.read import read_placed
from deploykit.errors import ToolError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from deploykit.accuracy.judge.verdict import Verdict
    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.flow.quantizing.running import QuantizerRun
    from deploykit.model import Model
    from deploykit.model.facts import GraphFacts

__all__ = ["Numbers", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """SQNR in dB over all outputs: deploykit's simulation, the quantizer's own, and how near the two are to each other.

    ``agreement_db`` takes the quantizer's as the signal; infinite where they are bit for bit the same. ``seen`` is True
    where no sample could be held out.
    """

    sqnr_db: float
    quantizer_db: float | None
    agreement_db: float | None
    largest_difference: float | None
    outputs: tuple[Fidelity, ...]
    verdict: Verdict
    samples: int
    seen: bool

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None beside ``exact``."""
        return {
            "sqnr_db": _finite(self.sqnr_db),
            "quantizers_own": {
                "sqnr_db": _finite(self.quantizer_db),
                "agreement_db": _finite(self.agreement_db),
                "exact": self.agreement_db == math.inf,
                "largest_difference": self.largest_difference,
            },
            "outputs": [output.to_json() for output in self.outputs],
            "verdict": self.verdict.to_json(),
            "samples": {"count": self.samples, "held_out": not self.seen},
        }


def measure(given: Model, facts: GraphFacts, ran: QuantizerRun, feeds: Sequence[Feed], *, seen: bool) -> Numbers:
    """Run the float model as given and the quantized one on the samples, and hold the quantizer's own outputs beside.

    Raises ToolError where the quantized model's outputs are not those of the model as given.
    """
    quantized = load_model(ran.model)
    placed = read_placed(ran.encodings, collect_facts(quantized))
    judge = Judge(lean_weights(given), facts, feeds, label=Label.GIVEN)
    weights = lean_weights(quantized)
    if tuple(value.name for value in weights.graph.output) != judge.names:
        raise ToolError(f"{ran.model}: its outputs are not those of {given.path.name}", next=f"look at {ran.folder}")
    simulator = Simulator(weights, placed)
    shown = simulator.runs(feeds)
    reference = [{name: row[name] for name in judge.names} for row in judge.reference]
    outputs = [{name: row[name] for name in judge.names} for row in shown]
    own = _own(ran.folder, judge.names)
    return Numbers(
        sqnr_db=overall_sqnr_db(reference, outputs),
        quantizer_db=None if own is None else overall_sqnr_db(reference, own),
        agreement_db=None if own is None else overall_sqnr_db(own, outputs),
        largest_difference=None if own is None else max(one.max_error for one in compare_outputs(own, outputs)),
        outputs=compare_outputs(reference, outputs, placed),
        verdict=judge.compare(shown),
        samples=len(feeds),
        seen=seen,
    )


def _own(folder: Path, names: Sequence[str]) -> list[Feed] | None:
    """The quantizer's own simulated outputs; None where it simulates nothing."""
    place = folder / "out" / "simulated"
    if not (place / "names.json").is_file():
        return None
    given = json.loads((place / "names.json").read_text("utf-8"))
    rows: list[Feed] = []
    for path in sorted(place.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            values = {name: arrays[f"v{at}"] for at, name in enumerate(given)}
        rows.append({name: values[name] for name in names})
    return rows


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value

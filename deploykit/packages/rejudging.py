"""Judges the numbers of a package again: every model that lies beside encodings, on the samples that were recorded.

It reads the package and changes nothing; what the device makes of the numbers is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.accuracy.samples.gathering import gather
from deploykit.accuracy.samples.recording import RECORDED_FILE
from deploykit.accuracy.search.locating import locate
from deploykit.accuracy.search.probes import ModelProbe, SimulationProbe
from deploykit.accuracy.simulate.fitting import fit_judge
from deploykit.backend.backend import Check
from deploykit.backend.status import Correctness, Right
from deploykit.encodings.read import read_placed
from deploykit.errors import DeploykitError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.judge.verdict import Thresholds
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.encodings.values import EncodingSet
    from deploykit.model.facts import GraphFacts

__all__ = ["Rejudged", "rejudge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejudged:
    """One check per model, and the verdict over all of them; None where nothing lies beside encodings."""

    checks: tuple[Check, ...] = ()
    right: Correctness | None = None


def rejudge(package: Path, thresholds: Thresholds | None = None) -> Rejudged:
    """Simulate each ``encodings/NAME.json`` on ``model/NAME.onnx`` against float."""
    done = [
        _judged(package, model, encodings, thresholds)
        for encodings in sorted((package / "encodings").glob("*.json"))
        if (model := package / "model" / f"{encodings.stem}.onnx").is_file()
    ]
    return Rejudged(checks=tuple(check for check, _ in done), right=_together([right for _, right in done]))


def _judged(package: Path, model: Path, encodings: Path, thresholds: Thresholds | None) -> tuple[Check, Correctness]:
    name = f"model/{model.name}"
    try:
        proto, facts, placed = _read(model, encodings)
        samples = _samples(package, proto, facts, placed)
        return _checked(name, proto, facts, placed, samples, thresholds)
    except DeploykitError as error:
        why = f"{name}: {error.what}" + (f" ({error.why})" if error.why else "")
        return Check(id="numerics", ok=False, detail=why), Correctness(why=why, broken=True)


def _read(model: Path, encodings: Path) -> tuple[ModelProto, GraphFacts, EncodingSet]:
    read = load_model(model)
    facts = collect_facts(read)
    return lean_weights(read), facts, read_placed(encodings, facts)


def _samples(package: Path, model: ModelProto, facts: GraphFacts, encodings: EncodingSet) -> Samples:
    """The recorded samples where they have every input; else what is derived, for a segment reads what others make."""
    recorded = package / RECORDED_FILE
    if recorded.is_file():
        try:
            return gather(model, facts, recorded=recorded, encodings=encodings)
        except DeploykitError:
            pass
    return gather(model, facts, encodings=encodings)


def _checked(
    name: str,
    model: ModelProto,
    facts: GraphFacts,
    encodings: EncodingSet,
    samples: Samples,
    thresholds: Thresholds | None,
) -> tuple[Check, Correctness]:
    on = samples.described_for_humans
    if not samples.may_judge:
        told = f"{name}: not judged ({on})"
        return Check(id="numerics", ok=True, detail=told), Correctness(why=f"give --calibration or --input ({on})")
    verdict = fit_judge(model, facts, encodings, samples, thresholds).verdict
    right = Correctness(
        state={True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[verdict.right],
        label=str(samples.label),
        count=len(samples.varied),
        against="float",
        why=verdict.reason,
        numbers=tuple(number.to_json() for number in verdict.numbers),
    )
    shown = verdict.failures[:3] or tuple(n for n in verdict.numbers if n.passes)[:3]
    words = "; ".join(f"{number.subject}: {number}" for number in shown) or verdict.reason
    where = _culprit(model, facts, encodings, samples) if verdict.right is False else ""
    return Check(id="numerics", ok=verdict.right is not False, detail=f"{name}: {words}, on {on}{where}"), right


def _culprit(model: ModelProto, facts: GraphFacts, encodings: EncodingSet, samples: Samples) -> str:
    found = locate(facts, ModelProbe(model), SimulationProbe(model, encodings), samples.varied)
    if found.first is None:
        return ""
    return f"; first at {found.first.op_type} {found.first.node}, {found.first.output.name}"


def _together(verdicts: Sequence[Correctness]) -> Correctness | None:
    """The worst word of several models, with every number."""
    if not verdicts:
        return None
    order = (Right.NO, Right.NOT_JUDGED, Right.YES)
    worst = min(verdicts, key=lambda right: (not right.broken, order.index(right.state)))
    if len(verdicts) == 1:
        return worst
    return Correctness(
        state=worst.state,
        label=worst.label,
        count=worst.count,
        against=worst.against,
        why=worst.why,
        broken=worst.broken,
        numbers=tuple(_numbers(verdicts)),
    )


def _numbers(verdicts: Iterable[Correctness]) -> Iterable[dict[str, object]]:
    return (dict(number) for right in verdicts for number in right.numbers)

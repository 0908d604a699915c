"""Judges the numbers of a package again, on the samples that were recorded: its pieces in order, against float.

It reads the package and changes nothing; what the device makes of the numbers is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.accuracy.samples.gathering import RECORDED_FILE, gather
from deploykit.accuracy.search.locate import ModelProbe, SimulationProbe, locate
from deploykit.accuracy.simulate.fitting import fit_judge, settled
from deploykit.accuracy.simulate.sessions import Chain, Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.backend.backend import Check
from deploykit.backend.status import Correctness, correctness_of
from deploykit.encodings.cut import chain_models
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import DeploykitError
from deploykit.model import load_model
from deploykit.model.collect import facts_of
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from deploykit.accuracy.judge.verdict import Thresholds
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.model.facts import GraphFacts

__all__ = ["Rejudged", "rejudge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejudged:
    """The check, and the verdict; None where no model lies beside encodings."""

    checks: tuple[Check, ...] = ()
    right: Correctness | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Piece:
    """One model of the package, with its encodings; without them it runs as it is."""

    name: str
    model: ModelProto
    encodings: EncodingSet | None

    def opened(self) -> Session | Simulator:
        return Session(self.model) if self.encodings is None else Simulator(self.model, self.encodings)


def rejudge(package: Path, status: Mapping[str, Any], thresholds: Thresholds | None = None) -> Rejudged:
    """Simulate the pieces of a package in their order, and hold its outputs against those of the same pieces in float.

    ``status`` is the manifest's: what the encodings as given lost on these samples when the package was made.
    """
    files = sorted((package / "model").glob("*.onnx"))
    if not any((package / "encodings" / f"{path.stem}.json").is_file() for path in files):
        return Rejudged()
    try:
        found = []
        for path in files:
            proto, beside = lean_weights(load_model(path)), package / "encodings" / f"{path.stem}.json"
            placed = read_placed(beside, facts_of(proto)) if beside.is_file() else None
            found.append(_Piece(name=f"model/{path.name}", model=proto, encodings=placed))
        pieces = _in_order(found)
        # One graph again: tensors have kept their names where the model was cut.
        whole = reduce(chain_models, (piece.model for piece in pieces))
        facts = facts_of(whole)
        entries = {entry.name: entry for piece in pieces for entry in piece.encodings or ()}
        encodings = EncodingSet(version="", entries=entries)
        samples, recorded = None, package / RECORDED_FILE
        with suppress(DeploykitError):  # samples that lack an input say nothing; what is derived may
            samples = gather(whole, facts, recorded=recorded, encodings=encodings) if recorded.is_file() else None
        samples = samples or gather(whole, facts, encodings=encodings)
        return _checked(pieces, whole, facts, samples, status, thresholds)
    except DeploykitError as error:
        why = error.what + (f" ({error.why})" if error.why else "")
        check = Check(id="numerics", ok=False, detail=why)
        return Rejudged(checks=(check,), right=Correctness(why=why, broken=True))


def _in_order(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Each piece behind those whose outputs it reads; the order of names where nothing is read."""
    left, done = list(pieces), list[_Piece]()
    while left:
        waiting = {value.name for piece in left for value in piece.model.graph.output}
        ready = [p for p in left if waiting.isdisjoint(value.name for value in p.model.graph.input)] or left[:1]
        done += ready
        left = [piece for piece in left if piece not in ready]
    return done


def _checked(
    pieces: Sequence[_Piece],
    whole: ModelProto,
    facts: GraphFacts,
    samples: Samples,
    status: Mapping[str, Any],
    thresholds: Thresholds | None,
) -> Rejudged:
    on, names = samples.described_for_humans, " + ".join(piece.name for piece in pieces)
    if not samples.may_judge:
        check = Check(id="numerics", ok=True, detail=f"{names}: not judged ({on})")
        why = f"the inputs are made up; give --calibration or --input ({on})"
        return Rejudged(checks=(check,), right=Correctness(why=why))
    alone = pieces[0].encodings if len(pieces) == 1 else None
    if alone is not None:
        verdict = fit_judge(whole, facts, alone, samples, thresholds).verdict
    else:
        judge = Judge(whole, facts, samples, thresholds=thresholds)
        outputs = Chain(piece.opened() for piece in pieces).runs(judge.feeds)
        verdict = settled(judge.compare(outputs), samples.label)
    # What the encodings as given lost when the package was made, where that was measured.
    known = [
        {**number, "value": number["quantization"], "words": number["quantization_words"]}
        for number in status.get("numbers", ())
        if number.get("quantization") is not None
    ]
    if known:
        totals: dict[str, Any] = {"right": None, "reason": "", "cost": "", "sqnr_db": None, "outputs": {}}
        verdict = verdict.beside(Verdict.from_json({**totals, "lost_rows": 0.0, "numbers": known, "not_finite": []}))
    right = correctness_of(verdict, where="simulated", label=str(samples.label), count=len(samples.varied))
    shown = verdict.failures[:3] or tuple(n for n in verdict.numbers if n.passes)[:3]
    words = "; ".join([*([verdict.cost] if verdict.cost else []), *(n.loss for n in shown)])
    where = ""
    if verdict.right is False and alone is not None:
        found = locate(facts, ModelProbe(whole), SimulationProbe(whole, alone), samples.varied).first
        where = "" if found is None else f"; first at {found.op_type} {found.node}, {found.output.name}"
    detail = f"{names}: {words or verdict.reason}, on {on}{where}"
    return Rejudged(checks=(Check(id="numerics", ok=verdict.right is not False, detail=detail),), right=right)

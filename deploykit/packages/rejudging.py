"""Judges the numbers of a package again on the recorded samples: runs its models in order and compares with float.

It reads the package and changes nothing; the adapter decides how a device computes the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path

import numpy as np
from onnx import ModelProto

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.kinds import Reading
from deploykit.accuracy.judge.rows import ChosenRows
from deploykit.accuracy.judge.verdict import Against, Thresholds, Verdict
from deploykit.accuracy.samples.gathering import EXPECTED_FILE, RECORDED_FILE, Samples, gather, read_expected
from deploykit.accuracy.search.locate import ModelProbe, locate
from deploykit.accuracy.simulate.sessions import Session, run_chain
from deploykit.accuracy.simulate.simulation import Simulator, fit_judge, in_float, settled
from deploykit.backend.backend import Check
from deploykit.backend.status import Correctness, Right, correctness_of
from deploykit.encodings.cut import chain_models
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import DeploykitError, InputError
from deploykit.findings.records import Arrays, Feeds, Json, Names, Record, replace
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.weights import lean_weights
from deploykit.tables.reading import structure

__all__ = ["PackageJudge", "judge_of", "rejudge"]

_FAR = 1e-3  # of the largest value: rewrites of the graph change float results far less
_MOST_GIVEN = 64  # samples of a user's data that are run elsewhere


class _Piece(Record, eq=False):
    """One model of the package, with its encodings; None runs it unchanged."""

    name: str
    model: ModelProto
    encodings: EncodingSet | None

    def opened(self) -> Session | Simulator:
        return Session(self.model) if self.encodings is None else Simulator(self.model, self.encodings)


class PackageJudge(Record, eq=False):
    """What the outputs of a package are compared with, and on which samples, wherever they were computed.

    ``outputs`` are those of the given model. ``alone`` are the encodings of a package with one model, ``emulated`` the
    emulator's outputs for these samples that the package holds, each None if there is none. ``recorded``: the reference
    is what the package holds of the given model's outputs.
    """

    pieces: tuple[_Piece, ...]
    whole: ModelProto
    facts: GraphFacts
    outputs: Names
    samples: Samples
    judge: Judge
    quantization: Verdict | None
    alone: EncodingSet | None
    emulated: Feeds | None
    recorded: bool

    @property
    def feeds(self) -> Feeds:
        """The samples that are judged on."""
        return self.judge.feeds

    def judged(self, outputs: Feeds) -> Verdict:
        """Return the verdict on the outputs of each sample, compared with the loss by the given encodings."""
        return settled(self.judge.compare(outputs), self.samples.label).beside(self.quantization)

    def right(self, verdict: Verdict, where: str) -> Correctness:
        """Convert a verdict into the correctness of the package; made-up samples judge nothing."""
        if not self.samples.may_judge:
            on = self.samples.described_for_humans
            return Correctness(why=f"the inputs are made up, {on}")
        return correctness_of(verdict, where=where, label=str(self.samples.label), count=len(self.samples.varied))

    def unlike(self, made: Iterable[str]) -> str:
        """Why these are not the given model's outputs; "" if they are. Models in a row give theirs in any order."""
        found, given = [name for name in made if name in self.outputs], list(self.outputs)
        same = found == given if len(self.pieces) == 1 else sorted(found) == sorted(given)
        return "" if same else f"gives {', '.join(found) or 'nothing'}, and the given model {', '.join(given)}"

    def other(self, made: Feeds) -> str:
        """The first output with a value that the given model's has not there; rows behind a choice have no place."""
        rows = ChosenRows.of(self.facts)
        for one, two in zip(made, self.judge.reference, strict=True):
            for name, known in two.items():
                near = _FAR * abs(known).max(initial=0)
                if known.dtype.kind == "f" and not (rows.is_behind(name) or np.allclose(one[name], known, 1e-2, near)):
                    return name
        return ""

    def finished(self, outputs: Feeds) -> list[Arrays]:
        """Complete the outputs by running here the models that were not run elsewhere."""
        made = set(outputs[0]) if outputs else set()
        left = [piece for piece in self.pieces if not made.issuperset(item.name for item in piece.model.graph.output)]
        if len(left) == len(self.pieces):
            return list(outputs)
        known = [{**feed, **found} for feed, found in zip(self.feeds, outputs, strict=True)]
        return list(run_chain((piece.opened() for piece in left), known))


def judge_of(
    package: Path, manifest: Json, thresholds: Thresholds | None = None, *, data: Path | None = None
) -> PackageJudge:
    """Make the judge of a package, on the samples in it or on ``data``. Raises DeploykitError.

    The manifest says how the outputs of the given model are read, and the loss by its encodings when the package was
    made. The reference is the float model: its recorded outputs, else the package's model, whose encodings are beside
    it or which is its own reference. ``thresholds`` of None are the usual limits.
    """
    found = []
    for path in sorted((package / "model").glob("*.onnx")):
        proto, beside = lean_weights(load_model(path)), package / "encodings" / f"{path.stem}.json"
        placed = read_placed(beside, facts_of(proto)) if beside.is_file() else None
        found.append(_Piece(name=f"model/{path.name}", model=proto, encodings=placed))
    if not found:
        raise InputError(f"{package}: holds no model to judge by")
    pieces = tuple(_in_order(found))
    # Join the models again: tensors kept their names where the model was cut.
    whole = reduce(chain_models, (piece.model for piece in pieces))
    facts = collect_facts(wrap_proto(whole, path=package / "model"))  # the models of a package may not fit each other
    entries = {entry.name: entry for piece in pieces for entry in piece.encodings or ()}
    encodings = EncodingSet("", entries)
    gathered, samples, recorded = partial(gather, whole, facts, encodings=encodings), None, package / RECORDED_FILE
    if data is not None:
        samples = gathered(calibration=data, most=_MOST_GIVEN)
    with suppress(DeploykitError):  # samples that lack an input are useless; derived ones may work
        if samples is None and recorded.is_file():
            samples = gathered(recorded=recorded)
    samples = samples or gathered()
    # The loss by the given encodings measured when the package was made, None if it was not measured.
    known = [
        {**number, "value": number["quantization"], "words": number["quantization_words"]}
        for number in (manifest.get("status") or {}).get("numbers", ())
        if number.get("quantization") is not None
    ]
    totals: Json = {"right": None, "reason": "", "cost": "", "sqnr_db": None, "outputs": {}, "lost_rows": 0.0}
    lost = Verdict.from_json({**totals, "numbers": known, "not_finite": []}) if known else None
    alone = pieces[0].encodings if len(pieces) == 1 else None
    kept, names = package / EXPECTED_FILE, {item.name for item in whole.graph.output}
    expected = read_expected(kept, samples.varied) if kept.is_file() else {}
    reference = [one for one in expected.get("float", ()) if names <= one.keys()]
    if manifest.get("reading"):  # what is counted follows from the given model: a changed one may show nothing of it
        reading = structure(Reading, manifest["reading"], where="manifest.json: reading")
        facts.once(Reading, lambda: reading if names == reading.pieces.keys() else Reading.of(facts))
    if reference:
        # Without quantization the float graph itself was packaged, so stricter limits apply.
        judge = Judge(whole, facts, samples, reference=reference, thresholds=thresholds, same_graph=lost is None)
    elif alone is not None and samples.may_judge:
        judge, _ = fit_judge(whole, facts, alone, samples, thresholds)
    else:
        against, bits = (Against.QUANTIZED, 8) if facts.is_qdq else (Against.FLOAT, 0)
        # The same graph is judged that was packaged, so stricter limits apply.
        asked: Json = {} if entries else {"against": against, "bits": bits, "same_graph": True}
        judge, lost = Judge(whole, facts, samples, thresholds=thresholds, **asked), lost if entries else None
    return PackageJudge(
        pieces=pieces,
        whole=whole,
        facts=facts,
        outputs=tuple(row["name"] for row in manifest.get("io", ()) if row["kind"] == "output") or facts.outputs,
        samples=samples,
        judge=judge,
        quantization=lost,
        alone=alone,
        emulated=expected.get("emulator"),
        recorded=bool(reference),
    )


def _in_order(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Sort models so that each one follows those whose outputs it reads; independent ones keep their order."""
    left, done = list(pieces), list[_Piece]()
    while left:
        waiting = {value.name for piece in left for value in piece.model.graph.output}
        ready = [p for p in left if waiting.isdisjoint(value.name for value in p.model.graph.input)] or left[:1]
        done += ready
        left = [piece for piece in left if piece not in ready]
    return done


def rejudge(package: Path, manifest: Json) -> tuple[Check, Correctness | None]:
    """Run the models of a package in order, with their encodings, and compare the outputs with the given model's.

    The correctness is None where nothing that a device rounds is computed here: what was recorded stays.
    """
    try:
        judge = judge_of(package, manifest)
        on, names = judge.samples.described_for_humans, " + ".join(piece.name for piece in judge.pieces)
        if why := judge.unlike(judge.facts.outputs):
            why = f"{names}: {why}"
            return Check("numerics", ok=False, detail=why), Correctness(state=Right.NO, why=why)
        is_encoded = any(piece.encodings is not None for piece in judge.pieces)
        why = "" if judge.samples.may_judge else on
        if not (why or is_encoded or judge.recorded):
            why = "the package holds no outputs of the given model in float"
        if why:
            check = Check("numerics", ok=True, detail=f"{names}: not judged, {why}")
            return check, Correctness(why=f"the inputs are made up, {on}") if is_encoded else None
        verdict = judge.judged(run_chain((piece.opened() for piece in judge.pieces), judge.feeds))
        where = ""
        if judge.facts.is_qdq and judge.emulated:
            # A compiler fuses what the pairs part. What it made ran where the package was made, and here the float
            # model without the pairs shows that this is the same model.
            if judge.judged(Session(in_float(judge.whole, judge.facts)[0]).runs(judge.feeds)).right is not False:
                verdict, where = judge.judged(judge.emulated), "; what the compiler made of it, emulated, was recorded"
        elif not judge.facts.is_qdq:
            made = Session(judge.whole).runs(judge.feeds)
            plain = judge.judge.compare(made)
            # In float nothing is lost by chance: of few things counted, the values themselves tell.
            why = plain.reason if plain.right is False else judge.other(made)
            if why and not plain.broken:
                verdict = replace(
                    plain, right=False, reason=f"the packaged model computes something else in float: {why}"
                )
            elif verdict.right and not is_encoded:
                why = "not judged: without encodings the device chooses its types; in float it computes what was given"
                return Check("numerics", ok=True, detail=f"{names}: {why}, on {on}"), None
            elif verdict.right is False and judge.alone is not None:
                probes = ModelProbe(judge.whole), ModelProbe(judge.whole, judge.alone)
                found = locate(judge.facts, *probes, judge.samples.varied).first
                where = "" if found is None else f"; first at {found.op_type} {found.node}, {found.output.name}"
        passed = [number.loss for number in verdict.numbers if number.passes]
        words = verdict.reason or "; ".join(filter(None, (verdict.cost, *passed[:3])))
        check = Check("numerics", ok=verdict.right is not False, detail=f"{names}: {words}, on {on}{where}")
        return check, judge.right(verdict, "simulated")
    except DeploykitError as error:
        why = error.what + (f" ({error.why})" if error.why else "")
        return Check("numerics", ok=False, detail=why), Correctness(why=why, broken=True)

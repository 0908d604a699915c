"""Judges the numbers of a package again on the recorded samples: runs its models in order and compares with float.

It reads the package and changes nothing; the adapter decides how a device computes the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path

import numpy as np
from onnx import ModelProto

from deploykit.accuracy.judge.judge import Judge, judge_outputs
from deploykit.accuracy.judge.verdict import Against, Context, Thresholds, Verdict
from deploykit.accuracy.samples.gathering import EXPECTED_FILE, RECORDED_FILE, Samples, gather, read_expected
from deploykit.accuracy.search.locate import ModelProbe, locate
from deploykit.accuracy.simulate.sessions import Session, run_chain
from deploykit.accuracy.simulate.simulation import Simulator, fit_judge, settled
from deploykit.backend.backend import Check
from deploykit.backend.status import Correctness, correctness_of
from deploykit.encodings.cut import chain_models
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import DeploykitError, InputError
from deploykit.findings.records import Arrays, Feeds, Json, Record, replace
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.weights import lean_weights

__all__ = ["PackageJudge", "judge_of", "rejudge"]

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

    ``alone`` are the encodings of a package with one model. ``emulated`` are the emulator's outputs for these samples
    that the package holds. Each is None if there is none.
    """

    pieces: tuple[_Piece, ...]
    whole: ModelProto
    facts: GraphFacts
    samples: Samples
    feeds: Feeds
    compare: Callable[[Feeds], Verdict]
    quantization: Verdict | None
    alone: EncodingSet | None
    emulated: Feeds | None

    def judged(self, outputs: Feeds) -> Verdict:
        """Return the verdict on the outputs of each sample, compared with the loss by the given encodings."""
        return settled(self.compare(outputs), self.samples.label).beside(self.quantization)

    def right(self, verdict: Verdict, where: str) -> Correctness:
        """Convert a verdict into the correctness of the package; made-up samples judge nothing."""
        if not self.samples.may_judge:
            on = self.samples.described_for_humans
            return Correctness(why=f"the inputs are made up, {on}")
        return correctness_of(verdict, where=where, label=str(self.samples.label), count=len(self.samples.varied))

    def finished(self, outputs: Feeds) -> list[Arrays]:
        """Complete the outputs by running here the models that were not run elsewhere."""
        made = set(outputs[0]) if outputs else set()
        left = [piece for piece in self.pieces if not made.issuperset(item.name for item in piece.model.graph.output)]
        if len(left) == len(self.pieces):
            return list(outputs)
        known = [{**feed, **found} for feed, found in zip(self.feeds, outputs, strict=True)]
        return list(run_chain((piece.opened() for piece in left), known))


def judge_of(
    package: Path, status: Json, thresholds: Thresholds | None = None, *, data: Path | None = None
) -> PackageJudge:
    """Make the judge of a package, on the samples in it or on ``data``. Raises DeploykitError.

    ``status`` is that of the manifest, with the loss by the given encodings when the package was made. The reference is
    the float model: its recorded outputs, else the package's model, whose encodings are beside it or which is its own
    reference. ``thresholds`` of None are the usual limits.
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
    feeds: Feeds = samples.varied
    lost = _recorded_loss(status)
    alone = pieces[0].encodings if len(pieces) == 1 else None
    kept = package / EXPECTED_FILE
    expected = read_expected(kept, feeds) if kept.is_file() else {}
    reference, names = expected.get("float", []), {item.name for item in whole.graph.output}
    if reference and all(names <= one.keys() for one in reference):
        # Without quantization the float graph itself was packaged, so stricter limits apply.
        context = Context(samples.label, thresholds=thresholds, same_graph=lost is None)

        def compare(outputs: Feeds) -> Verdict:
            verdict = judge_outputs(facts, context, reference, outputs, feeds)
            # What counts is read from the packaged graph: another one may give, say, no detections to count.
            counted = {(number.output, number.limit.measure) for number in verdict.numbers}
            for number in lost.numbers if lost else ():
                if number.words and (number.output, number.limit.measure) not in counted:
                    given = zip(Session(whole).runs(feeds), reference, strict=True)
                    pairs = ((one[name], two[name]) for one, two in given for name in names)
                    if all(np.allclose(a, b, 1e-2, 1e-4 * np.abs(b).max(), equal_nan=True) for a, b in pairs):
                        break
                    words = f"the packaged model computes something else, in float too; {number.words} when it was made"
                    numbers = replace(number, value=np.nan, items=0, words=words), *verdict.numbers
                    return replace(verdict, right=False, numbers=numbers)
            return verdict

    elif alone is not None and samples.may_judge:
        judge, _ = fit_judge(whole, facts, alone, samples, thresholds)
        feeds, compare = judge.feeds, judge.compare
    else:
        shape: Json = {}
        if not entries:  # the same graph is judged that was packaged, so stricter limits apply
            against, bits = (Against.QUANTIZED, 8) if facts.is_qdq else (Against.FLOAT, 0)
            shape, lost = {"against": against, "bits": bits, "same_graph": True}, None
        # Run the same graph on the CPU only when there is something to compare.
        compare = lambda outputs: Judge(whole, facts, samples, thresholds=thresholds, **shape).compare(outputs)  # noqa: E731
    return PackageJudge(
        pieces=pieces,
        whole=whole,
        facts=facts,
        samples=samples,
        feeds=feeds,
        compare=compare,
        quantization=lost,
        alone=alone,
        emulated=expected.get("emulator"),
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


def _recorded_loss(status: Json) -> Verdict | None:
    """Return the loss by the given encodings measured when the package was made, None if it was not measured."""
    known = [
        {**number, "value": number["quantization"], "words": number["quantization_words"]}
        for number in status.get("numbers", ())
        if number.get("quantization") is not None
    ]
    totals: Json = {"right": None, "reason": "", "cost": "", "sqnr_db": None, "outputs": {}}
    return Verdict.from_json({**totals, "lost_rows": 0.0, "numbers": known, "not_finite": []}) if known else None


def rejudge(package: Path, status: Json) -> tuple[Check, Correctness] | None:
    """Simulate the models of a package in order and compare its outputs with those of the same models in float.

    Returns None for a package in which no model has encodings.
    """
    files = sorted((package / "model").glob("*.onnx"))
    if not any((package / "encodings" / f"{path.stem}.json").is_file() for path in files):
        return None
    try:
        judge = judge_of(package, status, None)
        on, names = judge.samples.described_for_humans, " + ".join(piece.name for piece in judge.pieces)
        if not judge.samples.may_judge:
            check = Check("numerics", ok=True, detail=f"{names}: not judged, {on}")
            return check, Correctness(why=f"the inputs are made up, {on}")
        verdict = judge.judged(run_chain((piece.opened() for piece in judge.pieces), judge.feeds))
        right = judge.right(verdict, "simulated")
        shown = verdict.failures[:3] or tuple(n for n in verdict.numbers if n.passes)[:3]
        words = "; ".join([*([verdict.cost] if verdict.cost else []), *(n.loss for n in shown)])
        where = ""
        if verdict.right is False and judge.alone is not None:
            probes = ModelProbe(judge.whole), ModelProbe(judge.whole, judge.alone)
            found = locate(judge.facts, *probes, judge.samples.varied).first
            where = "" if found is None else f"; first at {found.op_type} {found.node}, {found.output.name}"
        detail = f"{names}: {words or verdict.reason}, on {on}{where}"
        return Check("numerics", ok=verdict.right is not False, detail=detail), right
    except DeploykitError as error:
        why = error.what + (f" ({error.why})" if error.why else "")
        return Check("numerics", ok=False, detail=why), Correctness(why=why, broken=True)

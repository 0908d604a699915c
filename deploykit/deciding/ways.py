"""Builds every way to deploy a model with its encodings, and simulates each: rewritten, falling back, in segments.

What an SDK can do is not known here; ``choosing`` decides, the backend says which ways it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from deploykit.deciding.entry_values import fill_entries
from deploykit.deciding.ranking import Choice, Way, choose
from deploykit.deciding.rewriting import SAFE_REWRITES, Rewriting, rewrite
from deploykit.deciding.segment_proof import ChainProof, SegmentChain, prove_chain
from deploykit.encodings.values import EncodingSet, Float
from deploykit.findings import Confidence
from deploykit.graph.facts import GraphFacts
from deploykit.numerics.judging import Judge, Verdict, made_by
from deploykit.numerics.sessions import Feed, Session
from deploykit.numerics.simulation import Simulator
from deploykit.quantization.borders import find_borders
from deploykit.quantization.float_propagation import FloatPrediction, predict_float_set
from deploykit.quantization.segmentation import Segment, split_model
from deploykit.quantization.segments import partition

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Prepared", "Ways", "prepare_ways"]

_STAGES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("rewrite", (), 1),
    ("rewrite-split", ("split-output", "scale-last"), 2),
    ("rewrite-cut", ("cut-tail",), 3),
)
"""Integer ways: their id, what they do after the safe rewrites, and how much they intrude."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A way with what it is made of: the device's model and entries, the host's tail, the segments."""

    way: Way
    model: ModelProto
    encodings: EncodingSet
    tail: ModelProto | None = None
    rewriting: Rewriting | None = None
    segments: tuple[Segment, ...] = ()
    proof: ChainProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """All ways, the simulation of the encodings as given (dB over all outputs), and the predicted float tensors."""

    prepared: tuple[Prepared, ...]
    reference_db: float
    prediction: FloatPrediction

    def choose(self, *, sdk_mixes_safely: bool = False, mixed: str = "auto") -> tuple[Prepared | None, Choice]:
        """The winner with its parts, and the verdicts."""
        ways = [prepared.way for prepared in self.prepared]
        choice = choose(ways, reference_db=self.reference_db, sdk_mixes_safely=sdk_mixes_safely, mixed=mixed)
        won = choice.winner
        return next((p for p in self.prepared if won is not None and p.way is won), None), choice


def prepare_ways(
    model: ModelProto,
    encodings: EncodingSet,
    feeds: Sequence[Feed],
    *,
    no_rewrite: Iterable[str] = (),
    also_rewrite: Iterable[str] = (),
    max_segments: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Ways:
    """Build and simulate every way. Encodings must be placed; the samples serve as calibration and as judge.

    ``no_rewrite`` names transforms never to use, ``also_rewrite`` further ones to use in every integer way. Raises
    InputError for samples that do not fit and UsageError for unknown names.
    """
    tell = progress or (lambda _line: None)
    facts = _facts(model)
    judge = Judge(model, facts, feeds)
    prediction = predict_float_set(facts, encodings)
    tell("simulating the encodings as they are")
    reference = judge.judge(_simulator(model, encodings, judge).run)
    prepared: list[Prepared] = []
    if not prediction.intended:
        way = Way(id="as-is", kind="integer", confidence=Confidence.OBSERVED, **_numbers(reference))
        prepared.append(Prepared(way=way, model=model, encodings=encodings))
    banned = frozenset(no_rewrite)
    first = [name for name in (*SAFE_REWRITES, *also_rewrite) if name not in banned]
    for identity, further, intrusion in _STAGES:
        tell(f"simulating {identity}")
        names = [*first, *(name for name in further if name not in banned)]
        made = _rewritten(model, encodings, feeds, names, prediction)
        if _adds_something(made, prepared, further, prediction):
            prepared.append(_integer_way(identity, intrusion, made, judge))
    if prediction.intended:
        tell("simulating fallback and segments")
        prepared.append(_fallback_way(model, encodings, prediction, judge))
        prepared.append(_segments_way(model, encodings, prediction, judge, max_segments))
    return Ways(prepared=tuple(prepared), reference_db=reference.overall_db, prediction=prediction)


def _simulator(model: ModelProto, encodings: EncodingSet, judge: Judge) -> Simulator:
    return Simulator(model, encodings, capture=made_by(model, judge.choices))


def _numbers(verdict: Verdict) -> dict[str, Any]:
    """A verdict as arguments of a Way."""
    return {"overall_db": verdict.overall_db, "sqnr_db": verdict.sqnr_db, "lost_rows": verdict.lost}


def _facts(model: ModelProto) -> GraphFacts:
    from deploykit.graph.collect import collect_facts
    from deploykit.graph.loading import wrap_proto

    return collect_facts(wrap_proto(model, path=Path("model.onnx")))


def _rewritten(
    model: ModelProto,
    encodings: EncodingSet,
    feeds: Sequence[Feed],
    names: Sequence[str],
    prediction: FloatPrediction,
) -> Rewriting:
    """The rewritten model with a 16-bit integer entry for whatever is still meant to be float."""
    stated = replace(encodings, float_tensors=encodings.float_tensors | prediction.intended)
    done = rewrite(model, stated, names, feeds)
    assert done.encodings is not None
    known = _facts(done.model).tensors
    left = {name for name in prediction.intended if name in known and _lacks_grid(done.encodings, name)}
    return replace(done, encodings=fill_entries(done.model, done.encodings, left, feeds))


def _lacks_grid(encodings: EncodingSet, name: str) -> bool:
    entry = encodings.get(name)
    return entry is None or isinstance(entry.value, Float)


def _adds_something(
    made: Rewriting, before: Sequence[Prepared], further: tuple[str, ...], prediction: FloatPrediction
) -> bool:
    """A later stage is a way of its own only if one of its own transforms was kept."""
    if further:
        return any(name in made.kept for name in further)
    return bool(made.kept) or bool(prediction.intended) or not before


def _integer_way(identity: str, intrusion: int, made: Rewriting, judge: Judge) -> Prepared:
    assert made.encodings is not None
    simulator = _simulator(made.model, made.encodings, judge)
    tail = None if made.tail is None else Session(made.tail, capture=made_by(made.tail, judge.choices))

    def run(feed: Feed) -> dict[str, npt.NDArray[Any]]:
        values = simulator.run(feed)
        return values if tail is None else {**values, **tail.run({**feed, **values})}

    way = Way(
        id=identity,
        kind="integer",
        rewrites=made.kept,
        intrusion=intrusion,
        confidence=Confidence.OBSERVED,
        **_numbers(judge.judge(run)),
    )
    return Prepared(way=way, model=made.model, encodings=made.encodings, tail=made.tail, rewriting=made)


def _fallback_way(model: ModelProto, encodings: EncodingSet, prediction: FloatPrediction, judge: Judge) -> Prepared:
    """As the device would run it: what is meant to be float, in float16."""
    entries = {name: entry for name, entry in encodings.entries.items() if name not in prediction.intended}
    stated = replace(encodings, entries=entries, float_tensors=prediction.intended)
    way = Way(
        id="fallback",
        kind="fallback",
        float16_tensors=len(prediction.intended),
        borders=len(find_borders(_facts(model), prediction.intended, ignored=prediction.absorbed.keys())),
        **_numbers(judge.judge(_simulator(model, stated, judge).run)),
    )
    return Prepared(way=way, model=model, encodings=stated)


def _segments_way(
    model: ModelProto,
    encodings: EncodingSet,
    prediction: FloatPrediction,
    judge: Judge,
    max_segments: int | None,
) -> Prepared:
    facts = _facts(model)
    cut = partition(facts, prediction.intended, absorbed=list(prediction.absorbed), max_segments=max_segments)
    segments = split_model(model, encodings, cut)
    proof = prove_chain(model, encodings, cut, segments, judge.feeds)
    chain = SegmentChain(segments, quantized=True, half=True, capture=judge.choices)
    floats = sum(len(facts.nodes[i].outputs) for span in cut.segments if span.is_float for i in span.nodes)
    way = Way(
        id="segments",
        kind="segments",
        float16_tensors=floats,
        borders=sum(len(segment.inputs) for segment in segments[1:]),
        segments=len(segments),
        unavailable="" if proof.holds else f"the chain does not equal the whole: {proof}",
        **_numbers(judge.judge(chain.run)),
    )
    return Prepared(way=way, model=model, encodings=encodings, segments=segments, proof=proof)

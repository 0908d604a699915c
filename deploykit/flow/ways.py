"""Builds the ways to deploy a model with its encodings, each when asked for: as it is, rewritten, mixed, in parts.

A way is simulated and judged where the samples allow it. What an SDK can do is not known here, and nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.detection_sets import detection_sets
from deploykit.accuracy.judge.judging import Judge, Numbers, Verdict, made_by
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.simulate.fitting import FIRST, Fitted, fit_judge, settled
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.backward import Evidence, Inference, OpenTensor
from deploykit.encodings.float_sets import FloatPrediction, find_borders, predict_float_set
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.new_grids import range_of, widen
from deploykit.encodings.post_processing import PostProcessing, find_post_processing
from deploykit.encodings.segments import Segment, partition, split_model
from deploykit.encodings.values import EncodingSet, Float
from deploykit.findings import Confidence, listed
from deploykit.flow.entry_values import evidence_of
from deploykit.flow.ranking import Way
from deploykit.flow.rewriting import SAFE_REWRITES, Rewriting, rewrite
from deploykit.flow.segment_proof import ChainProof, SegmentChain, prove_chain
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import view_of
from deploykit.model.ranges import LateBounds
from deploykit.rewrites.contract import load_transform

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    "WIDER_END",
    "Ground",
    "Prepared",
    "as_is",
    "direct",
    "fallback",
    "in_segments",
    "rewritten",
    "simulated",
    "wider_end",
]

WIDER_END = "end-in-int16"
"""The way that gives the post-processing 16-bit grids; ``--no-rewrite`` takes its name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ground:
    """What every way of one model is made from, each thing made once.

    ``first`` are the rewrites to try in every integer way, ``asked`` those of them that the user named. ``fitted``
    is None where the samples allow no judgement: then nothing is simulated, and ways have no numbers.
    """

    model: ModelProto
    encodings: EncodingSet
    facts: GraphFacts
    samples: Samples
    fitted: Fitted | None
    prediction: FloatPrediction
    first: tuple[str, ...] = SAFE_REWRITES
    asked: tuple[str, ...] = ()
    banned: frozenset[str] = frozenset()
    max_segments: int | None = None

    @classmethod
    def of(
        cls,
        model: ModelProto,
        encodings: EncodingSet,
        facts: GraphFacts,
        samples: Samples,
        *,
        asked: Iterable[str] = (),
        banned: Iterable[str] = (),
        max_segments: int | None = None,
    ) -> Ground:
        """Encodings must be placed. Raises UsageError for a rewrite that nobody knows."""
        wanted, never = tuple(asked), frozenset(banned)
        for name in (*wanted, *(never - {WIDER_END})):
            load_transform(name)
        return cls(
            model=model,
            encodings=encodings,
            facts=facts,
            samples=samples,
            fitted=fit_judge(model, facts, encodings, samples) if samples.may_judge else None,
            prediction=predict_float_set(facts, encodings),
            first=tuple(name for name in dict.fromkeys((*SAFE_REWRITES, *wanted)) if name not in never),
            asked=wanted,
            banned=never,
            max_segments=max_segments,
        )

    @property
    def judge(self) -> Judge | None:
        """The judge of every way."""
        return None if self.fitted is None else self.fitted.judge

    @property
    def feeds(self) -> Sequence[Feed]:
        """What rewrites are proven on: the judge's own samples where there are some."""
        return self.samples.feeds if self.judge is None else self.judge.feeds

    def settled(self, verdict: Verdict) -> Verdict:
        """A verdict as far as the samples can carry it."""
        return settled(verdict, self.samples.label)

    def drawn(self, outputs: Sequence[Mapping[str, Numbers]]) -> tuple[Mapping[str, Numbers], ...]:
        """Of what a way gave that which a page may draw: boxes of the first samples, where they are judged as they are.

        Nothing for other models: what they give may be large, and nobody looks at it again.
        """
        given, judge = self.samples.feeds[:FIRST], self.judge
        if judge is None or not self.facts.once("detections", lambda: detection_sets(self.facts)):
            return ()
        same = len(judge.feeds) >= len(given) and all(map(is_, given, judge.feeds))
        kept = outputs[: len(given)] if same else ()
        return tuple({name: values[name] for name in judge.names if name in values} for values in kept)

    @property
    def has_sites(self) -> bool:
        """True when one of the first rewrites finds a place."""
        return any(load_transform(name).match(self.model) for name in self.first)

    @property
    def outputs(self) -> Sequence[Feed] | None:
        """What the float model gives for the samples, None where it was not run."""
        if self.judge is None:
            return None
        # The judge looks at inner tensors too, which a rewrite may do away with.
        return [{name: shown[name] for name in self.judge.names} for shown in self.judge.reference]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A way with what it is made of: the device's model and entries, the host's tail, the segments, and the verdict.

    ``inference`` says where the ranges of new integer entries come from, and which tensors none was found for; ``end``
    is the post-processing that got wider grids, and ``widened`` are its tensors. ``drawn`` is what it gave for the
    first samples, where a page draws that.
    """

    way: Way
    model: ModelProto
    encodings: EncodingSet
    facts: GraphFacts
    tail: ModelProto | None = None
    rewriting: Rewriting | None = None
    segments: tuple[Segment, ...] = ()
    proof: ChainProof | None = None
    verdict: Verdict | None = None
    inference: Inference | None = None
    end: PostProcessing | None = None
    widened: tuple[str, ...] = ()
    drawn: tuple[Mapping[str, Numbers], ...] = ()


def simulated(ground: Ground) -> Verdict | None:
    """The encodings as they were given, None where nothing may be judged."""
    return None if ground.fitted is None else ground.fitted.verdict


def as_is(ground: Ground, verdict: Verdict | None) -> Prepared:
    """Nothing changed: for encodings that mean no tensor to be float. ``verdict`` is that of ``simulated``."""
    way = Way(id="as-is", kind="integer", confidence=Confidence.OBSERVED, **_numbers(verdict))
    drawn = () if ground.fitted is None else ground.drawn(ground.fitted.first)
    made = Prepared(way=way, model=ground.model, encodings=ground.encodings, facts=ground.facts, verdict=verdict)
    return replace(made, drawn=drawn)


def rewritten(
    ground: Ground, identity: str, names: Sequence[str], intrusion: int, base: Rewriting | None
) -> Prepared | None:
    """An integer way: the named rewrites on top of ``base``; None when none of them changes anything.

    Where one of them was asked for, the model as it is stands for that, with what the rewrites were undone for.
    Whatever is still meant to be float gets a 16-bit integer entry, so that no tensor needs float16.
    """
    wanted, feeds = [name for name in names if name not in ground.banned], ground.feeds

    def evidence(model: ModelProto) -> Evidence:
        return evidence_of(model, ground.samples)

    if base is None:
        stated = replace(ground.encodings, float_tensors=ground.encodings.float_tensors | ground.prediction.intended)
        made = rewrite(ground.model, stated, wanted, feeds, outputs=ground.outputs, evidence=evidence)
    else:
        made = rewrite(base.model, base.encodings, wanted, feeds, before=base, evidence=evidence)
    changed = made.kept if base is None else made.kept[len(base.kept) :]
    if not changed and (base is not None or not ground.prediction.intended):
        undone = base is None and bool(ground.asked)
        return replace(as_is(ground, simulated(ground)), rewriting=made) if undone else None
    return _integer_way(ground, identity, intrusion, made)


def _integer_way(ground: Ground, identity: str, intrusion: int, made: Rewriting) -> Prepared:
    assert made.encodings is not None
    facts = ground.facts if made.model is ground.model else facts_of(made.model)
    needed = sorted((ground.prediction.intended | made.open) & facts.tensors.keys())
    left = [name for name in needed if _lacks_grid(made.encodings, name)]
    evidence = evidence_of(made.model, ground.samples)
    inference = infer_entries(made.model, facts, made.encodings, left, evidence=evidence)
    encodings = inference.encodings
    outputs = [] if ground.judge is None else _simulated(ground.judge, made, encodings)
    verdict = None if ground.judge is None else ground.settled(ground.judge.compare(outputs))
    way = Way(
        id=identity,
        kind="integer",
        rewrites=made.kept,
        intrusion=intrusion,
        confidence=Confidence.OBSERVED,
        unavailable=_without_range(inference.open),
        **_numbers(verdict),
    )
    return Prepared(
        way=way,
        model=made.model,
        encodings=encodings,
        facts=facts,
        tail=made.tail,
        rewriting=made,
        verdict=verdict,
        inference=replace(inference, concluded={**made.concluded, **inference.concluded}),
        drawn=ground.drawn(outputs),
    )


def _without_range(tensors: Sequence[OpenTensor]) -> str:
    """Why an integer way is none: it would need grids that nothing given tells."""
    if not tensors:
        return ""
    names, inputs = [tensor.name for tensor in tensors], {name: None for tensor in tensors for name in tensor.inputs}
    hang = f", hanging on {listed(list(inputs))}" if inputs else ""
    return f"the range of {len(names)} tensors is not known{hang}: {listed(names)}"


def wider_end(ground: Ground, base: Prepared) -> Prepared | None:
    """An integer way on top of another: 16-bit grids for the post-processing, over the ranges that the entries have.

    None where there is no post-processing that integers hurt, where all of it has 16 bits already, and where the user
    wants none of it.
    """
    if WIDER_END in ground.banned or ground.judge is None or base.tail is not None:
        return None
    entries = {entry.name: range_of(entry) for entry in base.encodings}
    known = {name: ends for name, ends in entries.items() if ends is not None}
    end = find_post_processing(base.facts, LateBounds(view_of(base.model), known))
    if end is None:
        return None
    encodings, widened = widen(base.facts, base.encodings, end.nodes)
    if not widened:
        return None
    outputs = _simulator(base.model, encodings, ground.judge).runs(ground.judge.feeds)
    verdict, drawn = ground.settled(ground.judge.compare(outputs)), ground.drawn(outputs)
    way = replace(base.way, id=WIDER_END, intrusion=max(base.way.intrusion, 1), **_numbers(verdict))
    return replace(base, way=way, encodings=encodings, verdict=verdict, end=end, widened=widened, drawn=drawn)


def _simulated(judge: Judge, made: Rewriting, encodings: EncodingSet) -> list[dict[str, Numbers]]:
    """What the judge looks at of an integer way, for each of its samples; of one with a tail the tail's too."""
    simulator = _simulator(made.model, encodings, judge)
    tail = None if made.tail is None else Session(made.tail, capture=made_by(made.tail, judge.choices))

    shown = simulator.runs(judge.feeds)
    if tail is None:
        return shown
    ends = tail.runs([{**feed, **values} for feed, values in zip(judge.feeds, shown, strict=True)])
    return [{**values, **end} for values, end in zip(shown, ends, strict=True)]


def fallback(ground: Ground) -> Prepared:
    """The SDK mixes, as the device would run it: what is meant to be float, in float16."""
    prediction = ground.prediction
    entries = {name: entry for name, entry in ground.encodings.entries.items() if name not in prediction.intended}
    stated = replace(ground.encodings, entries=entries, float_tensors=prediction.intended)
    verdict, drawn = None, ground.drawn(())
    if ground.judge is not None:
        outputs = _simulator(ground.model, stated, ground.judge).runs(ground.judge.feeds)
        verdict, drawn = ground.settled(ground.judge.compare(outputs)), ground.drawn(outputs)
    way = Way(
        id="fallback",
        kind="fallback",
        float16_tensors=len(prediction.intended),
        borders=len(find_borders(ground.facts, prediction.intended, ignored=prediction.absorbed.keys())),
        **_numbers(verdict),
    )
    return Prepared(way=way, model=ground.model, encodings=stated, facts=ground.facts, verdict=verdict, drawn=drawn)


def direct(ground: Ground, mixed: Prepared | None) -> Prepared:
    """Without the SDK's converters: a compiler takes each tensor as it is meant. ``mixed`` is the ``fallback`` way.

    The two compute the same; they differ in who has to understand what is meant.
    """
    made = fallback(ground) if mixed is None else mixed
    return replace(made, way=replace(made.way, id="direct", kind="direct", intrusion=1))


def in_segments(ground: Ground) -> Prepared:
    """Parts that are wholly integer or wholly float, chained; the chain is proven equal to the whole."""
    prediction, facts = ground.prediction, ground.facts
    cut = partition(facts, prediction.intended, absorbed=list(prediction.absorbed), max_segments=ground.max_segments)
    segments = split_model(ground.model, ground.encodings, cut)
    proof = prove_chain(ground.model, ground.encodings, cut, segments, ground.feeds)
    verdict = None
    if ground.judge is not None:
        chain = SegmentChain(segments, quantized=True, half=True, capture=ground.judge.choices)
        verdict = ground.settled(ground.judge.judge(chain.run))
    floats = sum(len(facts.nodes[i].outputs) for span in cut.segments if span.is_float for i in span.nodes)
    way = Way(
        id="segments",
        kind="segments",
        float16_tensors=floats,
        borders=sum(len(segment.inputs) for segment in segments[1:]),
        segments=len(segments),
        unavailable="" if proof.holds else f"the chain does not equal the whole: {proof}",
        **_numbers(verdict),
    )
    return Prepared(
        way=way,
        model=ground.model,
        encodings=ground.encodings,
        facts=facts,
        segments=segments,
        proof=proof,
        verdict=verdict,
    )


def _simulator(model: ModelProto, encodings: EncodingSet, judge: Judge) -> Simulator:
    return Simulator(model, encodings, capture=made_by(model, judge.choices))


def _numbers(verdict: Verdict | None) -> dict[str, Any]:
    """A verdict as arguments of a Way; nothing for a way that was not judged."""
    if verdict is None:
        return {}
    return {
        "overall_db": verdict.overall_db,
        "sqnr_db": verdict.sqnr_db,
        "lost_rows": verdict.lost,
        "kept": verdict.kept,
        "right": verdict.right,
    }


def _lacks_grid(encodings: EncodingSet, name: str) -> bool:
    entry = encodings.get(name)
    return entry is None or isinstance(entry.value, Float)

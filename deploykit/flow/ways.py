"""The table of ways to deploy a model with its encodings, and the builder
of each: unchanged, rewritten, mixed, in parts.

A way is simulated and judged if the samples allow it. Nothing here knows an SDK's abilities, and nothing is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Known, Session, run_chain
from deploykit.accuracy.simulate.simulation import Simulator, fit_judge, settled
from deploykit.encodings.backward import Inference
from deploykit.encodings.float_sets import FloatPrediction, find_borders, predict_float_set
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.new_grids import range_of, widen, with_wide_activations
from deploykit.encodings.post_processing import PostProcessing, find_post_processing
from deploykit.encodings.values import EncodingSet, Float
from deploykit.findings import Confidence, listed
from deploykit.findings.records import Feeds, Json, Names, Numbers, Published, Record, published, replace
from deploykit.flow.cure import Rewriting, rewrite
from deploykit.flow.samples import evidence_of
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import view_of
from deploykit.model.ranges import lazy_bounds
from deploykit.model.shape_inference import infer
from deploykit.rewrites import SAFE_REWRITES
from deploykit.rewrites.contract import load_transform

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.segments import Partition, Segment

__all__ = ["WAYS", "WIDER_END", "WIDER_LAYERS", "BuiltWay", "Way", "WayInputs", "segment_pieces"]

WIDER_END = "end-in-int16"
"""The way that gives the post-processing 16-bit grids; the name is also valid for ``--no-rewrite``."""
WIDER_LAYERS = "layers-in-int16"
"""The name for ``--no-rewrite``: some layers of 8 bits get 16-bit activations."""


class Way(Published, kw_only=False):
    """One way to deploy, with its simulated quality. ``sqnr_db`` is per output of the original model.

    ``overall_db`` is NaN for a way that was not judged; ``right`` is the judge's verdict, None without one. ``kept`` is
    the share of detections that are kept, None without any. ``lost_rows`` is the share of rows behind a TopK that only
    one side chose: they are not part of the numbers.

    ``kind`` is ``integer`` (no float16 left), ``fallback`` (the SDK mixes), ``segments`` or ``direct`` (another
    compiler than the SDK's takes the intended mix). ``intrusion`` orders ways by how much they change: 0 nothing, 1
    rewrites or another compiler, 2 other outputs, 3 a host tail.
    """

    id: str
    kind: str
    overall_db: float = math.nan
    sqnr_db: Mapping[str, float] = {}
    float16_tensors: int = 0
    borders: int = 0
    segments: int = 1
    rewrites: Names = ()
    intrusion: int = 0
    confidence: Confidence = Confidence.INFERRED
    unavailable: str = ""
    lost_rows: float = 0.0
    right: bool | None = None
    kept: float | None = None

    def judged(self, verdict: Verdict | None) -> Way:
        """The way with the numbers of a verdict; unchanged without one."""
        if verdict is None:
            return self
        numbers = {"overall_db": verdict.overall_db, "sqnr_db": verdict.sqnr_db, "lost_rows": verdict.lost}
        return replace(self, **numbers, kept=verdict.kept, right=verdict.right)

    def as_published(self) -> Json:
        """The way as a candidate in a plan; the verdict on it is added elsewhere."""
        return published(self, without=("kind", "intrusion", "unavailable", "kept")) | {
            "overall_db": round(self.overall_db, 3),
            "sqnr_db": {name: round(value, 3) for name, value in self.sqnr_db.items()},
            "lost_rows": round(self.lost_rows, 4),
        }


class WayInputs(Record, eq=False):
    """The common inputs of all ways for one model, each made once.

    ``judge`` judges every way, ``reference`` is its verdict on the encodings as given. Both are None if
    the samples allow no judgement: then nothing is simulated, and ways have no numbers. Rewrites are
    proven on ``feeds``. ``first`` are the rewrites to try in every integer way, ``asked`` those of them
    that the user named. ``known`` holds simulated data.
    """

    model: ModelProto
    encodings: EncodingSet
    facts: GraphFacts
    samples: Samples
    judge: Judge | None
    reference: Verdict | None
    feeds: Feeds
    prediction: FloatPrediction
    known: Known
    first: Names = SAFE_REWRITES
    asked: Names = ()
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
        end: ModelProto | None = None,
    ) -> WayInputs:
        """Makes the common inputs; encodings must be placed, ``end`` is the host's
        model. Raises UsageError for an unknown rewrite.
        """
        wanted, never, known = tuple(asked), frozenset(banned), Known()
        for name in (*wanted, *(never - {WIDER_END, WIDER_LAYERS})):
            load_transform(name)
        judge, reference = None, None
        if samples.may_judge:
            judge, reference = fit_judge(model, facts, encodings, samples, known=known, end=end)
        return cls(
            model=model,
            encodings=encodings,
            facts=facts,
            samples=samples,
            judge=judge,
            reference=reference,
            feeds=samples.feeds if judge is None else judge.feeds,
            prediction=predict_float_set(facts, encodings),
            first=tuple(name for name in dict.fromkeys((*SAFE_REWRITES, *wanted)) if name not in never),
            asked=wanted,
            banned=never,
            max_segments=max_segments,
            known=known,
        )

    def wider(self, *, has_float16: bool) -> str:
        """The wider type that keeps what the encodings or the device lose, as simulated, in words.

        "" on derived inputs: they demand more of a range than real data does.
        """
        derived = self.samples.label is Label.DERIVED
        if derived or self.judge is None or self.reference is None:
            return ""
        wide = with_wide_activations(self.encodings)
        tried = [] if wide is self.encodings else [("16-bit activations over the same ranges keep", wide)]
        if has_float16:
            halves = self.encodings.with_entries(replace(e, value=Float("float16")) for e in self.encodings)
            tried.append(("float16 (--precision fp16 with the float model) keeps", halves))
        nearly = ""
        for what, encodings in tried:
            verdict = self.judge.compare(Simulator(self.model, encodings).runs(self.judge.feeds))
            if not verdict.loses:
                return f"{what} it, simulated: {verdict.words}"
            if not verdict.is_short and verdict.is_better_than(self.reference):  # one of eight differs by chance
                nearly = nearly or f"{what} more, simulated: {verdict.words}"
        none = "no wider type of the device keeps it, simulated: look at the model and at the samples"
        return nearly or (none if tried and self.reference.failures else "")

    def judged(self, made: BuiltWay) -> BuiltWay:
        """The way with its model and host tail simulated and judged; unchanged without a judge."""
        if self.judge is None:
            return made
        ends = [] if made.tail is None else [Session(made.tail)]
        outputs = run_chain([Simulator(made.model, made.encodings, known=self.known), *ends], self.judge.feeds)
        verdict = settled(self.judge.compare(outputs), self.samples.label)
        return replace(made, way=made.way.judged(verdict), verdict=verdict)


class BuiltWay(Record, eq=False, kw_only=False):
    """A way with its parts: the device's model and entries, the host's tail, the segments, and the verdict.

    ``inference`` names the sources of new integer entries' ranges, and the tensors without one; ``end`` is the
    post-processing that got wider grids, and ``widened`` are its tensors.
    """

    way: Way
    model: ModelProto
    encodings: EncodingSet
    facts: GraphFacts
    tail: ModelProto | None = None
    rewriting: Rewriting | None = None
    segments: tuple[Segment, ...] = ()
    verdict: Verdict | None = None
    inference: Inference | None = None
    end: PostProcessing | None = None
    widened: Names = ()


def _as_is(common: WayInputs, _built: Sequence[BuiltWay]) -> BuiltWay:
    """The unchanged model: for encodings without intended float tensors."""
    way = Way("as-is", kind="integer", confidence=Confidence.OBSERVED).judged(common.reference)
    return BuiltWay(way, common.model, common.encodings, common.facts, verdict=common.reference)


def _rewritten(common: WayInputs, _built: Sequence[BuiltWay]) -> BuiltWay | None:
    """The first integer way; None if its rewrites change nothing and no tensor is intended as float.

    If a rewrite was requested, the unchanged model is returned instead, with the reasons why the rewrites were undone.
    """
    made = _first_rewriting(common, common.first)
    if made.kept or common.prediction.intended:
        return _integer_way(common, "rewrite", 1, made)
    return replace(_as_is(common, ()), rewriting=made) if common.asked else None


def _rewritten_further(
    common: WayInputs, built: Sequence[BuiltWay], *, identity: str, names: Names, intrusion: int
) -> BuiltWay | None:
    """A further integer way, based on the first one if that changed something; None if nothing more changes."""
    base = next((item.rewriting for item in built if item.way.id == "rewrite"), None)
    if base is None:
        made = _first_rewriting(common, (*common.first, *names))
    else:
        wanted = [name for name in names if name not in common.banned]
        made = rewrite(base.model, base.encodings, wanted, common.feeds, before=base, samples=common.samples)
    return _integer_way(common, identity, intrusion, made) if set(names) & set(made.kept) else None


def _first_rewriting(common: WayInputs, names: Sequence[str]) -> Rewriting:
    stated = replace(common.encodings, float_tensors=common.encodings.float_tensors | common.prediction.meant)
    outputs = None
    if common.judge is not None:  # the judge also looks at inner tensors, which a rewrite may remove
        given = [item.name for item in common.model.graph.output]
        outputs = [{name: shown[name] for name in given} for shown in common.judge.reference]
    wanted = [name for name in names if name not in common.banned]
    return rewrite(common.model, stated, wanted, common.feeds, outputs=outputs, samples=common.samples)


def _integer_way(common: WayInputs, identity: str, intrusion: int, made: Rewriting) -> BuiltWay:
    """Gives each tensor that is still intended as float a 16-bit integer entry, so that none needs float16."""
    assert made.encodings is not None
    facts = common.facts if made.model is common.model else facts_of(made.model)
    needed = sorted((common.prediction.intended | made.open) & facts.tensors.keys())
    held = {entry.name for entry in made.encodings if not isinstance(entry.value, Float)}
    left = [name for name in needed if name not in held]
    evidence = evidence_of(made.model, common.samples)
    inference = infer_entries(made.model, facts, made.encodings, left, evidence=evidence)
    unavailable = ""
    if inference.open:  # needed grids cannot be derived
        names = [one.tensor for one in inference.open]
        inputs = list(dict.fromkeys(name for tensor in inference.open for name in tensor.inputs))
        hang = f", hanging on {listed(inputs)}" if inputs else ""
        unavailable = f"the range of {len(names)} tensors is not known{hang}: {listed(names)}"
    way = Way(
        identity,
        kind="integer",
        rewrites=made.kept,
        intrusion=intrusion,
        confidence=Confidence.OBSERVED,
        unavailable=unavailable,
    )
    built = BuiltWay(
        way,
        made.model,
        inference.encodings,
        facts,
        tail=made.tail,
        rewriting=made,
        inference=replace(inference, concluded={**made.concluded, **inference.concluded}),
    )
    return common.judged(built)


def _wider_end(common: WayInputs, built: Sequence[BuiltWay]) -> BuiltWay | None:
    """The last integer way with 16-bit grids for the post-processing, over the ranges of its entries.

    None if integers damage no post-processing, if all of it has 16 bits already, or if the user excluded it.
    """
    base = next((item for item in reversed(built) if item.way.kind == "integer"), None)
    if base is None or WIDER_END in common.banned or common.judge is None or base.tail is not None:
        return None
    entries = {entry.name: range_of(entry) for entry in base.encodings}
    known = {name: ends for name, ends in entries.items() if ends is not None}
    end = find_post_processing(base.facts, lazy_bounds(view_of(base.model), known))
    if end is None:
        return None
    encodings, widened = widen(base.facts, base.encodings, end.nodes)
    if not widened:
        return None
    way = replace(base.way, id=WIDER_END, intrusion=max(base.way.intrusion, 1))
    return common.judged(replace(base, way=way, encodings=encodings, end=end, widened=widened))


def _fallback(common: WayInputs, _built: Sequence[BuiltWay]) -> BuiltWay:
    """The SDK mixes types as the device would run it: intended float tensors in float16."""
    prediction = common.prediction
    entries = {name: entry for name, entry in common.encodings.entries.items() if name not in prediction.intended}
    stated = replace(common.encodings, entries=entries, float_tensors=prediction.intended)
    way = Way(
        "fallback",
        kind="fallback",
        float16_tensors=len(prediction.intended),
        borders=len(find_borders(common.facts, prediction.intended, ignored=prediction.absorbed.keys())),
    )
    return common.judged(BuiltWay(way, common.model, stated, common.facts))


def _direct(common: WayInputs, built: Sequence[BuiltWay]) -> BuiltWay:
    """A compiler other than the SDK's converters takes each tensor in its intended type.

    It computes the same as ``fallback``, by another tool.
    """
    made = next((item for item in built if item.way.id == "fallback"), None) or _fallback(common, built)
    return replace(made, way=replace(made.way, id="direct", kind="direct", intrusion=1))


def _in_segments(common: WayInputs, _built: Sequence[BuiltWay]) -> BuiltWay:
    """Chained parts that are wholly integer or wholly float; the chain is proven equal to the whole."""
    from deploykit.encodings.segments import partition, split_model

    prediction, facts = common.prediction, common.facts
    cut = partition(facts, prediction.intended, absorbed=list(prediction.absorbed), max_segments=common.max_segments)
    segments = split_model(common.model, common.encodings, cut)
    pieces, verdict, judge = segment_pieces(segments), None, common.judge
    known = None if judge is None else judge.reference
    proof = prove_chain(common.model, common.encodings, cut, segments, pieces, common.feeds, known)
    if judge is not None:
        outputs = run_chain(segment_pieces(segments, half=True, known=pieces), judge.feeds)
        verdict = settled(judge.compare(outputs), common.samples.label)
    way = Way(
        "segments",
        kind="segments",
        float16_tensors=sum(len(facts.nodes[i].outputs) for span in cut.segments if span.is_float for i in span.nodes),
        borders=sum(len(segment.inputs) for segment in segments[1:]),
        segments=len(segments),
        unavailable="" if proof.holds else f"the chain does not equal the whole: {proof}",
    )
    made = BuiltWay(way.judged(verdict), common.model, common.encodings, facts)
    return replace(made, segments=segments, verdict=verdict)


_Build: TypeAlias = Callable[[WayInputs, Sequence[BuiltWay]], "BuiltWay | None"]

WAYS: Mapping[str, tuple[str, _Build]] = {
    "as-is": ("integer", _as_is),
    "rewrite": ("integer", _rewritten),
    WIDER_END: ("integer", _wider_end),
    "rewrite-split": (
        "integer",
        partial(_rewritten_further, identity="rewrite-split", names=("split-output", "scale-last"), intrusion=2),
    ),
    "rewrite-cut": (
        "integer",
        partial(_rewritten_further, identity="rewrite-cut", names=("cut-tail",), intrusion=3),
    ),
    "segments": ("segments", _in_segments),
    "fallback": ("fallback", _fallback),
    "direct": ("direct", _direct),
}
"""Every way by its id: its kind, and the function that builds it from the common inputs and the ways before it."""


class ChainProof(Record):
    """``float_equal`` means bit equality in float32; ``steps`` is the largest difference of the quantized chain.

    It is in steps of each output's own encoding, or in float32 roundings of its largest value without one.
    """

    float_equal: bool
    steps: float

    @property
    def holds(self) -> bool:
        """True if both hold: equal in float, and within one step quantized."""
        return self.float_equal and self.steps <= 1.0


def segment_pieces(
    segments: Sequence[Segment], *, half: bool = False, known: Sequence[Session] | None = None
) -> list[Session]:
    """The sessions that run each segment with its encodings; ``known`` sessions are reused if they are the same.

    Float segments run in float16 with ``half``, else in float32.
    """
    pieces = list[Session]()
    for place, segment in enumerate(segments):
        entries = segment.encodings
        if half and segment.is_float:  # all float tensors, weights included, for a device that computes in float16
            made = {name for name, (dtype, _) in infer(segment.model).types.items() if dtype == "float"}
            stored = {t.name for t in segment.model.graph.initializer if t.data_type == t.FLOAT}
            entries = EncodingSet("", {}, float_tensors=frozenset(made | stored))
        elif known is not None:
            pieces.append(known[place])
            continue
        pieces.append(Session(segment.model) if entries is None else Simulator(segment.model, entries))
    return pieces


def prove_chain(
    model: ModelProto,
    encodings: EncodingSet,
    cut: Partition,
    segments: tuple[Segment, ...],
    pieces: Sequence[Session],
    feeds: Feeds,
    known: Feeds | None = None,
) -> ChainProof:
    """Compares the chain with the whole on every sample: bit for bit in float32, and within one step if quantized.

    The whole is simulated with quantizers at the chain's places (``whole_as_cut``). ``pieces`` are the chain's
    (``segment_pieces``), ``known`` the float model's outputs on these samples, if it was run.
    """
    from deploykit.encodings.segments import whole_as_cut

    uncut, in_force = whole_as_cut(model, encodings, cut, segments)
    names = {item.name for item in model.graph.output}
    plain = run_chain((Session(segment.model) for segment in segments), feeds)
    if any(names - row.keys() for row in plain):  # an output that depends on no input is in no segment
        return ChainProof(float_equal=False, steps=math.inf)
    exact = zip(known or Session(model).runs(feeds), plain, strict=True)
    equal = all(np.array_equal(one[name], two[name], equal_nan=True) for one, two in exact for name in names)
    near = zip(Simulator(uncut, in_force).runs(feeds), run_chain(pieces, feeds), strict=True)
    steps = max((_steps(one[name], two[name], in_force, name) for one, two in near for name in names), default=0.0)
    return ChainProof(float_equal=equal, steps=steps)


def _steps(wanted: Numbers, got: Numbers, encodings: EncodingSet, name: str) -> float:
    with np.errstate(invalid="ignore"):  # equal infinities do not differ
        difference = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
    largest = float(np.nanmax(difference, initial=0.0))
    entry = encodings.get(name)
    if entry is None or isinstance(entry.value, Float):
        scale = float(np.nanmax(np.abs(wanted), initial=0.0)) * float(np.finfo(np.float32).eps)
        return largest / scale if scale else largest
    return largest / float(np.max(entry.value.scale))

"""The stage ``choose``: picks the way to deploy a model with encodings from a table of ways, by measured numbers.

Ways are built best first, until one is proven good. The backend says what a tool chain can do. What cannot be simulated
is chosen by structure. For every way the reason why it won or lost is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from onnx import ModelProto

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.simulate.sessions import Known, Session, run_chain
from deploykit.accuracy.simulate.simulation import Simulator, fit_judge, in_float
from deploykit.backend.backend import AnyBackend, MixedSupport, Same, SharedWork, Situation
from deploykit.backend.status import Correctness, correctness_of
from deploykit.encodings.backward import Inference
from deploykit.encodings.float_sets import predict_float_set
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.values import Encoding, EncodingSet, Float
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings.records import Arrays, Feeds, Json, Names, Record, Tell, field, replace
from deploykit.flow.cure import RewriteStep, Rewriting, rewrite, rewrite_quantized, serialized_tail
from deploykit.flow.samples import evidence_of, samples_of
from deploykit.flow.ways import WAYS, WIDER_END, BuiltWay, Way, WayInputs, segment_pieces
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.model.weights import lean_weights
from deploykit.rewrites.contract import load_transform

__all__ = ["ChosenWay", "choose_way", "run_of"]

_EQUAL_DB = 0.05
"""A smaller difference counts as none: simulations of the same thing on the same samples agree better."""

_TIE_DB = 1.0
"""Ways that differ by less are equally good: the least intrusive one wins."""

_ENOUGH_DB = 80.0
"""No application notices more: a higher number is no reason to change more of a model."""

_BEYOND_DOUBT_DB = 70.0
"""The signal-to-noise ratio of 16-bit integers without any loss."""

_SAME_SHARE = 0.01
"""A smaller share of the detections is no difference between wrong ways."""

_SMALL_LOSS_DB = 3.0
"""The loss against the encodings' own simulation above which float16 is worth its risks."""


class WayChoice(Record):
    """The winner, None if no way is available, and the verdict on every way by id."""

    winner: Way | None = None
    verdicts: Mapping[str, str] = {}
    ways: tuple[Way, ...] = ()

    def to_json(self) -> tuple[Json, ...]:
        """The candidates as published: every way with its numbers and why it won or lost."""
        won = self.winner.id if self.winner is not None else None
        return tuple({**way.to_json(), "won": way.id == won, "why": self.verdicts[way.id]} for way in self.ways)


class BuiltWays(Record, eq=False):
    """The ways that were built, the winner, the encodings' own simulation, and the data ``known`` for all of them.

    ``judge`` has judged them, and ``wider`` simulates which wider type keeps more. There are no ways if there was
    nothing to choose from.
    """

    built: tuple[BuiltWay, ...] = ()
    winner: BuiltWay | None = None
    choice: WayChoice = WayChoice()
    reference: Verdict | None = None
    known: Known = field(default_factory=Known)
    judge: Judge | None = None
    wider: Callable[[], str] = str


class ChosenWay(Record, kw_only=False):
    """The situation to plan for, how it was chosen, and what there is to say about it.

    ``skipped`` says why a simulation was not made although it was due, and what the user can do about it, if known;
    ``samples`` are those judged on. ``simplified`` are the changes of the graph before the choice.
    ``rewriting`` holds the rewrites asked for by name, if there was nothing else to choose. ``halves`` is the verdict
    on a model that runs as it is: in float16, or already quantized. ``filled`` are the entries of gaps: tensors
    without an entry that are not intended as float.
    """

    situation: Situation
    explored: BuiltWays = field(default_factory=BuiltWays)
    samples: Samples | None = None
    skipped: str = ""
    simplified: tuple[RewriteStep, ...] = ()
    rewriting: Rewriting | None = None
    filled: Inference | None = None
    halves: Verdict | None = None

    @property
    def right(self) -> Correctness:
        """The simulation's verdict on the chosen way."""
        won = self.explored.winner
        verdict = self.halves if won is None else won.verdict
        if self.samples is None:
            return Correctness(why=self.skipped or "nothing was simulated")
        if verdict is None:
            return Correctness(why=self.skipped or f"the inputs are made up, {self.samples.described_for_humans}")
        beside = verdict.beside(self.explored.reference)
        return correctness_of(beside, where="simulated", label=str(self.samples.label), count=self.samples.count)

    @property
    def rewrites(self) -> Names:
        """The names of the rewrites in the packaged model."""
        if self.rewriting is not None:
            return self.rewriting.kept
        return () if self.explored.winner is None else self.explored.winner.way.rewrites

    @property
    def explains(self) -> str:
        """How mixing float16 and integers, or a destructive grid, was avoided, in words; "" if it was not."""
        if self.situation.segments:
            return f"the graph is cut into {len(self.situation.segments)} segments, and none mixes float16 and integers"
        won = self.explored.winner
        if won is not None and won.end is not None:
            return f"{won.end} get 16-bit grids"
        if won is not None and won.way.rewrites:
            return f"the graph is rewritten ({', '.join(won.way.rewrites)}), so that no tensor needs float16"
        done = ", ".join(step.name for step in self.simplified)
        return f"the graph is simplified first ({done})" if done else ""


def choose_way(backend: AnyBackend, situation: Situation, shared: SharedWork, tell: Tell) -> ChosenWay:
    """The unchanged situation, or the one proven better.

    If there is nothing to choose, only requested rewrites apply.
    """
    request, encodings, support = situation.request, situation.encodings, None
    insists = request.mixed == "fallback" and not request.rewrite
    # A file with float entries only leaves nothing to choose.
    if (
        encodings is not None
        and not insists
        and any(entry.name in situation.facts.tensors and not isinstance(entry.value, Float) for entry in encodings)
    ):
        support = backend.mixed_support(situation.target, request.adapter_options)
    try:
        if support is None or encodings is None:
            if request.rewrite:
                return _rewritten_as_asked(situation, shared, tell)
            return _as_it_is(backend, situation, shared, tell)
        samples = samples_of(situation, shared)
        given = (Same(situation.model.proto), encodings, samples)
        filled = shared.once(("filled", *given), lambda: _filled(situation, samples))
        if filled is not None:
            situation = replace(situation, encodings=filled.encodings)
        explored = _explored(situation, samples, support, shared, tell)
    except UsageError:
        raise
    except DeploykitError as error:
        told = f"{error.what}{f' ({error.why})' if error.why else ''}{'; ' if error.next else ''}{error.next}"
        return ChosenWay(situation, skipped=told)
    won, changed = explored.winner, situation
    if won is not None and won.way.kind == "direct":
        own = {**request.adapter_options, **support.needs.get("direct", {})}
        changed = replace(situation, request=replace(request, adapter_options=own))
    elif won is not None and won.segments:
        changed = replace(situation, segments=won.segments)
    elif won is not None and won.way.kind != "fallback" and won.way.id != "as-is":
        path = situation.model.path
        changed = replace(
            situation,
            model=shared.once(("won", won), lambda: wrap_proto(won.model, path=path)),
            facts=won.facts,
            encodings=won.encodings,
            rewritten=situation.rewritten or won.model is not situation.model.proto,
            tail=serialized_tail(won.tail, situation.tail),
        )
    return ChosenWay(changed, explored=explored, samples=samples, filled=filled)


_NO_SAMPLES = "nothing was simulated; --calibration DATA lets {} be judged"


def _as_it_is(backend: AnyBackend, situation: Situation, shared: SharedWork, tell: Tell) -> ChosenWay:
    """The unchanged situation.

    A model that runs in float16 or is already quantized is simulated on the user's samples.
    """
    request, facts = situation.request, situation.facts
    runs_so = situation.encodings is None and (facts.is_qdq or request.precision in (None, "fp16"))
    if not (runs_so and backend.offers("mixed_support")):
        return ChosenWay(situation)
    if not request.calibration:
        return ChosenWay(situation, skipped=_NO_SAMPLES.format("it" if facts.is_qdq else "float16"))
    samples, model = samples_of(situation, shared), lean_weights(situation.model)
    end = None if situation.tail is None else ModelProto.FromString(situation.tail)

    def simulated() -> tuple[Judge, Verdict]:
        floats, inner, pairs = in_float(model, facts)
        if pairs is not None:
            tell("simulating the pairs of the model")
            return fit_judge(floats, inner, pairs, samples, end=end)
        tell("simulating float16")
        # Tensors that are float16 in the file are rounded so anyway.
        half, tensors = Float("float16"), facts.tensors.items()
        entries = {name: Encoding(name, half) for name, tensor in tensors if tensor.dtype == "float"}
        judge, verdict = fit_judge(model, facts, EncodingSet("", entries), samples, end=end)
        # Kernels may keep more than float16 inside, and saturate instead of overflowing: a no proves nothing.
        why = f"not judged: rounded to float16 everywhere, {verdict.reason}"
        return judge, replace(verdict, right=None, reason=why) if verdict.right is False else verdict

    judge, verdict = shared.once(("as it is", Same(situation.model.proto), samples), simulated)
    return ChosenWay(situation, samples=samples, halves=verdict, explored=BuiltWays(judge=judge))


def _rewritten_as_asked(situation: Situation, shared: SharedWork, tell: Tell) -> ChosenWay:
    """A float or QDQ model with the requested rewrites, each proven on samples.

    The samples may be arbitrary: two equal models compute the same for any inputs.
    """
    tell("rewriting the model as asked")
    request = situation.request
    names = [name for name in dict.fromkeys(request.rewrite) if name not in request.no_rewrite]
    model, samples = lean_weights(situation.model), samples_of(situation, shared)
    if situation.facts.is_qdq:
        made = rewrite_quantized(model, names, samples)
    else:
        made = rewrite(model, situation.encodings, names, samples.feeds)
    if made.kept:
        wrapped = wrap_proto(made.model, path=situation.model.path)
        situation = replace(
            situation,
            model=wrapped,
            facts=collect_facts(wrapped),
            encodings=made.encodings if situation.encodings is not None else None,
            rewritten=True,
            tail=serialized_tail(made.tail, situation.tail),
        )
    return ChosenWay(situation, rewriting=made)


def _filled(situation: Situation, samples: Samples) -> Inference | None:
    """Entries for gaps: tensors without an entry that are not intended as float, as far as their ranges can
    be derived.
    """
    encodings, facts = situation.encodings, situation.facts
    assert encodings is not None
    gaps = [n for n in sorted(predict_float_set(facts, encodings).unexpected) if not facts.tensors[n].is_weight]
    if not gaps:
        return None
    model = lean_weights(situation.model)
    found = infer_entries(model, facts, encodings, gaps, evidence=evidence_of(model, samples))
    return found if found.concluded else None


def _explored(
    situation: Situation, samples: Samples, support: MixedSupport, shared: SharedWork, tell: Tell
) -> BuiltWays:
    """The ways, built once for all targets with the same request and the same ways to mix."""
    request, encodings = situation.request, situation.encodings
    assert encodings is not None
    most = request.adapter_options.get("max_segments")
    given = (Same(situation.model.proto), encodings, samples)
    able = (support.kinds, support.safe, tuple(support.without.items()), tuple(support.confidence.items()))
    key = ("explored", *given, request.rewrite, request.no_rewrite, most, request.mixed, *able)
    known: BuiltWays | None = shared.known(key)
    if known is not None:
        return known
    common = WayInputs.of(
        lean_weights(situation.model),
        encodings,
        situation.facts,
        samples,
        asked=request.rewrite,
        banned=request.no_rewrite,
        max_segments=most,
        end=None if situation.tail is None else ModelProto.FromString(situation.tail),
    )
    return shared.keep(key, explore(common, support, mixed=request.mixed, tell=tell))


def explore(common: WayInputs, support: MixedSupport, *, mixed: str, tell: Tell) -> BuiltWays:
    """Builds and judges ways until one is proven good. ``mixed`` is the request's value, ``support`` the backend's.

    If no tensor is intended as float, there is nothing to mix or to cut, whatever the request says.
    """
    if not common.prediction.intended and mixed != "refuse":
        mixed = "auto"
    if common.judge is not None:
        tell("simulating the encodings as they are")
    reference_db = math.nan if common.reference is None else common.reference.overall_db
    is_right = common.reference is not None and common.reference.right is True
    built = list[BuiltWay]()
    skipped = dict[str, str]()
    proven = False
    # If float16 was only left open by habit, no number speaks for any other way than an integer one.
    by_habit = common.judge is None and bool(common.prediction.intended) and not common.prediction.meant
    for identity in _order(common, support):
        kind, build = WAYS[identity]
        if kind != {"auto": kind, "refuse": "integer"}.get(mixed, mixed):
            why_not = f"not asked for (--mixed {mixed})"
        else:
            why_not = "" if kind in support.kinds else support.without.get(kind, "not offered here")
        if not why_not and proven:
            proof = "is proven good" if common.judge is not None else "does what the file means"
            why_not = f"not built: a better one {proof}"
        if not why_not and kind == "segments" and mixed == "auto" and support.safe and "fallback" in support.kinds:
            why_not = "not built: this SDK mixes float16 and integers safely"
        if why_not:
            skipped[identity] = why_not
            continue
        tell(f"trying {identity}")
        made = build(common, built)
        if made is not None:
            way = replace(made.way, confidence=support.confidence.get(made.way.kind, made.way.confidence))
            built.append(replace(made, way=way))
            is_meant = by_habit and way.kind == "integer" and not way.unavailable
            proven = proven or is_meant or is_proven(way, reference_db, reference_right=is_right)
    choice = choose(
        [item.way for item in built],
        reference_db=None if common.judge is None else reference_db,
        sdk_mixes_safely=support.safe,
        mixed=mixed,
        means_floats=bool(common.prediction.meant),
    )
    listed = tuple(Way(identity, kind="", unavailable=why) for identity, why in skipped.items())
    won = next((item for item in built if item.way is choice.winner), None)
    choice = replace(choice, verdicts={**skipped, **choice.verdicts}, ways=(*choice.ways, *listed))
    reference = common.reference
    wider = partial(common.wider, has_float16=support.has_float16)
    # Simulated only if the winner also loses too much.
    if reference is not None and won is not None and won.verdict is not None and won.verdict.loses:
        reference = replace(reference, wider=wider())
    return BuiltWays(
        built=tuple(built),
        winner=won,
        choice=choice,
        reference=reference,
        known=common.known,
        judge=common.judge,
        wider=wider,
    )


def _order(common: WayInputs, support: MixedSupport) -> Names:
    """The ways in order: those that change nothing, exact ones, safe ones of the SDK, intrusive ones, mixing ones.

    Without numbers nothing speaks for a more intrusive way, and tensors intended as float stay float.
    """
    judged, further = common.judge is not None, (WIDER_END, "rewrite-split", "rewrite-cut")
    if not common.prediction.intended:
        sites = any(load_transform(name).match(common.model, common.encodings) for name in common.first)
        first = (*(() if common.asked and sites else ("as-is",)), *(("rewrite",) if sites else ()))
        return (*first, *further) if judged else first
    last = ("direct",) if "direct" in support.kinds or "direct" in support.without else ()
    if not judged:
        meant = ("fallback", "segments", "rewrite") if common.prediction.meant else ("rewrite", "fallback", "segments")
        return (*meant, *last)
    if support.safe:
        return ("rewrite", "fallback", *further, "segments", *last)
    return ("rewrite", *further, "segments", "fallback", *last)


def is_proven(way: Way, reference_db: float, *, reference_right: bool) -> bool:
    """True for an integer way that is right and as good as the encodings' own simulation: no other is needed.

    The simulation keeps intended floats in float, so a way that equals it loses nothing against float16. If the
    simulation itself is not right it is no measure, and a way must be beyond doubt.
    """
    wanted = min(reference_db, _ENOUGH_DB) if reference_right else _BEYOND_DOUBT_DB
    reaches = way.overall_db >= wanted - _EQUAL_DB
    return way.kind == "integer" and way.right is True and not way.unavailable and reaches


def choose(
    ways: Sequence[Way],
    *,
    reference_db: float | None = None,
    sdk_mixes_safely: bool = False,
    mixed: str = "auto",
    means_floats: bool = True,
) -> WayChoice:
    """Picks a way. ``reference_db`` is the simulation of the encodings as given, None if nothing is judged.

    ``mixed`` is ``auto``, or ``fallback`` or ``segments`` to insist on that kind, or ``refuse`` to take integer ways
    only. In ``auto``: integer ways that reach the reference; then the SDK's own mix if it is safe; then integer ways
    that lose little; then float16 by confidence and quality. Without numbers: the intended types, by the surest means,
    with the least change; intended float16 (``means_floats``) stays, since the cost of integers is unknown.
    """
    kinds = {"auto": None, "refuse": "integer"}.get(mixed, mixed)
    open_ways = [way for way in ways if not way.unavailable and kinds in (None, way.kind)]
    integer = [way for way in open_ways if way.kind == "integer"]
    mixing = [way for way in open_ways if way.kind != "integer"]
    fallback = [way for way in mixing if way.kind == "fallback" and sdk_mixes_safely]
    rank = min((way.confidence.rank for way in mixing), default=0)
    surest = [way for way in mixing if way.confidence.rank == rank]
    rewritten = [way for way in integer if way.rewrites]
    safe = (fallback, "this SDK mixes float16 and integers safely")
    last = (integer, "no other way is available")
    if reference_db is None:
        stages = (
            (
                [] if means_floats else rewritten or integer,
                "the file means no float16, and every range follows from what it says",
            ),
            safe,
            (surest, "float16 was meant, and this is the surest way to it"),
            (rewritten, "its rewrites are proven equal, and each answers a trouble in the graph"),
            last,
        )
    else:
        least = [min(db, _ENOUGH_DB) - _EQUAL_DB for db in (reference_db, reference_db - _SMALL_LOSS_DB)]
        stages = (
            (
                [way for way in integer if way.overall_db >= least[0]],
                "it needs no float16 and is as good as the encodings' own simulation",
            ),
            safe,
            ([way for way in integer if way.overall_db >= least[1]], "it needs no float16 and loses little"),
            (surest, "float16 is needed, and this is the surest way to it"),
            last,
        )
    verdicts = {way.id: way.unavailable or f"not asked for (--mixed {mixed})" for way in ways}
    members, why = next((stage for stage in stages if stage[0]), ([], ""))
    if not members:
        return WayChoice(verdicts=verdicts, ways=tuple(ways))
    if reference_db is None:
        winner = min(members, key=lambda way: (way.intrusion, way.borders + way.segments, way.id))
        lost = {way.id: way.unavailable or f"not judged; {winner.id} was chosen on structure" for way in ways}
        why = f"not judged; {why}"
    else:
        winner = _best(members)
        lost = {way.id: _lost(way, winner, reference_db) if way in open_ways else verdicts[way.id] for way in ways}
    return WayChoice(winner=winner, verdicts={**lost, winner.id: why}, ways=tuple(ways))


def _best(ways: list[Way]) -> Way:
    """The least intrusive way of those within a decibel of the best, or good enough; then fewer borders and segments.

    A right way goes before any wrong one, whatever the numbers of wrong outputs; if none is right, one that clearly
    keeps more detections goes first.
    """
    most = max((way.kept for way in ways if way.kept is not None), default=0.0)
    keeping = [way for way in ways if way.kept is None or way.kept >= most - _SAME_SHARE]
    ways = [way for way in ways if way.right] or keeping
    top = min(max(way.overall_db for way in ways), _ENOUGH_DB + _TIE_DB)
    close = [way for way in ways if way.overall_db >= top - _TIE_DB]
    return min(close, key=lambda way: (way.intrusion, way.borders + way.segments, -way.overall_db, way.id))


def _lost(way: Way, winner: Way, reference_db: float) -> str:
    """Why an available way did not win."""
    if way.kind != "integer" and winner.kind == "integer":
        return f"{way.float16_tensors} float16 tensors and {way.borders} borders that {winner.id} does without"
    if way.overall_db < min(winner.overall_db, _ENOUGH_DB) - _TIE_DB:
        return f"{_db(way.overall_db)} against {_db(winner.overall_db)} of {winner.id}"
    if winner.kind == "integer" and way.overall_db < reference_db - _EQUAL_DB:
        return f"{_db(way.overall_db)} is less than the encodings' own simulation has ({_db(reference_db)})"
    if way.confidence.rank > winner.confidence.rank:
        return f"{winner.id} is surer to work"
    return f"{winner.id} is as good and changes less"


def _db(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else ("no error" if value > 0 else "no signal")


def run_of(chosen: ChosenWay, feeds: Feeds) -> Sequence[Arrays]:
    """The outputs of a chosen way for each sample."""
    situation, won = chosen.situation, chosen.explored.winner
    if situation.segments:
        return run_chain(segment_pieces(situation.segments, half=True), feeds)
    model = lean_weights(situation.model) if won is None else won.model
    encodings = situation.encodings if won is None else won.encodings
    assert encodings is not None
    tail = [] if won is None or won.tail is None else [Session(won.tail)]
    return run_chain([Simulator(model, encodings, known=chosen.explored.known), *tail], feeds)

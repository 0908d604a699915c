"""Chooses how to deploy a precision mix before anything is planned: removes the need, or leaves it to the backend.

It simulates and compares; what a tool chain can do is asked of the backend, what wins is decided by ``numerics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deploykit.adapter import Backend, MixedSupport, MixesPrecision, Situation
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings import Finding, Severity, SubjectKind
from deploykit.rules import Found, Registry

if TYPE_CHECKING:
    from deploykit.numerics.choosing import Choice, Way
    from deploykit.numerics.ways import Prepared, Ways

__all__ = ["CHOICE_RULES", "Chosen", "choose_way"]

_SAMPLES = 4
_LARGEST = 1 << 30
_POOR_DB = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The situation to plan for, how it was chosen, and what there is to say about it.

    ``skipped`` is why nothing was simulated although there was a reason to; ``measured`` is what the reports show.
    """

    situation: Situation
    choice: Choice | None = None
    prepared: Prepared | None = None
    reference_db: float = 0.0
    skipped: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules of the choice find."""
        return CHOICE_RULES.run(self)

    @property
    def candidates(self) -> tuple[Mapping[str, Any], ...]:
        """Every way with its numbers and why it won or lost."""
        return () if self.choice is None else tuple(self.choice.to_json())

    @property
    def explains(self) -> str:
        """How the mix of float16 and integers was avoided, in words; "" when it was not."""
        if self.situation.segments:
            return f"the graph is cut into {len(self.situation.segments)} segments, and none mixes float16 and integers"
        way = None if self.prepared is None else self.prepared.way
        if way is None or way.kind != "integer" or not way.rewrites:
            return ""
        return f"the graph is rewritten ({', '.join(way.rewrites)}), so that no tensor needs float16"


def choose_way(backend: Backend, situation: Situation, tell: Callable[[str], None]) -> Chosen:
    """The situation as it is, or the rewritten one that simulates better; nothing is done without encodings."""
    support = _support(backend, situation)
    if support is None or not _worthwhile(situation):
        return Chosen(situation=situation)
    if situation.facts.weight_bytes > _LARGEST:
        skipped = f"{situation.facts.weight_bytes / 1e9:.1f} GB of weights are too many to simulate here"
        return Chosen(situation=situation, skipped=skipped)
    try:
        ways = _simulated(situation, tell)
    except UsageError:
        raise
    except DeploykitError as error:
        return Chosen(situation=situation, skipped=error.what + (f" ({error.why})" if error.why else ""))
    return _chosen(situation, _limited(ways, support), support)


def _support(backend: Backend, situation: Situation) -> MixedSupport | None:
    request = situation.request
    if situation.encodings is None or not isinstance(backend, MixesPrecision):
        return None
    if request.mixed == "fallback" and not request.rewrite:
        return None  # insisted on: there is nothing to choose
    return backend.mixed_support(situation.target)


def _worthwhile(situation: Situation) -> bool:
    """True when some tensor is meant to be float among integers, or some rewrite finds a site."""
    from deploykit.encodings.values import Float
    from deploykit.facts.float_propagation import predict_float_set
    from deploykit.numerics.rewriting import SAFE_REWRITES
    from deploykit.numerics.samples import load_small_weights
    from deploykit.transforms.contract import load_transform

    encodings, request = situation.encodings, situation.request
    if encodings is None or all(isinstance(entry.value, Float) for entry in encodings):
        return False
    if not any(entry.name in situation.facts.tensors for entry in encodings):
        return False
    floats = predict_float_set(situation.facts, encodings).intended
    if request.mixed == "segments" and not floats:
        return False  # wholly integer as it is: there is nothing to cut
    if request.rewrite or floats:
        return True
    names = [name for name in SAFE_REWRITES if name not in request.no_rewrite]
    model = load_small_weights(situation.model)
    return any(load_transform(name).match(model) for name in names)


def _simulated(situation: Situation, tell: Callable[[str], None]) -> Ways:
    from deploykit.numerics.samples import gather_samples, load_weights
    from deploykit.numerics.ways import prepare_ways

    request, encodings = situation.request, situation.encodings
    assert encodings is not None
    model = load_weights(situation.model)
    feeds = gather_samples(model, request.calibration, samples=_SAMPLES, encodings=encodings)
    return prepare_ways(
        model,
        encodings,
        feeds,
        no_rewrite=request.no_rewrite,
        also_rewrite=request.rewrite,
        max_segments=request.adapter_options.get("max_segments"),
        progress=tell,
    )


def _limited(ways: Ways, support: MixedSupport) -> Ways:
    """The ways with those marked that this backend does not have for this target, and how sure it is of the others."""
    return replace(ways, prepared=tuple(replace(item, way=_limited_way(item.way, support)) for item in ways.prepared))


def _limited_way(way: Way, support: MixedSupport) -> Way:
    if way.kind not in support.kinds:
        return replace(way, unavailable=support.without.get(way.kind, "not offered here"))
    return replace(way, confidence=support.confidence.get(way.kind, way.confidence))


def _chosen(situation: Situation, ways: Ways, support: MixedSupport) -> Chosen:
    won, choice = ways.choose(sdk_mixes_safely=support.safe, mixed=situation.request.mixed)
    changed = situation
    if won is not None and won.segments:
        changed = replace(situation, segments=won.segments)
    elif won is not None and (won.way.rewrites or won.way.kind == "integer") and won.model is not situation.model.proto:
        changed = _rewritten(situation, won)
    return Chosen(situation=changed, choice=choice, prepared=won, reference_db=ways.reference_db)


def _rewritten(situation: Situation, won: Prepared) -> Situation:
    from deploykit.facts.collect import collect_facts
    from deploykit.model import wrap_proto

    if won.way.id == "as-is" or won.way.kind == "fallback":
        return situation
    model = wrap_proto(won.model, path=situation.model.path)
    return replace(
        situation,
        model=model,
        facts=collect_facts(model),
        encodings=won.encodings,
        rewritten=True,
        tail=None if won.tail is None else won.tail.SerializeToString(deterministic=True),
    )


CHOICE_RULES: Registry[Chosen] = Registry("choice")


def _name(chosen: Chosen) -> str:
    return chosen.situation.request.model.name


@CHOICE_RULES.rule(
    "DK201",
    "graph-rewritten",
    "info",
    what="The packaged model is a rewritten form of the one that was given.",
    why="Huge ranges are often artefacts of how the maths is written; rewritten, integers hold them. Each rewrite was "
    "proven equal in float32 by running both on the samples.",
    fix="compare on your own data (--calibration), or keep the graph with --no-rewrite NAME",
    sources=("ONNX Runtime, run while packaging",),
)
def check_rewritten(chosen: Chosen) -> Iterator[Found]:
    """Which rewrites, and what they brought."""
    if chosen.prepared is None or not chosen.situation.rewritten:
        return
    way = chosen.prepared.way
    data = "the calibration data" if chosen.situation.request.calibration else "random inputs"
    yield Found(
        kind=SubjectKind.MODEL,
        name=_name(chosen),
        message=f"rewritten by {', '.join(way.rewrites) or 'new encodings'}: simulated SQNR {way.overall_db:.1f} dB, "
        f"{chosen.reference_db:.1f} dB as it was given, on {data}",
        evidence={"rewrites": list(way.rewrites), "sqnr_db": way.to_json()["sqnr_db"]},
    )


@CHOICE_RULES.rule(
    "DK202",
    "host-tail",
    "warning",
    what="The end of the model was cut off and runs on the host.",
    why="Outputs of unlike ranges share one grid when they are joined; on the host they keep their own precision.",
    fix="run model/tail.onnx after the device (the run scripts do), or keep it whole with --no-rewrite cut-tail",
    sources=("ONNX Runtime, run while packaging",),
)
def check_tail(chosen: Chosen) -> Iterator[Found]:
    """Said whenever there is a tail."""
    if chosen.situation.tail is not None:
        yield Found(kind=SubjectKind.MODEL, name=_name(chosen), message="model/tail.onnx must run after the device")


@CHOICE_RULES.rule(
    "DK203",
    "not-simulated",
    "warning",
    what="A precision mix that could not be simulated.",
    why="Without numbers no way is better than another; the plan takes the one that changes least.",
    fix="give --calibration data that fits the inputs, or simulate on a larger machine",
    sources=("this run",),
)
def check_simulated(chosen: Chosen) -> Iterator[Found]:
    """The reason why not; an error where segments were insisted on, for only what was simulated is cut."""
    if not chosen.skipped:
        return
    insisted = chosen.situation.request.mixed == "segments"
    yield Found(
        kind=SubjectKind.MODEL,
        name=_name(chosen),
        severity=Severity.ERROR if insisted else None,
        message=f"not simulated{' and therefore not cut into segments' if insisted else ''}: {chosen.skipped}",
    )


@CHOICE_RULES.rule(
    "DK204",
    "mixed-refused",
    "error",
    what="Float16 tensors among integer ones, with --mixed refuse or a kind of mix that is not offered.",
    why="No way that was asked for is available for this target.",
    fix="allow another way: --mixed auto",
    sources=("the request",),
)
def check_refused(chosen: Chosen) -> Iterator[Found]:
    """No way is left."""
    if chosen.choice is not None and chosen.choice.winner is None:
        verdicts = "; ".join(f"{name}: {why}" for name, why in chosen.choice.verdicts.items())
        yield Found(kind=SubjectKind.MODEL, name=_name(chosen), message=f"no way to deploy is left: {verdicts}")


@CHOICE_RULES.rule(
    "DK205",
    "poor-simulation",
    "warning",
    what="The way that was chosen loses much of the signal in simulation.",
    why="Below 20 dB the error is a tenth of the signal and more; detectors and language models rarely survive that.",
    fix="deploykit simulate shows which outputs suffer; use wider activations, or calibrate on real data",
    sources=("simulated while packaging",),
)
def check_quality(chosen: Chosen) -> Iterator[Found]:
    """The overall simulated SQNR."""
    if chosen.prepared is not None and chosen.prepared.way.overall_db < _POOR_DB:
        yield Found(
            kind=SubjectKind.MODEL,
            name=_name(chosen),
            message=f"simulated SQNR {chosen.prepared.way.overall_db:.1f} dB",
        )


@CHOICE_RULES.rule(
    "DK206",
    "segments",
    "warning",
    what="The model is cut into segments that run one after the other.",
    why="Each segment is wholly integer or wholly float, so that no tool has to mix precisions inside one graph. Every "
    "tensor that crosses a border is written by one segment and read by the next.",
    fix="run the segments in order, as the run scripts do, or let the tools mix with --mixed fallback",
    sources=("ONNX Runtime, run while packaging",),
)
def check_segments(chosen: Chosen) -> Iterator[Found]:
    """How many, what crosses, and what runs in float only because of where the cuts are."""
    segments = chosen.situation.segments
    if not segments:
        return
    whole = {*chosen.situation.facts.inputs}
    crossing = sorted({name for segment in segments for name in segment.inputs} - whole)
    changed = [label for segment in segments for label in segment.changed]
    yield Found(
        kind=SubjectKind.MODEL,
        name=_name(chosen),
        message=f"{len(segments)} segments, chained by the run scripts; {len(crossing)} tensors cross between them, "
        f"{len(changed)} operators run in float16 though they have integer encodings",
        evidence={"segments": [segment.name for segment in segments], "crossing": crossing, "changed": changed},
    )

"""Chooses how to deploy a precision mix before anything is planned: removes the need, or leaves it to the backend.

It simulates and compares; what a tool chain can do is asked of the backend, what wins is decided by ``numerics``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deploykit.contract.backend import AnyBackend, MixedSupport, Situation
from deploykit.contract.optional import MixesPrecision
from deploykit.contract.status import Correctness
from deploykit.errors import DeploykitError, UsageError

if TYPE_CHECKING:
    from deploykit.deciding.ranking import Choice, Way
    from deploykit.deciding.ways import Prepared, Ways

__all__ = ["Chosen", "choose_way"]

_SAMPLES = 4
_LARGEST = 1 << 30


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
    def right(self) -> Correctness:
        """What the simulation says of the way that was chosen."""
        return Correctness(why=self.skipped)

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


def choose_way(backend: AnyBackend, situation: Situation, tell: Callable[[str], None]) -> Chosen:
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


def _support(backend: AnyBackend, situation: Situation) -> MixedSupport | None:
    request = situation.request
    if situation.encodings is None or not isinstance(backend, MixesPrecision):
        return None
    if request.mixed == "fallback" and not request.rewrite:
        return None  # insisted on: there is nothing to choose
    return backend.mixed_support(situation.target)


def _worthwhile(situation: Situation) -> bool:
    """True when some tensor is meant to be float among integers, or some rewrite finds a site."""
    from deploykit.deciding.rewriting import SAFE_REWRITES
    from deploykit.encodings.values import Float
    from deploykit.graph.weights import load_small_weights
    from deploykit.quantization.float_propagation import predict_float_set
    from deploykit.rewrites.contract import load_transform

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
    from deploykit.deciding.ways import prepare_ways
    from deploykit.graph.weights import load_weights
    from deploykit.numerics.samples.gathering import gather

    request, encodings = situation.request, situation.encodings
    assert encodings is not None
    model = load_weights(situation.model)
    made = gather(model, situation.facts, calibration=request.calibration, encodings=encodings, most=_SAMPLES)
    return prepare_ways(
        model,
        encodings,
        made.feeds,
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
    from deploykit.graph import wrap_proto
    from deploykit.graph.collect import collect_facts

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

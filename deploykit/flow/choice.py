"""Chooses how to deploy a model with encodings before anything is planned: as it is, rewritten, mixed, or in parts.

It simulates and judges where the samples allow it; what a tool chain can do is asked of the backend, what wins is
decided by ``ranking``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import AnyBackend, MixedSupport, Situation
from deploykit.backend.kept import Kept, Same
from deploykit.backend.status import Correctness, Right
from deploykit.encodings.float_sets import predict_float_set
from deploykit.encodings.values import Float
from deploykit.errors import DeploykitError, UsageError
from deploykit.flow.sampling import samples_of
from deploykit.model import wrap_proto
from deploykit.model.weights import lean_weights, whole_model

if TYPE_CHECKING:
    from deploykit.accuracy.judge.judging import Verdict
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.encodings.backward import Conclusion, Inference, OpenTensor
    from deploykit.flow.exploring import Explored
    from deploykit.flow.ranking import Choice
    from deploykit.flow.rewriting import RewriteStep, Rewriting
    from deploykit.flow.ways import Prepared

__all__ = ["Chosen", "choose_way"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The situation to plan for, how it was chosen, and what there is to say about it.

    ``skipped`` is why nothing was simulated although there was a reason to, ``instead`` what can be done about that, if
    it is known; ``samples`` are what was judged on.
    ``simplified`` is what was done to the graph before anything was chosen.
    ``rewriting`` is what was done because it was asked for by name, where nothing else was to be chosen.
    ``filled`` are the entries of gaps: tensors that nobody meant as float and that the file says nothing about.
    """

    situation: Situation
    explored: Explored | None = None
    samples: Samples | None = None
    skipped: str = ""
    instead: str = ""
    simplified: tuple[RewriteStep, ...] = ()
    rewriting: Rewriting | None = None
    filled: Inference | None = None

    @property
    def choice(self) -> Choice | None:
        """Every way with its verdict."""
        return None if self.explored is None else self.explored.choice

    @property
    def prepared(self) -> Prepared | None:
        """The way that won, with its parts."""
        return None if self.explored is None else self.explored.winner

    @property
    def reference(self) -> Verdict | None:
        """The simulation of the encodings as they were given."""
        return None if self.explored is None else self.explored.reference

    @property
    def concluded(self) -> Mapping[str, Conclusion]:
        """The entries that were not in the file, and where their ranges come from."""
        made = None if self.prepared is None else self.prepared.inference
        found = [inference.concluded for inference in (self.filled, made) if inference is not None]
        return {name: conclusion for concluded in found for name, conclusion in concluded.items()}

    @property
    def open_tensors(self) -> tuple[OpenTensor, ...]:
        """Tensors that some integer way needs a range for and has none; nothing where an integer way won."""
        if self.explored is None or (self.prepared is not None and self.prepared.way.kind == "integer"):
            return ()
        inferences = [item.inference for item in self.explored.built if item.inference is not None]
        return next((inference.open for inference in inferences if inference.open), ())

    @property
    def right(self) -> Correctness:
        """What the simulation says of the way that was chosen."""
        verdict = None if self.prepared is None else self.prepared.verdict
        if self.samples is None or verdict is None:
            return Correctness(why=self.skipped or _why_not(self.samples))
        state = {True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[verdict.right]
        return Correctness(
            state=state,
            label=str(self.samples.label),
            count=self.samples.count,
            against="float",
            why=verdict.reason,
            numbers=tuple(number.to_json() for number in verdict.numbers),
        )

    @property
    def rewrites(self) -> tuple[str, ...]:
        """The names of the rewrites that the packaged model is made with."""
        if self.rewriting is not None:
            return self.rewriting.kept
        return () if self.prepared is None else self.prepared.way.rewrites

    @property
    def candidates(self) -> tuple[Mapping[str, Any], ...]:
        """Every way with its numbers and why it won or lost."""
        return () if self.choice is None else tuple(self.choice.to_json())

    @property
    def explains(self) -> str:
        """How the mix of float16 and integers, or a grid that destroys, was avoided, in words; "" when it was not."""
        if self.situation.segments:
            return f"the graph is cut into {len(self.situation.segments)} segments, and none mixes float16 and integers"
        way = None if self.prepared is None else self.prepared.way
        if self.prepared is not None and self.prepared.end is not None:
            return f"{self.prepared.end} get 16-bit grids"
        if way is None or way.kind != "integer" or not way.rewrites:
            done = ", ".join(step.name for step in self.simplified)
            return f"the graph is simplified first ({done})" if done else ""
        return f"the graph is rewritten ({', '.join(way.rewrites)}), so that no tensor needs float16"


def _why_not(samples: Samples | None) -> str:
    if samples is None:
        return "nothing was simulated; build it and hold its outputs to the float model's (deploykit accuracy compare)"
    return f"give --calibration or --input ({samples.described_for_humans})"


def choose_way(backend: AnyBackend, situation: Situation, kept: Kept, tell: Callable[[str], None]) -> Chosen:
    """The situation as it is, or the one that is proven better; with nothing to choose only what is asked for."""
    support = _support(backend, situation)
    if support is None or not _has_integers(situation):
        return _as_asked(situation, kept, tell) if situation.request.rewrite else Chosen(situation=situation)
    try:
        samples = samples_of(situation, kept)
        given = (Same(situation.model.proto), Same(situation.encodings), Same(samples))
        filled = kept.once(("filled", *given), lambda: _filled(situation, samples))
        situation = situation if filled is None else replace(situation, encodings=filled.encodings)
        explored = _explored(situation, samples, support, kept, tell)
    except UsageError:
        raise
    except DeploykitError as error:
        skipped = error.what + (f" ({error.why})" if error.why else "")
        return Chosen(situation=situation, skipped=skipped, instead=error.next)
    changed = _changed(situation, explored.winner, support, kept)
    return Chosen(situation=changed, explored=explored, samples=samples, filled=filled)


def _as_asked(situation: Situation, kept: Kept, tell: Callable[[str], None]) -> Chosen:
    from deploykit.flow.asked_rewrites import rewrite_as_asked

    tell("rewriting the model as asked")
    try:
        changed, made = rewrite_as_asked(situation, kept)
    except UsageError:
        raise
    except DeploykitError as error:
        return Chosen(situation=situation, skipped=error.what + (f" ({error.why})" if error.why else ""))
    return Chosen(situation=changed, rewriting=made)


def _support(backend: AnyBackend, situation: Situation) -> MixedSupport | None:
    request = situation.request
    if situation.encodings is None:
        return None
    if request.mixed == "fallback" and not request.rewrite:
        return None  # insisted on: there is nothing to choose
    return backend.mixed_support(situation.target, request.adapter_options)


def _has_integers(situation: Situation) -> bool:
    """True when some tensor of the graph has an integer entry: wholly float files leave nothing to choose."""
    entries = situation.encodings or ()
    return any(entry.name in situation.facts.tensors and not isinstance(entry.value, Float) for entry in entries)


def _filled(situation: Situation, samples: Samples) -> Inference | None:
    """Entries for what nobody meant as float and the file leaves out, as far as what is given tells their ranges."""
    from deploykit.encodings.infer import infer_entries
    from deploykit.flow.entry_values import evidence_of

    encodings, facts = situation.encodings, situation.facts
    assert encodings is not None
    gaps = [n for n in sorted(predict_float_set(facts, encodings).unexpected) if not facts.tensors[n].is_weight]
    if not gaps:
        return None
    model = lean_weights(situation.model)
    found = infer_entries(model, facts, encodings, gaps, evidence=evidence_of(model, samples))
    return found if found.concluded else None


def _explored(
    situation: Situation, samples: Samples, support: MixedSupport, kept: Kept, tell: Callable[[str], None]
) -> Explored:
    """Once for all targets for which the same was asked and that can mix the same."""
    request = situation.request
    given = (Same(situation.model.proto), Same(situation.encodings), Same(samples))
    asked = (request.rewrite, request.no_rewrite, request.adapter_options.get("max_segments"), request.mixed)
    known: list[tuple[MixedSupport, Explored]] = kept.once(("explored", *given, *asked), list)
    found = next((explored for able, explored in known if able == support), None)
    if found is None:
        found = _explore(situation, samples, support, tell)
        known.append((support, found))
    return found


def _explore(situation: Situation, samples: Samples, support: MixedSupport, tell: Callable[[str], None]) -> Explored:
    from deploykit.flow.exploring import explore
    from deploykit.flow.ways import Ground

    request, encodings, facts = situation.request, situation.encodings, situation.facts
    assert encodings is not None
    model, most = lean_weights(situation.model), request.adapter_options.get("max_segments")

    ground = Ground.of(
        model, encodings, facts, samples, asked=request.rewrite, banned=request.no_rewrite, max_segments=most
    )
    return explore(ground, support, mixed=request.mixed, tell=tell)


def _changed(situation: Situation, won: Prepared | None, support: MixedSupport, kept: Kept) -> Situation:
    """The situation that the winner stands for; the same one where nothing is changed."""
    if won is None or won.way.kind == "fallback" or won.way.id == "as-is":
        return situation
    if won.way.kind == "direct":
        own = {**situation.request.adapter_options, **support.needs.get("direct", {})}
        return replace(situation, request=replace(situation.request, adapter_options=own))
    if won.segments:
        return replace(situation, segments=won.segments)
    return replace(
        situation,
        model=kept.once(("won", Same(won)), lambda: wrap_proto(won.model, path=situation.model.path)),
        facts=won.facts,
        encodings=won.encodings,
        rewritten=situation.rewritten or won.model is not situation.model.proto,
        tail=None if won.tail is None else whole_model(won.tail).SerializeToString(deterministic=True),
    )

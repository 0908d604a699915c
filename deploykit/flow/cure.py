"""The stage ``cure``: judge a model once, apply the rewrites that its findings name, prove them, and judge once more.

It knows no operator and no device: a rule names the rewrites that remove its finding, and judging again
shows if they did. The proof of a rewrite: the model before and after on the same samples, outputs equal
within the transform's stated number of float32 roundings for each site, or within what roundings of its
inputs change. A rewrite that fails is undone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from onnx import ModelProto, TensorProto

from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.simulate.sessions import Session, reference_outputs
from deploykit.backend.backend import Backend, Same, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.encodings.backward import Evidence, InferredRange
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.rules import EncodingsOnGraph
from deploykit.encodings.values import EncodingSet, Float
from deploykit.errors import DeploykitError, InputError
from deploykit.findings import Finding, Findings, Severity, SubjectKind
from deploykit.findings.records import Arrays, Feeds, Json, Names, Published, Record, Tell, published, replace
from deploykit.flow.samples import evidence_of, samples_of
from deploykit.model.collect import facts_of
from deploykit.model.load import wrap_proto
from deploykit.model.nodes import opset_of
from deploykit.model.pinning import has_stale_shapes, settle_outputs
from deploykit.model.rules import RULES as GRAPH_RULES
from deploykit.model.weights import lean_weights, whole_model
from deploykit.rewrites import CURES, STRUCTURAL
from deploykit.rewrites.contract import NearMiss, Rewritten, Site, load_transform

__all__ = [
    "JudgedSituation",
    "RewriteStep",
    "Rewriting",
    "cure",
    "judge",
    "rewrite",
    "rewrite_quantized",
    "serialized_tail",
]

P = TypeVar("P")
D = TypeVar("D")
_SAMPLES = 2
"""The samples that a cure is run on: it is right by construction, and running it shows that there is no defect."""


class JudgedSituation(Record, Generic[P, D]):
    """A situation, the backend's preparation and plan of it, and the findings of the core's rules (``core``)."""

    situation: Situation
    core: Findings
    prepared: P
    plan: Plan[D]

    @property
    def findings(self) -> Findings:
        """The findings of the core, then those of the backend."""
        return (*self.core, *self.plan.findings)


class Cured(Record, Generic[P, D]):
    """A situation as given, and the one to go on with: the same one if ``steps`` is empty."""

    given: JudgedSituation[P, D]
    judged: JudgedSituation[P, D]
    steps: tuple[RewriteStep, ...] = ()


def judge(backend: Backend[P, D], situation: Situation, shared: SharedWork) -> JudgedSituation[P, D]:
    """Prepares and plans a situation, and collects the findings of all rules."""
    facts, encodings = situation.facts, situation.encodings
    # These findings depend on no device and no request, so all targets share them.
    key = ("core findings", Same(facts), encodings)
    found: Findings | None = shared.known(key)
    if found is None:
        found = GRAPH_RULES.run(facts)
        if encodings is not None:
            found += ENCODING_RULES.run(EncodingsOnGraph(encodings=encodings, facts=facts))
        shared.keep(key, found)
    prepared = backend.prepare(situation, shared)
    core, plan = tuple(map(backend.rated, found)), backend.plan(prepared)
    if any(finding.code == "DK001" for finding in core):
        # Without sizes no rewrite can be proven, and which one fits is not known: they are tried by themselves then.
        told = "give the inputs their sizes first, a rewrite may do it then; if none does: "
        plan = replace(plan, findings=tuple(replace(f, hint=told + f.hint) if f.cure else f for f in plan.findings))
    return JudgedSituation(situation=situation, core=core, prepared=prepared, plan=plan)


def cure(backend: Backend[P, D], given: JudgedSituation[P, D], shared: SharedWork, tell: Tell) -> Cured[P, D]:
    """Applies the cures of unhandled errors and warnings, and the structural rewrites that were asked for by name.

    A model without such findings stays as the user gave it, byte for byte; so does one that its cures do not help. A
    finding that only the cured model has may name further cures: they get a second round.
    """
    cured = Cured(given=given, judged=given)
    request, tried = given.situation.request, set[str]()
    for _ in range(2):
        named = {name for finding in _wrong(cured.judged.findings) for name in finding.cure}
        asked = {name for name in STRUCTURAL if name in request.rewrite}
        names = tuple(name for name in CURES if name in (named | asked) - {*tried, *request.no_rewrite})
        model = cured.judged.situation.model.proto
        if not any(load_transform(name).match(model) for name in names):
            break
        tell("rewriting what stands in the way")
        tried.update(names)
        # All at once; if that helps less than it should, one by one, so that no rewrite stays that removes nothing.
        together = _applied(backend, cured, names, shared)
        if together is not None and (asked & set(names) or _helped(cured, together)):
            cured = together
            continue
        done, gone = (set[str](), [set[str]()]) if together is None else _gone(cured, together)
        idle = done.difference(*gone)  # a rewrite that removes nothing together with others removes nothing alone
        for name in names if len(names) > 1 else ():
            if name in idle:
                continue
            alone = _applied(backend, cured, (name,), shared)
            if alone is not None and _helped(cured, alone):
                cured = alone
    return cured


def _applied(backend: Backend[P, D], before: Cured[P, D], names: Names, shared: SharedWork) -> Cured[P, D] | None:
    """The situation with these rewrites, proven and judged; None if
    nothing changed, or nothing could be run as a proof.
    """
    situation = before.judged.situation
    key = ("does not run", Same(situation.model.proto))

    def make() -> tuple[Situation, tuple[RewriteStep, ...]] | None:
        try:
            feeds = samples_of(situation, shared).feeds[:_SAMPLES]
            problem = shared.known(key)
            done = rewrite(lean_weights(situation.model), situation.encodings, names, feeds, problem=problem)
            if not done.kept and done.problem is not None:
                shared.keep(key, done.problem)
        except DeploykitError:  # later stages report samples that do not fit and a model that does not run
            return None
        if not done.kept:
            return None
        if has_stale_shapes(done.model):  # what hindered shape inference may be gone
            settle_outputs(done.model)
        model = wrap_proto(done.model, path=situation.model.path)
        encodings = done.encodings
        if encodings is not None and situation.encodings is not None:
            # Entries without a tensor in the graph stay: rewriting must not hide them.
            strangers = {one.name: one for one in situation.encodings if one.name not in situation.facts.tensors}
            encodings = replace(encodings, entries={**strangers, **encodings.entries})
        facts = replace(facts_of(done.model), model_name=situation.facts.model_name)
        tail = serialized_tail(done.tail, situation.tail)
        changed = replace(situation, model=model, facts=facts, encodings=encodings, rewritten=True, tail=tail)
        return changed, tuple(step for step in done.steps if step.kept)

    made = shared.once(("cured", Same(situation.model.proto), situation.encodings, names), make)
    if made is None:
        return None
    changed, steps = made
    changed = replace(changed, target=situation.target, request=situation.request)
    return replace(before, judged=judge(backend, changed, shared), steps=(*before.steps, *steps))


def _chained(tail: ModelProto, before: ModelProto) -> ModelProto:
    from deploykit.encodings.cut import chain_models

    return chain_models(tail, before)


def serialized_tail(tail: ModelProto | None, before: bytes | None) -> bytes | None:
    """The model that the host runs: a new tail, followed by the earlier one."""
    if tail is None:
        return before
    whole = tail if before is None else _chained(tail, ModelProto.FromString(before))
    return bytes(whole_model(whole).SerializeToString(deterministic=True))


def _wrong(findings: Iterable[Finding]) -> Findings:
    """The unhandled errors and warnings."""
    return tuple(f for f in findings if f.severity is not Severity.INFO and f.handled is None)


def _helped(before: Cured[P, D], after: Cured[P, D]) -> bool:
    """True if errors or warnings go and none comes, without a change for the worse, and each step removed a finding."""
    done, gone = _gone(before, after)
    # A finding that names several of the steps does not tell which of them removed it.
    if done - {name for names in gone if len(names) == 1 for name in names}:
        return False
    (errors, warnings), (errors_before, warnings_before) = (
        _keys(_wrong(one.judged.findings)) for one in (after, before)
    )
    return errors < errors_before or (errors == errors_before and warnings < warnings_before)


def _gone(before: Cured[P, D], after: Cured[P, D]) -> tuple[set[str], list[set[str]]]:
    """The names of the steps done, and for each finding removed those of them that it names as cures."""
    left = {finding.about for finding in _wrong(after.judged.findings)}
    done = {step.name for step in after.steps[len(before.steps) :]}
    return done, [done & set(finding.cure) for finding in _wrong(before.judged.findings) if finding.about not in left]


def _keys(findings: Iterable[Finding]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(errors, warnings), each as code and subject; without warnings about the encodings file as such.

    A rewrite does not cause these, it only shows them, as when an Einsum becomes a MatMul and its table a weight.
    """
    shown = [one for one in findings if one.blocks or one.subject.kind is not SubjectKind.ENCODINGS]
    return {one.about for one in shown if one.blocks}, {one.about for one in shown if not one.blocks}


_ULP = float(np.finfo(np.float32).eps)
_COARSE_ULPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The relative rounding of output types coarser than float32, which are also rounded so on the way."""
_MOST_LOST_DB = 1.0
"""The most loss allowed: grids of new tensors round once more, while a wrong grid costs tens of dB."""
_LEAST_OPSET = 7
"""The least operator set that ONNX Runtime supports; ONNX's reference computes older ones."""


class RewriteStep(Published):
    """The result of one transform: kept or not and why, its sites, its refusals, and the proof.

    ``ulps`` is the largest difference of any output on the samples, in float32 roundings of that output's largest
    magnitude; None when nothing was run.
    """

    name: str
    kept: bool
    reason: str
    sites: tuple[Site, ...] = ()
    refusals: tuple[NearMiss, ...]
    notes: tuple[str, ...] = ()
    ulps: float | None = None

    def as_published(self) -> Json:
        """The published fields; the sites without the rewrite's own data."""
        sites = [published(site, without=("data",)) for site in self.sites]
        return {"rewrite": self.name, **published(self, without=("name",)), "sites": sites}


class Rewriting(Record):
    """The rewritten model, its encodings, the host model that restores the original outputs, and the steps taken.

    ``open`` are tensors that the rewrites made or changed and whose range is unknown: they have no entry.
    ``concluded`` names the source of the other ranges. ``problem`` is why the model does not run, ``outputs``
    are its outputs on the samples, if it was run.
    """

    model: ModelProto
    encodings: EncodingSet | None
    tail: ModelProto | None
    steps: tuple[RewriteStep, ...]
    open: frozenset[str] = frozenset()
    concluded: Mapping[str, InferredRange] = {}
    problem: InputError | None = None
    outputs: Feeds | None = None

    @property
    def kept(self) -> Names:
        """The names of the transforms that changed something and passed their proof."""
        return tuple(step.name for step in self.steps if step.kept)


def rewrite(
    model: ModelProto,
    encodings: EncodingSet | None,
    names: Iterable[str],
    feeds: Feeds,
    *,
    outputs: Feeds | None = None,
    before: Rewriting | None = None,
    problem: InputError | None = None,
    samples: Samples | None = None,
) -> Rewriting:
    """Applies the named transforms in order. Raises UsageError for an unknown name.

    Ranges of new entries come from the graph and from ``samples``. ``outputs`` are those of ``model`` on the samples,
    if known: every model is run once. ``before`` is the rewriting that made ``model`` on the same samples; its steps,
    tail and outputs are continued. ``problem`` is why the model does not run, if known: running one again that takes
    all memory may end the process.
    """
    state = before or Rewriting(model=model, encodings=encodings, tail=None, steps=(), outputs=outputs)
    outputs = state.outputs
    for name in names:
        transform = load_transform(name)
        matched = transform.match(state.model, state.encodings)
        if not matched:
            step = RewriteStep(name=transform.name, kept=False, reason=matched.reason, refusals=matched.refusals)
            state = replace(state, steps=(*state.steps, step))
            continue
        made = transform.apply(state.model, state.encodings, matched)
        ulps, why, after = None, "", None
        if transform.ulps is not None and not feeds:
            why = "undone: there are no samples to prove it on"
        elif transform.ulps is not None:
            try:
                if problem is None and outputs is None:
                    old = opset_of(state.model) < _LEAST_OPSET
                    outputs = reference_outputs(state.model, feeds) if old else Session(state.model).runs(feeds)
            except InputError as error:  # a model that does not run is not tried again
                problem = error
            try:
                if problem is not None:
                    if name != "double-to-float":  # ONNX Runtime has kernels for few operators on doubles
                        raise problem
                    outputs = reference_outputs(state.model, feeds, 2.0)
                assert outputs is not None
                ulps, after = _prove(made, outputs, feeds)
                allowed = transform.ulps * len(matched.sites)
                if allowed and ulps > allowed:
                    allowed = max(
                        allowed, _OF_ITS_OWN * _own_noise(made.model if problem else state.model, outputs, feeds)
                    )
                if ulps > allowed:
                    why = f"undone: outputs differ by {ulps:.3g} roundings, {allowed:g} are allowed"
            except InputError as error:
                why = f"undone: {error.what} ({error.why})"
        step = RewriteStep(
            name=transform.name,
            kept=not why,
            reason=why or ("it changes values on purpose" if ulps is None else "proven equal on the samples"),
            sites=tuple(replace(site, data=None) for site in matched.sites),  # the rest was for ``apply``
            refusals=matched.refusals,
            notes=made.notes,
            ulps=ulps,
        )
        if why:
            state = replace(state, steps=(*state.steps, step))
            continue
        outputs, problem = after, None
        state = _with_step(state, made, step, samples)
    return replace(state, problem=problem, outputs=outputs)


def _prove(made: Rewritten, before: Feeds, feeds: Feeds) -> tuple[float, Feeds]:
    """The largest difference in roundings, and the outputs of the new model without its tail."""
    outputs = wholes = Session(made.model).runs(feeds)
    if made.tail is not None:
        ends = Session(made.tail).runs([{**feed, **values} for feed, values in zip(feeds, outputs, strict=True)])
        wholes = [{**values, **end} for values, end in zip(outputs, ends, strict=True)]
    found = (difference_in_ulps(wanted, got) for wanted, got in zip(before, wholes, strict=True))
    return max(found, default=0.0), outputs


# An editorial choice: as much as if the input had two bits less.
_OF_ITS_OWN = 4.0


def _own_noise(model: ModelProto, before: Feeds, feeds: Feeds) -> float:
    """The model's own response to inputs that are off by one rounding: a deep model amplifies it by hundreds.

    Steps inside the model cannot be more exact. 0 for inputs that are not float.
    """
    halves = any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)

    def moved(values: Any) -> Any:
        kind = np.dtype(np.float16) if halves else values.dtype
        return np.nextafter(values.astype(kind), kind.type(np.inf)).astype(values.dtype)

    off = [{n: moved(v) if v.dtype.kind == "f" else v for n, v in feed.items()} for feed in feeds]
    return max(map(difference_in_ulps, before, Session(model).runs(off)))


def _with_step(state: Rewriting, made: Rewritten, step: RewriteStep, samples: Samples | None) -> Rewriting:
    """The rewriting with a proven step, and with entries for the tensors it made or changed.

    An old integer entry that no longer holds and has no successor is removed.
    """
    tail = made.tail or state.tail
    if made.tail is not None and state.tail is not None:
        tail = _chained(made.tail, state.tail)
    done = replace(state, model=made.model, encodings=made.encodings, tail=tail, steps=(*state.steps, step))
    if made.encodings is None or not made.touched:
        return done
    found = Evidence() if samples is None else evidence_of(made.model, samples)
    facts, touched = facts_of(made.model), sorted(made.touched)
    inferred = infer_entries(made.model, facts, made.encodings, touched, proven=made.ranges, evidence=found)
    missing = frozenset(one.tensor for one in inferred.open)
    kept = inferred.encodings.entries.items()
    entries = {n: entry for n, entry in kept if n not in missing or isinstance(entry.value, Float)}
    return replace(
        done,
        encodings=replace(inferred.encodings, entries=entries),
        open=state.open | missing,
        concluded={**state.concluded, **inferred.concluded},
    )


def difference_in_ulps(wanted: Arrays, got: Arrays) -> float:
    """The largest difference over all wanted outputs, in roundings of each output's largest value.

    The rounding is that of float32, or of the output's own type if that is coarser. Infinite if NaN and infinities are
    in different places, or a shape differs.
    """

    def ulps(value: Any, other: Any) -> float:
        if isinstance(value, list):  # an output that is a sequence of tensors
            alike = isinstance(other, list) and len(other) == len(value)
            return max(map(ulps, value, other), default=0.0) if alike else math.inf
        if value is None or other is None:  # an optional without a value
            return 0.0 if value is other else math.inf
        if other.shape != value.shape or value.dtype.kind in "OUS":
            return 0.0 if np.array_equal(value, other) else math.inf
        a, b = np.asarray(value, dtype=np.float64), np.asarray(other, dtype=np.float64)
        odd = ~np.isfinite(a)
        if not np.array_equal(a[odd], b[odd], equal_nan=True) or not np.isfinite(b[~odd]).all():
            return math.inf
        largest = float(np.abs(a[~odd]).max(initial=0.0))
        difference = float(np.abs(a[~odd] - b[~odd]).max(initial=0.0))
        ulp = _COARSE_ULPS.get(value.dtype.name, _ULP)
        return difference / (largest * ulp) if largest else (math.inf if difference else 0.0)

    return max((ulps(value, got.get(name)) for name, value in wanted.items()), default=0.0)


def rewrite_quantized(
    model: ModelProto,
    names: Iterable[str],
    samples: Samples,
) -> Rewriting:
    """Rewrites a QDQ model: takes its pairs out, rewrites the float model with its grids, and inserts pairs again.

    The rewrite is proven on the float model; then the quantized one must be as close to it as before. If a rewrite
    cannot keep the grids, the given model is returned, with steps that say why.

    ``model`` must hold its weights. Raises UsageError for an unknown name, InputError for samples that do not fit.
    """
    from deploykit.encodings.insert_qdq import insert_qdq
    from deploykit.encodings.qdq import extract_qdq

    taken = extract_qdq(model)
    made = rewrite(taken.model, taken.encodings, names, samples.feeds, samples=samples)
    if not made.kept:
        return replace(made, model=model, encodings=None)
    problem, quantized = "", None
    if taken.kept:
        name, why = next(iter(taken.kept.items()))
        problem = f"{len(taken.kept)} quantizers cannot be taken out, first {name}: {why}"
    elif made.tail is not None:
        problem = "its outputs change; rewrite the float model, and give its --encodings"
    elif made.open:
        problem = f"nothing tells the range of {min(made.open)}: give data with --calibration"
    else:
        assert made.encodings is not None
        quantized = insert_qdq(made.model, made.encodings, bias="encoded", unsigned_activations=False)
        problem = "; ".join(f"{name}: {why}" for name, why in [*quantized.skipped.items()][:3])
        problem = problem or _loss(taken.model, model, quantized.model, samples.feeds)
    if quantized is None or problem:
        why = f"undone: {problem}"
        steps = tuple(replace(step, kept=False, reason=why) if step.kept else step for step in made.steps)
        return Rewriting(model=model, encodings=None, tail=None, steps=steps)
    return replace(made, model=quantized.model, encodings=None)


def _loss(float_model: ModelProto, given: ModelProto, made: ModelProto, feeds: Feeds) -> str:
    """Why the rewritten model is not as close to the float one as the given model; "" if it is."""
    right, before, after = (Session(model) for model in (float_model, given, made))
    for feed in feeds:
        wanted, was, now = right.run(feed), before.run(feed), after.run(feed)
        for name, value in was.items():
            if np.array_equal(value, now[name], equal_nan=True):
                continue
            old, new = sqnr_db(wanted[name], value), sqnr_db(wanted[name], now[name])
            if not new >= old - _MOST_LOST_DB:
                return f"quantized, {name} has {new:.1f} dB against the float model and had {old:.1f}"
    return ""

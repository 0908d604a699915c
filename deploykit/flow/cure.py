"""The stage ``cure``: judge a model once, apply the rewrites that its findings name, prove them, and judge once more.

It knows no operator and no device: a rule names what takes its finding away, and the rules say whether it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from deploykit.backend.backend import Backend, Progress, Same, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.rules import EncodingsOnGraph
from deploykit.errors import DeploykitError
from deploykit.findings import Finding, Severity, SubjectKind
from deploykit.flow.rewriting import RewriteStep, rewrite
from deploykit.flow.samples import samples_of
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.pinning import has_stale_shapes, settle_outputs
from deploykit.model.rules import RULES as GRAPH_RULES
from deploykit.model.weights import lean_weights
from deploykit.rewrites import CURES, STRUCTURAL
from deploykit.rewrites.contract import load_transform

__all__ = ["Cured", "JudgedSituation", "cure", "judge"]

P = TypeVar("P")
D = TypeVar("D")

_SAMPLES = 2
"""A cure is right by construction; running it shows that the construction has no defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSituation(Generic[P, D]):
    """A situation, what the backend makes of it, and what the rules of the core (``core``) find in it."""

    situation: Situation
    core: tuple[Finding, ...]
    prepared: P
    plan: Plan[D]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those of the core, then those of the backend."""
        return (*self.core, *self.plan.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cured(Generic[P, D]):
    """A situation as it was given, and the one to go on with: the same one where ``steps`` are none."""

    given: JudgedSituation[P, D]
    judged: JudgedSituation[P, D]
    steps: tuple[RewriteStep, ...] = ()


def judge(backend: Backend[P, D], situation: Situation, shared: SharedWork) -> JudgedSituation[P, D]:
    """Prepare and plan a situation, and collect what all rules say of it."""
    key = ("core findings", Same(situation.facts), Same(situation.encodings))

    def find() -> tuple[Finding, ...]:
        """No device and no request is looked at: the same for every target."""
        graph, encodings = GRAPH_RULES.run(situation.facts), situation.encodings
        if encodings is None:
            return graph
        return (*graph, *ENCODING_RULES.run(EncodingsOnGraph(encodings=encodings, facts=situation.facts)))

    found = shared.once(key, find)
    prepared = backend.prepare(situation, shared)
    core = tuple(map(backend.rated, found))
    return JudgedSituation(situation=situation, core=core, prepared=prepared, plan=backend.plan(prepared))


def cure(backend: Backend[P, D], given: JudgedSituation[P, D], shared: SharedWork, tell: Progress) -> Cured[P, D]:
    """Apply the cures of unhandled errors and warnings, and the structural rewrites that were asked for by name.

    A model that the rules take as it is stays what the user gave, byte for byte; so does one that its cures do not
    help. A finding that only the cured model has may name further cures: they get a second round.
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
        # All at once; where that helps less than it should, one by one, so that none stays that takes nothing away.
        together = _applied(backend, cured, names, shared)
        if together is not None and (asked & set(names) or _helped(cured, together)):
            cured = together
            continue
        for name in names if len(names) > 1 else ():
            alone = _applied(backend, cured, (name,), shared)
            if alone is not None and _helped(cured, alone):
                cured = alone
    return cured


def _applied(
    backend: Backend[P, D], before: Cured[P, D], names: tuple[str, ...], shared: SharedWork
) -> Cured[P, D] | None:
    """With these rewrites, proven and judged; None where nothing was changed, or nothing can be run to prove it."""
    situation = before.judged.situation
    key = ("does not run", Same(situation.model.proto))

    def make() -> tuple[Situation, tuple[RewriteStep, ...]] | None:
        try:
            feeds = samples_of(situation, shared).feeds[:_SAMPLES]
            problem = shared.known(key)
            done = rewrite(lean_weights(situation.model), situation.encodings, names, feeds, problem=problem)
            if not done.kept and done.problem is not None:
                shared.keep(key, done.problem)
        except DeploykitError:  # samples that do not fit, a model that does not run: later stages say so, with reason
            return None
        if not done.kept:
            return None
        if has_stale_shapes(done.model):  # what was in the way of inference may be gone
            settle_outputs(done.model)
        model = wrap_proto(done.model, path=situation.model.path)
        encodings = done.encodings
        if encodings is not None and situation.encodings is not None:
            # Entries that never had a tensor in the graph stay: rewriting it must not hide them.
            strangers = {one.name: one for one in situation.encodings if one.name not in situation.facts.tensors}
            encodings = replace(encodings, entries={**strangers, **encodings.entries})
        changed = replace(situation, model=model, facts=collect_facts(model), encodings=encodings, rewritten=True)
        return changed, tuple(step for step in done.steps if step.kept)

    made = shared.once(("cured", Same(situation.model.proto), Same(situation.encodings), names), make)
    if made is None:
        return None
    changed, steps = made
    changed = replace(changed, target=situation.target, request=situation.request)
    return replace(before, judged=judge(backend, changed, shared), steps=(*before.steps, *steps))


def _wrong(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The errors and warnings that nothing handles."""
    return tuple(f for f in findings if f.severity is not Severity.INFO and f.handled is None)


def _helped(before: Cured[P, D], after: Cured[P, D]) -> bool:
    """Errors go and none comes; or no error changes, and warnings go and none comes. Each step took something away."""
    wrong = _wrong(before.judged.findings)
    left = {(finding.code, finding.subject.name) for finding in _wrong(after.judged.findings)}
    done = {step.name for step in after.steps[len(before.steps) :]}
    gone = [done & set(finding.cure) for finding in wrong if (finding.code, finding.subject.name) not in left]
    # A finding that names several of the steps does not tell which of them took it away.
    if done - {name for names in gone if len(names) == 1 for name in names}:
        return False
    (errors, warnings), (errors_before, warnings_before) = _keys(_wrong(after.judged.findings)), _keys(wrong)
    return errors < errors_before or (errors == errors_before and warnings < warnings_before)


def _keys(findings: Iterable[Finding]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(errors, warnings), each by code and subject; without warnings about the file of encodings as such.

    No rewrite makes one: it only shows, as where an Einsum becomes a MatMul and its table a weight.
    """
    errors: set[tuple[str, str]] = set()
    warnings: set[tuple[str, str]] = set()
    for finding in findings:
        if finding.subject.kind is SubjectKind.ENCODINGS and not finding.blocks:
            continue
        (errors if finding.blocks else warnings).add((finding.code, finding.subject.name))
    return errors, warnings

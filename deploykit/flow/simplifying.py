"""Simplifies a model before rules judge it, where that takes a finding away; every backend gets the same one.

Structural rewrites only, each proven equal. It knows no operator and no device: what counts is what the rules say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deploykit.backend.backend import Situation
from deploykit.backend.kept import Kept, Same
from deploykit.errors import DeploykitError
from deploykit.findings import Finding, Severity
from deploykit.flow.rewriting import RewriteStep, Rewriting, rewrite
from deploykit.flow.sampling import samples_of
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights
from deploykit.rewrites.contract import load_transform

if TYPE_CHECKING:
    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.encodings.values import EncodingSet

__all__ = ["REPAIRS", "STRUCTURAL_REWRITES", "Simplified", "simplify"]

STRUCTURAL_REWRITES = (
    *("raise-opset", "batch-of-one", "resolve-sequences", "simplify"),
    *("index-from-front", "integer-remainder", "merge-axes"),
)
"""Rewrites that keep every value, in the order in which they are tried."""

REPAIRS = (
    *("fuse-gelu", "fuse-hardswish", "expand-before-norm", "divide-by-root", "norm-statistics", "norm-rows"),
    *("last-index", "pool-by-taps", "cumulate-forward", "product-by-halves", "batchnorm-rank", "longer-axes"),
    *("write-out-functions", "einsum-to-matmul", "global-pool", "gathernd-to-gather", "flat-index", "mask-constant"),
)
"""Rewrites that some compilers need and others must not be given: each is tried alone, after the others."""

_SAMPLES = 2
"""A structural rewrite is right by construction; running it shows that the construction has no defect."""

Judge = Callable[[Situation], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simplified:
    """The situation to go on with, and what was done to get there; no steps where it is the one that was given."""

    situation: Situation
    steps: tuple[RewriteStep, ...] = ()


def simplify(situation: Situation, kept: Kept, judge: Judge) -> Simplified:
    """The simplified situation where ``judge`` finds less wrong with it, or where a rewrite was asked for by name.

    A model that the rules take as it is stays what the user gave, byte for byte.
    """
    made = _simplified(situation, kept, judge)
    for name in REPAIRS:
        if name not in situation.request.no_rewrite:
            made = _repaired(made, name, kept, judge)
    return made


def _simplified(situation: Situation, kept: Kept, judge: Judge) -> Simplified:
    request = situation.request
    names = tuple(name for name in STRUCTURAL_REWRITES if name not in request.no_rewrite)
    before = _wrong(judge(situation))
    asked = set(names) & set(request.rewrite)
    if not (before or asked):
        return Simplified(situation=situation)
    made = _tried(situation, names, kept)
    better = made is not None and (asked or _less_wrong(judge(made.situation), before))
    return made if made is not None and better else Simplified(situation=situation)


def _repaired(start: Simplified, name: str, kept: Kept, judge: Judge) -> Simplified:
    """With one more rewrite, where the rules find less wrong with it."""
    if not load_transform(name).match(start.situation.model.proto):
        return start
    before = _wrong(judge(start.situation))
    made = _tried(start.situation, (name,), kept) if before else None
    if made is None or not _less_wrong(judge(made.situation), before):
        return start
    return replace(made, steps=(*start.steps, *made.steps))


def _tried(situation: Situation, names: tuple[str, ...], kept: Kept) -> Simplified | None:
    """The situation with these rewrites, made once for all targets; None where they change nothing."""
    if not any(load_transform(name).match(situation.model.proto) for name in names):
        return None
    key = ("simplified", Same(situation.model.proto), Same(situation.encodings), names)
    made = kept.once(key, lambda: _rewritten(situation, names, kept))
    if made is None:
        return None
    return replace(made, situation=replace(made.situation, target=situation.target, request=situation.request))


def _wrong(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The errors and warnings that nothing handles."""
    return tuple(f for f in findings if f.severity is not Severity.INFO and f.handled is None)


def _less_wrong(findings: Iterable[Finding], before: Iterable[Finding]) -> bool:
    """Errors go and none comes; or no error changes, and warnings go and none comes."""
    (errors, warnings), (errors_before, warnings_before) = _sorted(_wrong(findings)), _sorted(before)
    return errors < errors_before or (errors == errors_before and warnings < warnings_before)


def _sorted(findings: Iterable[Finding]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(errors, warnings), each by code and subject."""
    errors: set[tuple[str, str]] = set()
    warnings: set[tuple[str, str]] = set()
    for finding in findings:
        (errors if finding.blocks else warnings).add((finding.code, finding.subject.name))
    return errors, warnings


def _rewritten(situation: Situation, names: tuple[str, ...], kept: Kept) -> Simplified | None:
    """The rewritten situation; None where nothing was changed, or nothing can be run to prove it."""
    try:
        feeds = samples_of(situation, kept).feeds[:_SAMPLES]
        done = _proven(situation, names, feeds)
    except DeploykitError:  # samples that do not fit, a model that does not run: later stages say so, with the reason
        return None
    if not done.kept:
        return None
    model = wrap_proto(done.model, path=situation.model.path)
    encodings = _with_strangers(done.encodings, situation)
    changed = replace(situation, model=model, facts=collect_facts(model), encodings=encodings, rewritten=True)
    return Simplified(situation=changed, steps=tuple(step for step in done.steps if step.kept))


def _proven(situation: Situation, names: tuple[str, ...], feeds: Sequence[Feed]) -> Rewriting:
    return rewrite(lean_weights(situation.model), situation.encodings, names, feeds)


def _with_strangers(encodings: EncodingSet | None, given: Situation) -> EncodingSet | None:
    """With the entries that never had a tensor in the graph: simplifying it must not hide them."""
    if encodings is None or given.encodings is None:
        return None
    strangers = {entry.name: entry for entry in given.encodings if entry.name not in given.facts.tensors}
    return replace(encodings, entries={**strangers, **encodings.entries})

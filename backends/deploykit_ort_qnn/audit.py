"""Runs each distinct kernel of a prepared model on the emulator against ONNX Runtime on the CPU, and judges it.

Kernels are compiled side by side in child processes; what was measured of one is remembered for every model that has
it. It changes no model, and chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from deploykit.backend.audits import Audit, AuditedKernel
from deploykit.findings import Finding
from deploykit.model.collect import facts_of
from deploykit_ort_qnn.audit_budget import affordable, within_reach
from deploykit_ort_qnn.audit_units import Kernel, kernels_of
from deploykit_ort_qnn.compiler import installed_wheel
from deploykit_ort_qnn.hosts import toolchain_host
from deploykit_ort_qnn.in_place_of import mended
from deploykit_ort_qnn.kernel_bench import Answer, Bench, bench_of, judged, verdict_on
from deploykit_ort_qnn.milder_inputs import spared
from deploykit_ort_qnn.prepare import Draft, whole_model
from deploykit_ort_qnn.repairs.driver import Outlook, outlooks
from deploykit_ort_qnn.repairs.trying import repairs_of
from deploykit_ort_qnn.rules import counted
from deploykit_ort_qnn.rules.audit import BEYOND, RULES
from deploykit_qualcomm.atlas.suspects import suspects_in
from deploykit_qualcomm.atlas.verdicts import Verdict

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.backend.backend import Situation

__all__ = ["audit_draft", "audit_model", "settled_by", "with_count"]

_MOST_TRIED = 24
"""Kernels that are not right of which other ways are tried."""
_FAULTS = (Verdict.WRONG, Verdict.REFUSED, Verdict.NARROWED)
_SUSPECT = {"quick": ("wrong",), "auto": ("wrong", "narrowed", "refused")}
"""Whom a row says what of."""
_LARGEST = 1 << 29
"""Bytes of weights beyond which a model is not loaded unless all of its kernels are asked for."""


def audit_draft(draft: Draft, *, level: str, progress: Callable[[str], None], given: Situation | None = None) -> Audit:
    """The kernels of what a package would compile.

    ``full`` are all of them, ``auto`` as many as are affordable, ``quick`` those that a row calls wrong. With ``given``
    the kernels of a small model as it was given are looked at too: what is wrong with them is told as mended.
    """
    host, installed = toolchain_host(draft.wheel), installed_wheel()
    wheel = installed if host is None else dict(host.identity)
    if wheel is None or wheel["wheel"] != draft.wheel.version or draft.soc_model is None:
        return Audit(level=level, by=f"nobody: the compiler of QAIRT {draft.wheel.sdk} is not here")
    facts = draft.situation.facts
    if level == "auto" and host is not None and host.emulator is None:
        level = "quick"  # its compiler runs under another system's loader: few kernels would be soon done
    if level == "auto" and facts.weight_bytes > _LARGEST:
        found = Audit(level=level, by="nobody: its weights are not loaded for it", left_out=len(facts.nodes))
        return replace(found, findings=tuple(RULES.run(found)))
    model = whole_model(draft.situation) if draft.prepared is None else draft.prepared.model
    suspects = frozenset() if level == "full" else _suspects(model, draft.wheel.sdk, _SUSPECT[level])
    bench = bench_of(wheel, host, draft.soc_model, progress, "auditing kernels")
    run = partial(audit_model, bench=bench, by=f"QAIRT {wheel['qairt']} for soc_model {draft.soc_model}")
    found = run(model, level=level, suspects=suspects)
    as_given: tuple[Finding, ...] = ()
    if given is not None and level != "quick" and given.facts.is_qdq and not found.left_out:
        whole = whole_model(given)
        first = run(whole, level="auto", suspects=frozenset(), ways=False)
        as_given = tuple(mended(RULES.run(first), first, whole, found, model))
    findings = (*RULES.run(found), *as_given)
    return replace(found, findings=findings, settled=settled_by(found, draft.lint))


def with_count(audit: Audit, draft: Draft) -> Audit:
    """With the finding that says how many kernels were run: for whoever tells nothing else of the whole audit."""
    nodes = {finding.subject.name for finding in audit.findings if finding.handled} | repairs_of(draft.options).keys()
    return replace(
        audit, findings=(*audit.findings, *counted.RULES.run(counted.Counted(audit=audit, otherwise=len(nodes))))
    )


def _suspects(model: ModelProto, release: str, verdicts: tuple[str, ...]) -> frozenset[str]:
    """The labels of nodes that a row of the atlas speaks so of."""
    return suspects_in(model, release, verdicts=verdicts)


def settled_by(audit: Audit, lint: Iterable[Finding]) -> dict[tuple[str, str], str]:
    """What was said of kernels like those of nodes whose own ones were run, and are right, or fail in another way.

    Right are those that are so in every place. That an operator is never taken is said once, of the first node: there
    all of that kind must be right.
    """
    named = [(kernel, {kernel.node, *kernel.nodes}) for kernel in audit.kernels]
    alone = {name: kernel for kernel, names in named if kernel.place == "alone" for name in names}
    open_ = {
        name for kernel, names in named if kernel.verdict != "right" for name in names if kernel.shown_by != BEYOND
    }
    doubtful = {alone[name].operators for name in open_ & alone.keys()}
    settled = {}
    for finding in lint:
        kernel = alone.get(finding.subject.name)
        if kernel is None:
            continue
        fails_otherwise = kernel.verdict in _FAULTS and kernel.verdict != finding.evidence.get("verdict")
        refuted = {
            "QNN320": finding.subject.name not in open_ or fails_otherwise,
            "QNN214": finding.subject.name not in open_,
            "QNN284": kernel.operators not in doubtful and not audit.left_out,
        }
        if refuted.get(finding.code):
            is_now = "right" if kernel.shown_by == BEYOND else kernel.verdict
            how = f"this model's own kernel was run over its grid ({audit.by}): it is {is_now}"
            settled[finding.code, finding.subject.name] = how
    return settled


def audit_model(
    model: ModelProto, *, level: str, bench: Bench, by: str, suspects: Set[str], ways: bool = True
) -> Audit:
    """Each distinct kernel of a model that its level looks at, with its verdict; ``suspects`` are labels of nodes.

    With ``ways`` those that are not right are done in other ways too, to tell in which they are.
    """
    only, beyond = within_reach(facts_of(model), suspects) if level == "auto" else (suspects, 0)
    there = list(kernels_of(model, only=None if level == "full" else only))
    kernels = list(affordable(there, suspects)) if level == "auto" else there
    known = bench.known(kernels)
    found = {kernel.prefix: (kernel, answer) for kernel, answer in bench.as_they_are(kernels, known)}
    audited = [_audited(*found[kernel.prefix]) for kernel in kernels]
    faulty = [place for fault in _FAULTS for place, one in enumerate(audited) if one.verdict == fault][:_MOST_TRIED]
    names = {name for place in faulty for name in kernels[place].nodes}
    outlook = outlooks(model, names, bench, faults=_FAULTS) if ways and names else ()
    _complete(audited, {place: kernels[place] for place in faulty}, outlook, bench)
    return Audit(
        level=level, by=by, kernels=tuple(audited), known=len(known), left_out=beyond + len(there) - len(kernels)
    )


def _audited(kernel: Kernel, answer: Answer | None) -> AuditedKernel:
    verdict, why, measured = judged(kernel, answer)
    return AuditedKernel(
        node=kernel.nodes[0],
        nodes=kernel.nodes,
        operators=kernel.operators,
        type=kernel.type,
        place=kernel.place,
        verdict=verdict,
        count=len(kernel.nodes),
        why=why,
        measured=measured,
    )


def _complete(
    audited: list[AuditedKernel], faulty: Mapping[int, Kernel], outlook: Iterable[Outlook], bench: Bench
) -> None:
    """Adds to those that are not right in which ways they are, and what alone shows it."""
    ways = {name: tuple(repair.words for repair in one.repairs) for one in outlook for name in one.nodes}
    milder = {kernel.prefix: (what, kernel) for what, kernel in spared(faulty.values())}
    answers = bench.as_they_are([kernel for _, kernel in milder.values()])
    shown = {one.prefix: milder[one.prefix][0] for one, answer in answers if verdict_on(one, answer) is Verdict.RIGHT}
    for place, kernel in faulty.items():
        only = shown.get(kernel.prefix, "")
        audited[place] = replace(audited[place], ways=ways.get(kernel.nodes[0]), shown_by=only)

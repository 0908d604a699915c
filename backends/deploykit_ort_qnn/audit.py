"""Runs each distinct kernel of a prepared model on the emulator against ONNX Runtime on the CPU, and judges it.

Kernels are compiled side by side in child processes; what was measured of one is remembered for every model that has
it. It changes no model, and chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deploykit.contract.audits import Audit, AuditedKernel
from deploykit.findings import Finding, SubjectKind
from deploykit.graph.collect import facts_of
from deploykit.system.answers import LARGEST_ASKED, answered
from deploykit.system.remembered import Remembered, key_of
from deploykit_ort_qnn.atlas.deviations import Deviation, deviation
from deploykit_ort_qnn.atlas.together import Ran, run_together
from deploykit_ort_qnn.audit_budget import affordable, within_reach
from deploykit_ort_qnn.audit_units import Kernel, kernels_of, within_grids
from deploykit_ort_qnn.audit_ways import FORMS, other_forms
from deploykit_ort_qnn.compiler import installed_wheel
from deploykit_ort_qnn.hosts import Host, toolchain_host
from deploykit_ort_qnn.prepare import CODE, Draft, whole_model
from deploykit_ort_qnn.rules.audit import RULES
from deploykit_qualcomm.atlas.suspects import suspects_in
from deploykit_qualcomm.atlas.verdicts import Verdict, limits_of, verdict_of

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.contract.backend import Situation

__all__ = ["audit_draft", "audit_model", "settled_by"]

_FORM = 5
"""Of what is remembered: another number forgets everything that was measured in another way."""
_TOGETHER = 48
_MOST_TRIED = 24
"""Kernels that are not right of which other forms are run too."""
_FORMS_FROM = 1_000_000
"""Where the prefixes of other forms begin: those of kernels never come so far."""
_FAULTS = ("wrong", "narrowed", "refused")
_SUSPECT = {"quick": ("wrong",), "auto": _FAULTS}
"""Whom a row says what of."""
_LARGEST = 1 << 29
"""Bytes of weights beyond which a model is not loaded unless all of its kernels are asked for."""
_RAN = ("taken", "refused")
"""What is remembered: a death or a time that ran out may have had another reason."""


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
    run = partial(audit_model, wheel=wheel, host=host, soc_model=draft.soc_model, progress=progress)
    found = run(model, level=level, suspects=suspects)
    findings = tuple(RULES.run(found))
    if given is not None and level != "quick" and given.facts.is_qdq and not found.left_out:
        first = run(whole_model(given), level="auto", suspects=frozenset())
        findings += tuple(_mended(RULES.run(first), findings))
    return replace(found, findings=findings, settled=settled_by(found, draft.lint))


def _suspects(model: ModelProto, release: str, verdicts: tuple[str, ...]) -> frozenset[str]:
    """The labels of nodes that a row of the atlas speaks so of; kept between runs: every node of a model is asked."""

    def look() -> frozenset[str]:
        return suspects_in(model, release, verdicts=verdicts)

    if model.ByteSize() > LARGEST_ASKED:
        return look()
    return answered("suspects", (model, release, verdicts), look, code=CODE)


def _mended(before: Iterable[Finding], after: Iterable[Finding]) -> Iterator[Finding]:
    """What was wrong with kernels as they were given, where nothing is wrong with those of what is compiled instead."""
    left = {finding.subject.name for finding in after}
    for finding in before:
        if finding.subject.kind is SubjectKind.NODE and finding.subject.name not in left:
            yield finding.with_handled("the preparation writes it in another form, of which no kernel is wrong")


def settled_by(audit: Audit, lint: Iterable[Finding]) -> dict[tuple[str, str], str]:
    """What was said of kernels like those of nodes whose own ones were run, and are right, or fail in another way.

    Right are those that are so in every place. That an operator is never taken is said once, of the first node: there
    all of that kind must be right.
    """
    named = [(kernel, {kernel.node, *kernel.nodes}) for kernel in audit.kernels]
    alone = {name: kernel for kernel, names in named if kernel.place == "alone" for name in names}
    open_ = {name for kernel, names in named if kernel.verdict != "right" for name in names}
    doubtful = {alone[name].operators for name in open_ & alone.keys()}
    settled = {}
    for finding in lint:
        kernel = alone.get(finding.subject.name)
        if kernel is None:
            continue
        fails_otherwise = kernel.verdict in _FAULTS and kernel.verdict != finding.evidence.get("verdict")
        refuted = {
            "QNN320": finding.subject.name not in open_ or fails_otherwise,
            "QNN284": kernel.operators not in doubtful and not audit.left_out,
        }
        if refuted.get(finding.code):
            how = f"this model's own kernel was run over its grid ({audit.by}): it is {kernel.verdict}"
            settled[finding.code, finding.subject.name] = how
    return settled


def audit_model(
    model: ModelProto,
    *,
    level: str,
    wheel: Mapping[str, str],
    host: Host | None,
    soc_model: int,
    suspects: Set[str],
    progress: Callable[[str], None],
) -> Audit:
    """Each distinct kernel of a model that its level looks at, with its verdict; ``suspects`` are labels of nodes."""
    only, beyond = within_reach(facts_of(model), suspects) if level == "auto" else (suspects, 0)
    there = list(kernels_of(model, only=None if level == "full" else only))
    kernels = list(affordable(there, suspects)) if level == "auto" else there
    bench = _Bench(wheel=wheel, host=host, soc_model=soc_model, progress=progress)
    known = bench.known(kernels)
    judged = [_judged(kernel, answer) for kernel, answer in bench.answers(kernels, known)]
    faulty = [place for place, one in enumerate(judged) if one.verdict in _FAULTS][:_MOST_TRIED]
    for place, ways in bench.ways({place: kernels[place] for place in faulty}).items():
        judged[place] = replace(judged[place], ways=ways)
    return Audit(
        level=level,
        by=f"QAIRT {wheel['qairt']} for soc_model {soc_model}",
        kernels=tuple(judged),
        known=len(known),
        left_out=beyond + len(there) - len(kernels),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """Whose compiler runs kernels here, for which chip; what it answered is remembered."""

    wheel: Mapping[str, str]
    host: Host | None
    soc_model: int
    progress: Callable[[str], None]

    def known(self, kernels: Sequence[Kernel]) -> dict[str, Mapping[str, Any]]:
        """What was measured before, by prefix."""
        memory = Remembered("audited")
        answers = ((kernel.prefix, memory.get(self._key(kernel))) for kernel in kernels)
        return {prefix: answer for prefix, answer in answers if answer is not None}

    def answers(
        self, kernels: Sequence[Kernel], known: Mapping[str, Mapping[str, Any]]
    ) -> list[tuple[Kernel, Mapping[str, Any] | None]]:
        """Each with what is known or found of it now; None where it cannot be asked."""
        found = dict(known)
        asked = [kernel if kernel.prefix in found or kernel.why else within_grids(kernel) for kernel in kernels]
        new = [kernel for kernel in asked if kernel.prefix not in found and not kernel.why]
        keys = {kernel.prefix: self._key(kernel) for kernel in new}
        for prefix, answer in _measured(new, self.host, self.soc_model, self.progress):
            found[prefix] = answer
            if answer["answer"] in _RAN:
                Remembered("audited").put(keys[prefix], answer)
        return [(kernel, found.get(kernel.prefix)) for kernel in asked]

    def ways(self, faulty: Mapping[int, Kernel]) -> dict[int, tuple[str, ...]]:
        """Of each that is not right the other forms in which it is."""
        tried = [
            (place, words, form)
            for place, kernel in faulty.items()
            for words, form in other_forms(kernel, _FORMS_FROM + FORMS * place)
        ]
        forms = [form for _, _, form in tried]
        answers = self.answers(forms, self.known(forms))
        found: dict[int, tuple[str, ...]] = {place: () for place, _, _ in tried}
        for (place, words, _), (form, answer) in zip(tried, answers, strict=True):
            if _verdict(form, answer)[0] is Verdict.RIGHT:
                found[place] = (*found[place], words)
        return found

    def _key(self, kernel: Kernel) -> str:
        return key_of(kernel.key.encode(), {**self.wheel, "soc_model": self.soc_model, "form": _FORM})


def _measured(
    kernels: Sequence[Kernel], host: Host | None, soc_model: int, progress: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    by_prefix = {kernel.prefix: kernel for kernel in kernels}

    def tell(line: str) -> None:
        progress(f"auditing kernels: {line}")

    for ran in run_together(kernels, host=host, soc_model=soc_model, progress=tell, together=_TOGETHER):
        kernel = by_prefix[ran.probe.prefix]
        found = deviation(ran.wanted, ran.got, kernel.steps) if ran.ran else None
        yield kernel.prefix, _answer(ran, found)


def _answer(ran: Ran, found: Deviation | None) -> dict[str, Any]:
    return {"answer": ran.answer, "why": ran.why, "deviation": None if found is None else asdict(found)}


def _judged(kernel: Kernel, answer: Mapping[str, Any] | None) -> AuditedKernel:
    verdict, why, measured = _verdict(kernel, answer)
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


def _verdict(kernel: Kernel, answer: Mapping[str, Any] | None) -> tuple[Verdict, str, Mapping[str, Any]]:
    if answer is None or kernel.why:
        return Verdict.UNJUDGED, kernel.why or "it was not reached", {}
    found = answer["deviation"]
    if answer["answer"] == "refused":
        return Verdict.REFUSED, str(answer["why"]), {}
    if found is None:
        said = "not finalized" if answer["answer"] == "failed" else str(answer["answer"])
        return (Verdict.REFUSED if answer["answer"] == "failed" else Verdict.UNJUDGED), f"{said}: {answer['why']}", {}
    numbers = {name: found[name] for name in ("most", "usual", "span", "share", "odd")}
    verdict = verdict_of(kernel.operators, kernel.type, **numbers)
    if kernel.place == "inside" and verdict is not Verdict.RIGHT:
        # Steps of one operator grow in the next one: only what is far off in most places is laid to the kernels.
        far = found["usual"] > found["span"] / 20 and found["share"] > 0.05
        verdict = Verdict.WRONG if far or found["odd"] else Verdict.RIGHT
    limits = limits_of(kernel.operators, kernel.type)
    told = {**found, "unit": "steps", "limit": limits.most}
    return verdict, "" if verdict is Verdict.RIGHT else _told(found), told


def _told(found: Mapping[str, Any]) -> str:
    """In words: how far, of what, where, and by which factor."""
    if found["odd"]:
        return f"{found['odd']} values are not finite"
    parts = [
        f"up to {found['most']:.4g} of {found['span']:.4g} steps off",
        f"{100 * found['share']:.3g} % of values far",
    ]
    factor = found["factor"]
    if factor is not None and abs(factor - 1) > 0.02:
        parts.append(f"about {factor:.3g} times what it should be")
    return f"{', '.join(parts)}, most in input set {found['set']}"

"""Runs each distinct kernel of a prepared model on the emulator against ONNX Runtime on the CPU, and judges it.

Kernels are compiled side by side in child processes; what was measured of one is remembered for every model that has
it. It changes no model. Which kernels are run follows from the model and the atlas alone, never from what was measured
before or from a clock, so that two machines look at the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from deploykit.backend.audits import Audit, AuditedKernel
from deploykit.findings import Finding, Severity, SubjectKind, listed
from deploykit.model.collect import facts_of
from deploykit.model.graph import view_of
from deploykit.model.nodes import label
from deploykit_ort_qnn.bench.ask import Bench, KernelAnswer, bench_of, judged, verdict_on
from deploykit_ort_qnn.bench.kernels import Kernel, kernels_of, spared
from deploykit_ort_qnn.bench.pieces import PAIR
from deploykit_ort_qnn.bench.repair import outlooks, repairs_of
from deploykit_ort_qnn.bench.together import COVERING
from deploykit_ort_qnn.compiler.hosts import toolchain_host
from deploykit_ort_qnn.compiler.jobs import installed_wheel
from deploykit_ort_qnn.prepare import ProviderDraft, whole_model
from deploykit_ort_qnn.rules.audit import BEYOND, COUNT_RULES, RULES, Counted
from deploykit_qualcomm.atlas.rows import Verdict, operators
from deploykit_qualcomm.rules.atlas import suspects_in

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.backend.backend import Situation
    from deploykit.model.facts import GraphFacts, NodeFact

__all__ = [
    "InPlaceOf",
    "affordable",
    "audit_draft",
    "audit_model",
    "mended",
    "settled_by",
    "with_count",
    "within_reach",
]

# Kernels that are not right of which other ways are tried.
_MOST_TRIED = 24
_FAULTS = (Verdict.WRONG, Verdict.REFUSED, Verdict.NARROWED)
# Whom a row says what of.
_SUSPECT = {"quick": ("wrong",), "auto": ("wrong", "narrowed", "refused")}
# Bytes of weights beyond which a model is not loaded unless all of its kernels are asked for.
_LARGEST = 1 << 29

# Of processor time, estimated: what a check or a package may take for kernels that nobody asked for by name.
_SECONDS = 15.0
# Seconds for a kernel of any size, which is its share of a compilation and of a run; and for each value that goes in
# or is stored.
_EACH = 0.03
_PER_VALUE = 1e-6
# Times over the budget that nodes are cut out of the model: equal ones are one kernel, which only then is seen.
_ALIKE = 4

T = TypeVar("T")


def audit_draft(
    draft: ProviderDraft, *, level: str, progress: Callable[[str], None], given: Situation | None = None
) -> Audit:
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
    suspects = frozenset() if level == "full" else suspects_in(model, draft.wheel.sdk, verdicts=_SUSPECT[level])
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


def with_count(audit: Audit, draft: ProviderDraft) -> Audit:
    """With the finding that says how many kernels were run: for whoever tells nothing else of the whole audit."""
    nodes = {finding.subject.name for finding in audit.findings if finding.handled} | repairs_of(draft.options).keys()
    return replace(audit, findings=(*audit.findings, *COUNT_RULES.run(Counted(audit=audit, otherwise=len(nodes)))))


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
    found = {kernel.prefix: (kernel, answer) for kernel, answer in bench.ask(kernels, known)}
    audited = [_audited(*found[kernel.prefix]) for kernel in kernels]
    faulty = [place for fault in _FAULTS for place, one in enumerate(audited) if one.verdict == fault][:_MOST_TRIED]
    names = {name for place in faulty for name in kernels[place].nodes}
    outlook = outlooks(model, names, bench, faults=_FAULTS) if ways and names else ()
    right = {name: tuple(repair.words for repair in one.repairs) for one in outlook for name in one.nodes}
    # What alone shows that a kernel is wrong: it is right without.
    milder = {kernel.prefix: (what, kernel) for what, kernel in spared(kernels[place] for place in faulty)}
    answers = bench.ask([kernel for _, kernel in milder.values()])
    shown = {one.prefix: milder[one.prefix][0] for one, answer in answers if verdict_on(one, answer) is Verdict.RIGHT}
    for place in faulty:
        kernel = kernels[place]
        told = right.get(kernel.nodes[0])
        audited[place] = replace(audited[place], ways=told, shown_by=shown.get(kernel.prefix, ""))
    left_out = beyond + len(there) - len(kernels)
    return Audit(level=level, by=by, kernels=tuple(audited), known=len(known), left_out=left_out)


def _audited(kernel: Kernel, answer: KernelAnswer | None) -> AuditedKernel:
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


def within_reach(facts: GraphFacts, suspects: Set[str]) -> tuple[frozenset[str], int]:
    """Labels of the operators worth being cut out, and how many are not: no large model is taken apart as a whole."""

    def urgency(node: NodeFact) -> tuple[bool, ...]:
        return (node.label not in suspects, node.op_type not in operators())

    sized = []
    for node in facts.nodes:
        given, stored = (0, 0) if node.op_type in (*PAIR, "Constant") else _values_of(facts, node)
        if given:
            sized.append((node, _EACH + _PER_VALUE * (given + stored)))
    near = [(node, seconds) for node, seconds in sized if seconds <= _SECONDS]
    chosen = _filled(near, urgency, _ALIKE * _SECONDS)
    return frozenset(node.label for node in chosen), len(sized) - len(chosen)


def _values_of(facts: GraphFacts, node: NodeFact) -> tuple[int, int]:
    """Values that would go into an operator, in all sets together, and those that it has stored; 0 where not known."""
    given = stored = 0
    for name in filter(None, node.inputs):
        fact, maker = facts.tensors.get(name), facts.producer_of(name)
        size = math.prod(dim if isinstance(dim, int) else 0 for dim in fact.shape or ()) if fact is not None else 0
        source = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else name
        if source in facts.tensors and facts.tensors[source].is_weight:
            stored += size
        else:
            given += COVERING * size
    return given, stored


def affordable(kernels: Sequence[Kernel], suspects: Set[str]) -> tuple[Kernel, ...]:
    """Those that fit into the budget, in the order of the model: all of them where that is little enough.

    Suspects come first, alone before among neighbours, then operators that a row of the atlas is about under other
    conditions; of kernels that are as urgent the cheaper ones.
    """

    def urgency(kernel: Kernel) -> tuple[bool, ...]:
        is_known = not operators().isdisjoint(kernel.operators)
        return (suspects.isdisjoint(kernel.nodes), kernel.place != "alone", not is_known)

    def seconds(kernel: Kernel) -> float:
        given = sum(values.size for sample in kernel.samples for values in sample.values())
        stored = sum(math.prod(tensor.dims) for tensor in kernel.model.graph.initializer)
        return 0.0 if kernel.why else _EACH + _PER_VALUE * (given + stored)

    chosen = {kernel.prefix for kernel in _filled([(kernel, seconds(kernel)) for kernel in kernels], urgency, _SECONDS)}
    return tuple(kernel for kernel in kernels if kernel.prefix in chosen)


def _filled(sized: Iterable[tuple[T, float]], urgency: Callable[[T], Any], budget: float) -> list[T]:
    """The most urgent first, of as urgent ones the cheapest, while the budget lasts."""
    chosen = []
    for one, seconds in sorted(sized, key=lambda pair: (urgency(pair[0]), pair[1])):
        if seconds <= budget:
            budget -= seconds
            chosen.append(one)
    return chosen


def mended(
    before: Iterable[Finding], first: Audit, given: ModelProto, found: Audit, made: ModelProto
) -> Iterator[Finding]:
    """Of findings about kernels of the given model: as handled where what is compiled instead was run and is right.

    Where that is wrong too it is told by itself. Where it could not be run, or nothing is seen in their place, they
    stay, as warnings.
    """
    places, verdicts = InPlaceOf(given, made), _worst_verdicts(found)
    for finding in before:
        if finding.subject.kind is not SubjectKind.NODE or finding.severity is Severity.INFO:
            continue
        alike = {name for one in first.kernels if one.node == finding.subject.name for name in one.nodes}
        instead = [places.of(name) for name in sorted(alike or {finding.subject.name})]
        now = {verdicts.get(name, Verdict.UNJUDGED) for names in instead for name in names or ("",)}
        if now == {Verdict.RIGHT}:
            told = listed(sorted({name for names in instead for name in names}), most=3)
            yield finding.with_handled(f"the preparation writes it in another form, which was run and is right: {told}")
        elif now <= {Verdict.RIGHT, Verdict.UNJUDGED}:
            yield replace(finding, severity=max(finding.severity, Severity.WARNING, key=lambda one: one.rank))


def _worst_verdicts(found: Audit) -> Mapping[str, Verdict]:
    """By label what is known of a node's kernels: the worst fault, else right where one is; others are not there."""
    rank = (Verdict.WRONG, Verdict.REFUSED, Verdict.NARROWED, Verdict.RIGHT)
    known: dict[str, Verdict] = {}
    for kernel in found.kernels:
        verdict = Verdict(kernel.verdict)
        for name in (kernel.node, *kernel.nodes) if verdict in rank else ():
            known[name] = min(known.get(name, verdict), verdict, key=rank.index)
    return known


class InPlaceOf:
    """Two forms of one model, to find what computes in the second what a node computed in the first.

    Tensors keep their names through a preparation, nodes need not.
    """

    def __init__(self, given: ModelProto, made: ModelProto) -> None:
        self._given, self._made = view_of(given), view_of(made)
        self._nodes = {label(node): node for node in self._given.nodes}
        self._tensors = {name for node in self._given.nodes for name in node.output}
        self._static = self._made.static()

    def of(self, name: str) -> frozenset[str]:
        """The labels of the operators that stand in a node's place; none where that cannot be told.

        Where its own result is gone, as inside of what was fused, they are those up to the next result that is there.
        """
        node = self._nodes.get(name)
        found, left, seen = set[str](), [] if node is None else [*node.output], set[str]()
        while left:
            output = left.pop()
            if not output or output in seen:
                continue
            seen.add(output)
            names, readers = self._along_pairs(output)
            if any(one in self._made.makers for one in names):
                found |= self._computing(names)
            else:
                left += [made for reader in readers for made in reader.output]
        return frozenset(found)

    def _along_pairs(self, output: str) -> tuple[set[str], list[NodeProto]]:
        """What a result is called before and behind its pairs, and the operators that read it."""
        readers: list[NodeProto] = []
        names, left = {output}, [output]
        while left:
            for reader in self._given.readers(left.pop()):
                if reader.op_type in PAIR:
                    names |= {*reader.output}
                    left += reader.output
                else:
                    readers.append(reader)
        return names, readers

    def _computing(self, names: Set[str]) -> set[str]:
        """The operators that inputs decide, from there back to whatever tensor the given model had, too."""
        found, left, seen = set[str](), [*names], set(names)
        ends = self._tensors - names
        while left:
            node = self._made.makers.get(left.pop())
            if node is None or self._static.issuperset(node.output):
                continue
            if node.op_type not in PAIR:
                found.add(label(node))
            further = {*node.input} - seen - ends
            seen |= further
            left += further
        return found

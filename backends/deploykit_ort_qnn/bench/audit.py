"""Runs each distinct kernel of a prepared model on the emulator against ONNX Runtime on the CPU, and judges it.

Kernels are compiled side by side in child processes. What was measured of a kernel is kept for every model that has it.
No model is changed. Which kernels are run follows from the model and the atlas alone, never from what was measured
before or from a clock, so that two machines look at the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Any, TypeVar

from onnx import ModelProto

from deploykit.backend.backend import Situation
from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.findings import Finding, Severity, SubjectKind, listed
from deploykit.findings.records import Tell, replace
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit_ort_qnn.bench.ask import Bench, bench_of, judged, verdict_on
from deploykit_ort_qnn.bench.kernels import Kernel, kernels_of, spared
from deploykit_ort_qnn.bench.pieces import HOLDING, PAIR
from deploykit_ort_qnn.bench.repair import repaired_kernels, repairs_of
from deploykit_ort_qnn.bench.together import COVERING
from deploykit_ort_qnn.compiler.hosts import toolchain_host, who_compiles
from deploykit_ort_qnn.prepare import ProviderDraft, compiled_model, whole_model
from deploykit_ort_qnn.rules.audit import BEYOND, COUNT_RULES, RULES, Counted
from deploykit_qualcomm.atlas.rows import KernelVerdict, operators
from deploykit_qualcomm.rules.atlas import suspects_in

__all__ = ["audit_draft", "with_count"]

# How many faulty kernels other ways are tried for.
_MOST_TRIED = 24
_FAULTS = (KernelVerdict.WRONG, KernelVerdict.REFUSED, KernelVerdict.NARROWED)
# The verdicts in the atlas that make a node a suspect, by the level of the audit.
_SUSPECT = {"quick": ("wrong",), "auto": ("wrong", "narrowed", "refused")}
# Bytes of weights above which a model is loaded only if all of its kernels are asked for.
_LARGEST = 1 << 29

# Estimated processor seconds that a check or a package may spend on kernels that nobody asked for by name.
_SECONDS = 3.0
# Estimated seconds: for any kernel, as its share of a compilation and a run; and for each value of an input or weight.
_EACH = 0.03
_PER_VALUE = 1e-6
# Of a model of so few nodes, which take a second by the estimates above, a check asks in any case what is refused.
_FEW = 33
# How many times the budget of nodes is cut out of the model: that equal nodes are one kernel is only seen then.
_ALIKE = 4

T = TypeVar("T")


def audit_draft(
    draft: ProviderDraft, *, level: str, progress: Tell, given: Situation | None = None, doubted: bool = False
) -> Audit:
    """Audits the kernels of the model that a package would compile.

    Level ``full`` runs all of them; ``auto`` as many as are affordable if the atlas suspects any or the model is
    ``doubted``; ``quick`` those that the atlas calls wrong. With ``given``, those of a very small model are run in any
    case, to tell what is refused; kernels of a small model as the user gave it are run too, and those that are wrong
    are reported as repaired.
    """
    host = toolchain_host(draft.wheel)
    wheel = who_compiles(host)
    if wheel is None or wheel["wheel"] != draft.wheel.version or draft.soc_model is None:
        return Audit(level=level, by=f"nobody: the compiler of QAIRT {draft.wheel.sdk} is not here")
    facts = draft.situation.facts
    if level == "auto" and host is not None and host.emulator is None:
        level = "quick"  # its compiler needs another system's loader: it would get through few kernels
    if level == "auto" and facts.weight_bytes > _LARGEST:
        found = Audit(level=level, by="nobody: its weights are not loaded for it", left_out=len(facts.nodes))
        return replace(found, findings=RULES.run(found))
    model = compiled_model(draft)
    suspects = frozenset() if level == "full" else suspects_in(model, verdicts=_SUSPECT[level])
    whole = whole_model(given) if given is not None and level != "quick" and given.facts.is_qdq else None
    if level == "auto":
        doubted |= bool(suspects or repairs_of(draft.options)) or any(one.code == "QNN284" for one in draft.lint)
        doubted |= whole is not None and bool(suspects_in(whole, verdicts=_SUSPECT[level]))
        if not doubted and (given is None or len(facts.nodes) > _FEW):
            level = "quick"  # runs no kernel here: the whole model is compiled and emulated in any case
    bench = bench_of(wheel, host, draft.soc_model, progress, "auditing kernels")
    run = partial(audit_model, bench=bench, by=f"QAIRT {wheel['qairt']} for soc_model {draft.soc_model}")
    found = run(model, level=level, suspects=suspects)
    # Of a model that nothing is suspected of, inputs that it never gets are no evidence; a refusal needs none.
    findings = tuple(one for one in RULES.run(found) if doubted or level != "auto" or one.code == "QNN323")
    if whole is not None and level != "quick" and not found.left_out:
        findings += tuple(mended(run(whole, level="auto", suspects=frozenset(), ways=False), whole, found, model))
    return replace(found, findings=findings, settled=settled_by(found, draft.lint))


def with_count(audit: Audit, draft: ProviderDraft) -> Audit:
    """Adds the finding that says how many kernels were run, for callers that report nothing else of the audit."""
    nodes = {finding.subject.name for finding in audit.findings if finding.handled} | repairs_of(draft.options).keys()
    return replace(audit, findings=(*audit.findings, *COUNT_RULES.run(Counted(audit=audit, otherwise=len(nodes)))))


def audit_model(
    model: ModelProto, *, level: str, bench: Bench, by: str, suspects: Set[str], ways: bool = True
) -> Audit:
    """Runs and judges the distinct kernels that a level looks at; ``suspects`` are labels of nodes.

    With ``ways``, kernels that are not right are also done in other ways, to tell which of those are right.
    """
    only, beyond = within_reach(facts_of(model), suspects) if level == "auto" else (suspects, 0)
    there = list(kernels_of(model, only=None if level == "full" else only))
    kernels = list(kernels_within_budget(there, suspects)) if level == "auto" else there
    known = sum(bench.known(kernel) is not None for kernel in kernels)
    audited = []
    for kernel, answer in bench.ask(kernels):
        verdict, why, measured = judged(kernel, answer)
        audited.append(
            AuditedKernel(
                node=kernel.nodes[0],
                nodes=kernel.nodes,
                count=len(kernel.nodes),
                operators=kernel.operators,
                type=kernel.type,
                place=kernel.place,
                verdict=verdict,
                why=why,
                measured=measured,
            )
        )
    faulty = [place for fault in _FAULTS for place, one in enumerate(audited) if one.verdict == fault][:_MOST_TRIED]
    names = {name for place in faulty for name in kernels[place].nodes}
    found = repaired_kernels(model, names, bench, faults=_FAULTS) if ways and names else {}
    right = {name: tuple(repair.words for repair in repairs) for nodes, repairs in found.items() for name in nodes}
    # What alone makes a kernel wrong (indices from the end, sums beyond the grid): it is right without.
    milder = {kernel.prefix: (what, kernel) for what, kernel in spared(kernels[place] for place in faulty)}
    answers = bench.ask([kernel for _, kernel in milder.values()])
    shown = {
        one.prefix: milder[one.prefix][0] for one, answer in answers if verdict_on(one, answer) is KernelVerdict.RIGHT
    }
    for place in faulty:
        kernel = kernels[place]
        told = right.get(kernel.nodes[0])
        audited[place] = replace(audited[place], ways=told, shown_by=shown.get(kernel.prefix, ""))
    return Audit(level=level, by=by, kernels=tuple(audited), known=known, left_out=beyond + len(there) - len(kernels))


def settled_by(audit: Audit, lint: Iterable[Finding]) -> dict[tuple[str, str], str]:
    """The findings that this model's own kernels refute, by (code, node), with the reason.

    QNN320 falls if the node's kernels are right in every place, or fail in another way. QNN284 names only the first
    node of its operator: it falls if all kernels of this operator are right.
    """
    named = [(kernel, {kernel.node, *kernel.nodes}) for kernel in audit.kernels]
    alone = {name: kernel for kernel, names in named if kernel.place == "alone" for name in names}
    doubted = (names for kernel, names in named if kernel.verdict != "right" and kernel.shown_by != BEYOND)
    open_ = set[str]().union(*doubted)
    doubtful = {alone[name].operators for name in open_ & alone.keys()}
    settled = {}
    for finding in lint:
        name = finding.subject.name
        kernel = alone.get(name)
        if kernel is None:
            continue
        fails_otherwise = kernel.verdict in _FAULTS and kernel.verdict != finding.evidence.get("verdict")
        refuted = {
            "QNN320": name not in open_ or fails_otherwise,
            "QNN284": kernel.operators not in doubtful and not audit.left_out,
        }
        if refuted.get(finding.code):
            is_now = "right" if kernel.shown_by == BEYOND else kernel.verdict
            how = f"this model's own kernel was run over its grid ({audit.by}): it is {is_now}"
            settled[finding.code, name] = how
    return settled


def within_reach(facts: GraphFacts, suspects: Set[str]) -> tuple[frozenset[str], int]:
    """Labels of the operators worth cutting out, and how many are left
    out: a large model is not taken apart as a whole.
    """

    def urgency(node: NodeFact) -> tuple[bool, ...]:
        return (node.label not in suspects, node.op_type not in operators())

    sized = []
    for node in facts.nodes:
        given = stored = 0
        for name in filter(None, node.inputs if node.op_type not in HOLDING else ()):
            shape, maker = facts.tensor(name).shape, facts.producer_of(name, PAIR[1])
            size = math.prod(dim if isinstance(dim, int) else 0 for dim in shape or ())
            if facts.is_stored(name if maker is None else maker.inputs[0]):
                stored += size
            else:
                given += COVERING * size
        if given:
            sized.append((node, _EACH + _PER_VALUE * (given + stored)))
    near = [(node, seconds) for node, seconds in sized if seconds <= _SECONDS]
    chosen = _filled(near, urgency, _ALIKE * _SECONDS)
    return frozenset(node.label for node in chosen), len(sized) - len(chosen)


def kernels_within_budget(kernels: Sequence[Kernel], suspects: Set[str]) -> tuple[Kernel, ...]:
    """The kernels that fit into the time budget, in the order of the model.

    Suspects come first, and kernels alone before those among neighbours; then operators that the atlas knows faults of
    under other conditions. Of equally urgent kernels the cheaper ones come first.
    """

    def urgency(kernel: Kernel) -> tuple[bool, ...]:
        is_known = not operators().isdisjoint(kernel.operators)
        return (suspects.isdisjoint(kernel.nodes), kernel.place != "alone", not is_known)

    sized = []
    for kernel in kernels:
        size = sum(values.size for sample in kernel.samples for values in sample.values())
        size += sum(math.prod(tensor.dims) for tensor in kernel.model.graph.initializer)
        sized.append((kernel, 0.0 if kernel.why else _EACH + _PER_VALUE * size))
    chosen = {kernel.prefix for kernel in _filled(sized, urgency, _SECONDS)}
    return tuple(kernel for kernel in kernels if kernel.prefix in chosen)


def _filled(sized: Iterable[tuple[T, float]], urgency: Callable[[T], Any], budget: float) -> list[T]:
    """The items that fit into the budget in seconds: the most urgent first, of equally urgent ones the cheapest."""
    chosen = []
    for one, seconds in sorted(sized, key=lambda pair: (urgency(pair[0]), pair[1])):
        if seconds <= budget:
            budget -= seconds
            chosen.append(one)
    return chosen


def mended(first: Audit, given: ModelProto, found: Audit, made: ModelProto) -> Iterator[Finding]:
    """Yields findings about kernels of the given model as handled, if what is
    compiled in their place was run and is right.

    A replacement that is wrong has its own finding, so that the first is dropped. If no replacement was run or found,
    the finding stays, as a warning.
    """
    views = view_of(given), view_of(made)
    # What is known of a node's kernels, by label: the worst fault, else right if one of them is.
    rank = (*_FAULTS, KernelVerdict.RIGHT)
    verdicts = dict[str, KernelVerdict]()
    for kernel in found.kernels:
        verdict = KernelVerdict(kernel.verdict)
        for name in (kernel.node, *kernel.nodes) if verdict in rank else ():
            verdicts[name] = min(verdicts.get(name, verdict), verdict, key=rank.index)
    for finding in RULES.run(first):
        if finding.subject.kind is not SubjectKind.NODE or finding.severity is Severity.INFO:
            continue
        alike = {name for one in first.kernels if one.node == finding.subject.name for name in one.nodes}
        instead = [in_place_of(*views, name) for name in sorted(alike or {finding.subject.name})]
        now = {verdicts.get(name, KernelVerdict.UNJUDGED) for names in instead for name in names or ("",)}
        if now == {KernelVerdict.RIGHT}:
            told = listed(sorted({name for names in instead for name in names}), most=3)
            yield finding.with_handled(f"the preparation writes it in another form, which was run and is right: {told}")
        elif now <= {KernelVerdict.RIGHT, KernelVerdict.UNJUDGED}:
            yield replace(finding, severity=max(finding.severity, Severity.WARNING, key=lambda one: one.rank))


def in_place_of(given: GraphCopy, made: GraphCopy, name: str) -> frozenset[str]:
    """The labels of the operators in one form of a model that stand in place of a node of another form.

    Tensors keep their names through a preparation, nodes need not. Empty if no such operator is found.
    """
    tensors, static = {output for node in given.nodes for output in node.output}, made.static()
    left = [output for node in given.nodes if label(node) == name for output in node.output]
    found, seen = set[str](), set[str]()
    while left:
        output = left.pop()
        if not output or output in seen:
            continue
        seen.add(output)
        # The result's names before and behind its Q/DQ pairs, and the results of the operators that read it.
        names, further = [output], list[str]()
        for one in names:
            for reader in given.readers(one):
                (names if reader.op_type in PAIR else further).extend(reader.output)
        if not any(one in made.makers for one in names):
            left += further  # its own result is gone, as that of a node inside a fused one
            continue
        # The computed operators, from there back to the next tensors that the given model has, too.
        back = [*names]
        for one in back:
            node = made.makers.get(one)
            if node is None or static.issuperset(node.output):
                continue
            if node.op_type not in PAIR:
                found.add(label(node))
            back += [source for source in dict.fromkeys(node.input) if source not in back and source not in tensors]
    return frozenset(found)

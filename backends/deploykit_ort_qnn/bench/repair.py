"""Finds other ways for kernels that are not right, and for operators on which the compiler crashes.

Every way is tried on the emulator. Those that are right there are kept, in their order. The reference is the kernel on
the CPU over its whole grid, alone and among its neighbours. If a compilation gives no answer, the fewest operators that
cause this are looked for. Nothing is packaged: the result is a request with which the core starts again.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from onnx import ModelProto

from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Instead, Request
from deploykit.backend.opinions import Audit
from deploykit.backend.status import Right
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings.records import Json, Names, Record, Tell, replace
from deploykit.model.graph import GraphCopy
from deploykit.model.load import load_model
from deploykit.model.nodes import label
from deploykit.model.weights import load_weights
from deploykit.rewrites.contract import NoMatchError, load_transform, transform_names
from deploykit_ort_qnn.bench.ask import Bench, KernelAnswer, TimedBench, answer_of, bench_of, verdict_on
from deploykit_ort_qnn.bench.kernels import Kernel, kernels_of, within_grids
from deploykit_ort_qnn.bench.pieces import HOLDING, Pieces, anonymous, renamed
from deploykit_ort_qnn.bench.place import OperatorPlace
from deploykit_ort_qnn.bench.together import Outputs
from deploykit_ort_qnn.bench.ways import WAYS
from deploykit_ort_qnn.compiler.emulation import correctness
from deploykit_ort_qnn.compiler.hosts import Host, who_compiles
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome
from deploykit_ort_qnn.prepare import ProviderDraft, compiled_model
from deploykit_ort_qnn.rules.audit import OFTEN
from deploykit_ort_qnn.rules.numerics import NumericScope
from deploykit_qualcomm.atlas.rows import KernelVerdict
from deploykit_qualcomm.hosted import RefusedNode

__all__ = ["done_otherwise", "repaired_kernels", "repaired_model", "repairs_of", "rescue", "wanted_repairs"]

# Values of an input above which ways are tried one after the other: one way alone is much to emulate.
_MUCH = 1 << 16
# How far off a way may be as a share of the original's deviation, if that is within its operator's limits.
_LESS = 0.5
# A model with at most this many nodes is searched as a whole if its outputs differ and no node could be named.
_FEW = 12
_WORST_FIRST = (KernelVerdict.WRONG, KernelVerdict.REFUSED, KernelVerdict.NARROWED)
# The findings about a node whose kernel is wrong.
_ABOUT = ("QNN320", "QNN321")


class Repair(Record):
    """A way that is right for equal nodes whose kernel is not, with its deviation before and after in words."""

    nodes: Names
    operator: str
    way: str
    before: str
    after: str

    @property
    def told(self) -> str:
        """What the way does, how far off it is, and how far off the original was."""
        return f"{WAYS[self.way].told}: {self.after}, before {self.before}"

    @property
    def words(self) -> str:
        """The way's name, and what it does."""
        return f"{self.way} ({WAYS[self.way].told})"


# A kernel, and the position of one operator among its operators.
_Spot = tuple[Kernel, int]
# The prefix of a kernel, and the position of an operator with its way.
_Asked = tuple[str, str]


def find_repairs(
    model: ModelProto, suspects: Collection[str], bench: Bench, *, named: Collection[str] = ()
) -> tuple[Repair, ...]:
    """The best way for every distinct kernel of these nodes (labels) that is wrong and can be repaired.

    For ``named`` nodes the model's outputs say that something is wrong, even if their kernels are within limits. A way
    for these must be less than half as far off.
    """
    return tuple(repairs[0] for repairs in repaired_kernels(model, suspects, bench, named=named).values() if repairs)


def repaired_kernels(
    model: ModelProto,
    suspects: Collection[str],
    bench: Bench,
    *,
    named: Collection[str] = (),
    faults: Collection[KernelVerdict] = (KernelVerdict.WRONG,),
) -> dict[Names, tuple[Repair, ...]]:
    """The ways that are right, by the nodes of each distinct kernel that has one of these faults or is ``named``.

    The preferred way comes first.
    """
    cases = _cases(model, suspects, bench, named=named, faults=faults)
    tried = dict[_Asked, KernelAnswer]()
    # All ways at once; where one way is much to emulate, none after the first that is right.
    for turn in zip_longest(*(case.turns for case in cases), fillvalue=()):
        pairs = zip(cases, turn, strict=True)
        tried |= _try_ways(
            bench,
            [(case.worst, way) for case, ways in pairs if not case.near(tried, KernelVerdict.RIGHT) for way in ways],
        )
    kept: list[tuple[Repair, ...]] = [() for _ in cases]
    for wanted in (KernelVerdict.RIGHT, KernelVerdict.NARROWED):
        near = [() if found else case.near(tried, wanted) for case, found in zip(cases, kept, strict=True)]
        tries = [*zip(cases, near, strict=True)]
        among = _try_ways(
            bench, [(spot, way) for case, ways in tries for spot in (*case.bad, *case.right) for way in ways]
        )

        def stays_right(way: str, spots: Iterable[_Spot], among: Mapping[_Asked, KernelAnswer] = among) -> bool:
            answers = ((one, among.get((one.prefix, f"{at} {way}"))) for one, at in spots)
            return all(verdict_on(one, answer) is KernelVerdict.RIGHT for one, answer in answers)

        for number, (case, ways) in enumerate(tries):
            stays = [way for way in ways if stays_right(way, case.right)]
            chosen = [way for way in stays if stays_right(way, case.bad)] or stays
            kept[number] = kept[number] or tuple(case.repair(way, tried) for way in chosen)
    return {case.nodes: found for case, found in zip(cases, kept, strict=True)}


class _RepairCase(Record, eq=False):
    """An operator of equal nodes, the place where it is worst, and its answer there.

    ``bad`` are other places with the same fault: a way that is right there too is preferred. In
    the places in ``right`` a way must stay right.
    """

    nodes: Names
    operator: str
    worst: _Spot
    answer: KernelAnswer
    bad: tuple[_Spot, ...]
    right: tuple[_Spot, ...]

    @property
    def turns(self) -> list[list[str]]:
        """The ways, grouped by when they are tried."""
        given = self.worst[0].model.graph.input
        size = max(math.prod(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in given)
        return [[way] for way in WAYS] if size > _MUCH else [[*WAYS]]

    def near(self, tried: Mapping[_Asked, KernelAnswer], wanted: KernelVerdict) -> list[str]:
        """The ways with this verdict that are near enough: a kernel that is nearly right must become much better."""
        kernel, at = self.worst
        is_lost = verdict_on(kernel, self.answer) in (KernelVerdict.WRONG, KernelVerdict.REFUSED)
        limit = math.inf if is_lost else self.answer.most * _LESS
        answers = {way: tried.get((kernel.prefix, f"{at} {way}")) for way in WAYS}
        return [
            way
            for way, answer in answers.items()
            if answer is not None and verdict_on(kernel, answer) is wanted and answer.most < limit
        ]

    def repair(self, way: str, tried: Mapping[_Asked, KernelAnswer]) -> Repair:
        """The repair by this way, with the deviation before and after in words."""
        told = []
        kernel, at = self.worst
        for answer in (self.answer, tried[kernel.prefix, f"{at} {way}"]):
            off = answer.deviation
            if off is None:
                told.append(f"{answer.answer}: {answer.why}")
            elif off.odd:
                told.append(f"{off.odd} values are not finite")
            else:
                told.append(f"up to {off.most:.4g} of {off.span:.4g} steps off")
        return Repair(nodes=self.nodes, operator=self.operator, way=way, before=told[0], after=told[1])


def _cases(
    model: ModelProto,
    suspects: Collection[str],
    bench: Bench,
    *,
    named: Collection[str],
    faults: Collection[KernelVerdict],
) -> list[_RepairCase]:
    kernels = [kernel for kernel in kernels_of(model, only=suspects) if not kernel.why]
    operators = {label(node): node.op_type for node in model.graph.node}
    known = {kernel.prefix: answer for kernel, answer in bench.ask(kernels)}
    cases = []
    for alone in (kernel for kernel in kernels if kernel.place == "alone"):
        operator = operators[alone.nodes[0]]
        spots = [
            (spot, answer)
            for spot in _spots_of(alone, kernels, suspects, operator)
            if (answer := known[spot[0].prefix]) is not None
        ]
        verdicts = [verdict_on(spot[0], answer) for spot, answer in spots]
        worst = next((fault for fault in _WORST_FIRST if fault in faults and fault in verdicts), None)
        bad = [one for one, verdict in zip(spots, verdicts, strict=True) if verdict is worst]
        if worst is None:  # a named node without any fault: the place where it is furthest off
            is_named = not set(named).isdisjoint(alone.nodes)
            bad = sorted(spots, key=lambda one: one[1].most)[-1:] if is_named else []
        if bad:
            (first, answer), also = bad[0], tuple(spot for spot, _ in bad[1:])
            right = tuple(spot for spot, _ in spots if spot is not first and spot not in also)
            cases.append(
                _RepairCase(nodes=alone.nodes, operator=operator, worst=first, answer=answer, bad=also, right=right)
            )
    return cases


def _spots_of(alone: Kernel, kernels: Sequence[Kernel], suspects: Collection[str], operator: str) -> Iterator[_Spot]:
    """Yields where an operator stands: by itself, if no other there has its type, then among its neighbours."""
    if alone.operators.count(operator) == 1:
        yield alone, alone.operators.index(operator)
    for kernel in (kernel for kernel in kernels if kernel.place == "inside"):
        middle = len(kernel.operators) // 2
        if not set(alone.nodes).isdisjoint(kernel.nodes) and kernel.operators[middle] == operator:
            yield kernel, middle
        elif kernel.operators[0] == operator and set(suspects).isdisjoint(kernel.nodes):
            yield kernel, 0  # the first operator of a graph has none before it


def _try_ways(bench: Bench, asked: Sequence[tuple[_Spot, str]]) -> dict[_Asked, KernelAnswer]:
    """The answer about each way in each place, compared with the original kernel on the CPU."""
    found = dict[_Asked, KernelAnswer]()
    # Trials by their own prefixes. By the prefix of its kernel: the kernel
    # within its grids, and its outputs on the CPU.
    trials = dict[str, tuple[Kernel, str]]()
    kernels = dict[str, Kernel]()
    wanted = dict[str, Outputs]()
    for (kernel, at), way in asked:
        changed = replace(kernel, way=f"{at} {way}")
        known = bench.known(changed)
        if known is None:
            if kernel.prefix not in kernels:
                kernels[kernel.prefix] = within_grids(kernel)
            try:
                trial = _trial_of(replace(kernels[kernel.prefix], way=changed.way), at, way, f"u{len(trials)}/")
                trials[trial.prefix] = trial, kernel.prefix
                continue
            except (NoMatchError, DeploykitError) as error:
                known = KernelAnswer(answer="none", why=str(error))
                bench.keep(changed, known)
        found[kernel.prefix, changed.way] = known
    for ran in bench.run([trial for trial, _ in trials.values()]) if trials else ():
        trial, prefix = trials[ran.probe.prefix]
        kernel = replace(kernels[prefix], way=trial.way)
        if prefix not in wanted:
            made = Session(kernel.model).runs(kernel.samples)
            wanted[prefix] = {name: [one[name] for one in made] for name in made[0]}
        got = {prefix + name.removeprefix(trial.prefix): values for name, values in ran.got.items()}
        found[prefix, trial.way] = answer = answer_of(ran, wanted[prefix], got, kernel)
        bench.keep(kernel, answer)
    return found


def _trial_of(kernel: Kernel, at: int, way: str, prefix: str) -> Kernel:
    """The kernel done that way, with its names behind another prefix. Raises NoMatchError if the way does not apply."""
    if kernel.why:
        raise NoMatchError(kernel.why)
    graph = GraphCopy(kernel.model)
    operators = [node for node in graph.nodes if node.op_type not in HOLDING]
    if [node.op_type for node in operators[at : at + 1]] != [kernel.operators[at]]:
        raise NoMatchError("the operator does not stand where it was")
    WAYS[way].build(OperatorPlace(graph, operators[at]))

    def named(name: str) -> str:
        return name and prefix + name.removeprefix(kernel.prefix)

    model = renamed(graph.model, named, lambda _, node: named(node.name))
    samples = tuple({named(name): value for name, value in one.items()} for one in kernel.samples)
    return replace(kernel, prefix=prefix, model=model, samples=samples)


def repairs_of(options: Json) -> dict[str, str]:
    """The way of each node, from ``--repair NODE=WAY``. Raises UsageError for an unknown way."""
    found = {}
    for word in options.get("repair") or ():
        node, _, way = word.rpartition("=")
        if not node or way not in WAYS:
            raise UsageError(
                f"--repair {word}: not a node and a way", next=f"NODE=WAY, a way is one of {', '.join(WAYS)}"
            )
        found[node] = way
    return found


def repaired_model(model: ModelProto, repairs: Mapping[str, str]) -> ModelProto:
    """A copy with other ways for some nodes (by label). Raises UsageError if there is no such node or way for it."""
    graph = GraphCopy(model)
    for name, way in repairs.items():
        node = next((node for node in graph.nodes if label(node) == name), None)
        if node is None:
            raise UsageError(f"--repair {name}={way}: there is no such node", next="name one of the prepared model")
        try:
            WAYS[way].build(OperatorPlace(graph, node))
        except NoMatchError as error:
            raise UsageError(f"--repair {name}={way}: {error.reason}", next="another way") from None
    return graph.model


def wanted_repairs(
    draft: ProviderDraft, audit: Audit | None, numeric: NumericScope, host: Host | None, progress: Tell
) -> Instead | None:
    """A request with a repair way for every wrong node that has one; None if there is no such node.

    Suspects are the nodes that the audit found wrong (``suspects_of``), and the first node after which the emulator
    differs from the CPU; all of a few nodes if the outputs differ and none of them could be named.
    """
    wheel = who_compiles(host)
    is_off = str(draft.options.get("kernels", "off")) == "off" or bool(draft.options.get("repair"))
    if is_off or draft.soc_model is None or wheel is None:
        return None
    is_right = correctness(numeric).state is Right.YES
    suspects = set() if audit is None else suspects_of(audit, is_right=is_right)
    differs = numeric.device is not None and numeric.device.right is False
    if not suspects and not differs:
        return None
    model = compiled_model(draft)
    named = {numeric.first} if numeric.first else set()
    if differs and not suspects and not named:
        labels = {label(node) for node in model.graph.node if node.op_type not in HOLDING}
        named = labels if len(labels) <= _FEW else set()
    bench = bench_of(wheel, host, draft.soc_model, progress, "looking for another way")
    found = find_repairs(model, suspects | named, bench, named=named)
    if not found:
        return None
    request = draft.situation.request
    words = tuple(f"{node}={repair.way}" for repair in found for node in repair.nodes)
    how = "; ".join(f"{one.operator} {', '.join(one.nodes)} is done in another way: {one.told}" for one in found)
    return Instead(
        replace(request, adapter_options={**request.adapter_options, "repair": words}),
        how,
        handles={("QNN321", node): one.told for one in found for node in one.nodes},
    )


def suspects_of(audit: Audit, *, is_right: bool) -> set[str]:
    """The nodes of wrong kernels; if the outputs are right on real inputs, only those with frequent deviations.

    A deviation at a few places of the grid that real inputs do not reach is
    reported, but does not justify a slower type.
    """
    wrong = [one for one in audit.kernels if one.verdict == KernelVerdict.WRONG]
    if is_right:
        wrong = [one for one in wrong if one.measured.get("odd") or one.measured.get("share", 0.0) > OFTEN]
    return {name for one in wrong for name in (one.node, *one.nodes)}


def done_otherwise(draft: ProviderDraft) -> dict[tuple[str, str], str]:
    """The findings about nodes that now have a repair way, by (code, node), with the reason."""
    repairs = repairs_of(draft.options)
    return {
        (code, node): f"it is done in another way: {WAYS[way].told}" for node, way in repairs.items() for code in _ABOUT
    }


# Seconds for all trials of a rescue together: the package is late already.
_SECONDS = 300.0
# Seconds for one trial, by how the compilation ended. A part that takes longer than "timed-out" counts as endless.
_LONGEST = {"crashed": 60.0, "timed-out": 30.0}
# In a run of at most this many operators, each one is left out in turn.
_SINGLY = 24
_MODE = "htp_graph_finalization_optimization_mode"
_MODES = ("3", "1", "2")


def rescue(
    job: CompileJob, outcome: CompileOutcome, request: Request, progress: Tell
) -> tuple[CompileOutcome, Instead | None]:
    """If the compiler crashed or never ended: the outcome with the operators that cause it, and what to do instead.

    The second is a request with which these operators compile, None if nothing helped.
    """
    # A lack of memory is caused by the whole model: no other form of a few operators helps.
    if outcome.grown or outcome.status not in _LONGEST:
        return outcome, None
    bench = TimedBench(
        options=job.options,
        entries=job.entries,
        deadline=time.monotonic() + min(_SECONDS, job.timeout),
        longest=_LONGEST[outcome.status],
        progress=progress,
        host=job.host,
    )
    found = find_culprit(load_weights(load_model(Path(job.root) / job.model)), outcome.status, bench)
    if found is None:
        return outcome, None
    culprit, nodes = found
    outcome = replace(outcome, culprit=nodes)
    other, how = next(chain(_rewritten(culprit, request, bench), _other_modes(culprit, request, bench)), (None, ""))
    if other is None:
        return outcome, None
    named = ", ".join(f"{node.type} {node.name}" for node in nodes)
    return outcome, Instead(other, f"{how}; as it was the compiler failed ({outcome.message}) on {named}")


def find_culprit(
    model: ModelProto, status: str, bench: TimedBench
) -> tuple[ModelProto, tuple[RefusedNode, ...]] | None:
    """The operators whose compilation alone ends with that status, as a model and by name; None if no part's does.

    They are as few as the time allows.
    """
    pieces, nodes = Pieces(model), list(model.graph.node)
    operators = [index for index, node in enumerate(nodes) if node.op_type not in HOLDING]

    def does(chosen: Sequence[int]) -> bool:
        piece = pieces.cut(chosen) if chosen else None
        if piece is None:
            return False
        bench.progress(f"looking for what kills the compiler: {len(chosen)} of {len(operators)} operators")
        return bench.ask(piece, anonymous(piece)).status == status

    if not does(operators):
        return None
    # The shortest beginning that does it, and of this the shortest end.
    end = bisect_left(range(len(operators)), True, 1, key=lambda size: does(operators[:size]))
    start = end - bisect_left(range(end), True, 1, key=lambda size: does(operators[end - size : end]))
    left = operators[start:end]
    for index in tuple(left) if len(left) <= _SINGLY else ():
        fewer = [other for other in left if other != index]
        left = fewer if does(fewer) else left
    found = pieces.cut(left)
    assert found is not None
    return found, tuple(RefusedNode(label(nodes[index]), nodes[index].op_type) for index in left)


def _rewritten(culprit: ModelProto, request: Request, bench: TimedBench) -> Iterator[tuple[Request, str]]:
    """The rewrites after which the operators compile, each as the request for it."""
    for name in transform_names():
        transform = load_transform(name)
        if name in (*request.rewrite, *request.no_rewrite) or bench.is_over or transform.ulps is None:
            continue
        found = transform.match(culprit)
        done = transform.apply(culprit, None, found) if found else None
        # A tail would change the outputs.
        if done is not None and done.tail is None and bench.ask(done.model, anonymous(done.model)).taken:
            yield replace(request, rewrite=(*request.rewrite, name)), f"the graph is rewritten ({name})"


def _other_modes(culprit: ModelProto, request: Request, bench: TimedBench) -> Iterator[tuple[Request, str]]:
    """The finalization modes with which the operators compile; none if the user chose a mode."""
    if request.adapter_options.get("finalization_mode") is not None or _MODE in bench.options:
        return
    for mode in _MODES:
        tried = replace(bench, options={**bench.options, _MODE: mode})
        if not bench.is_over and tried.ask(culprit, anonymous(culprit)).taken:
            options = {**request.adapter_options, "finalization_mode": int(mode)}
            yield replace(request, adapter_options=options), f"it is compiled with finalization mode {mode}"

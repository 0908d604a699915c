"""Takes nodes under suspicion, measures them, tries every way on the emulator, and keeps the first that is right there.

What counts is the kernel's own reference on the CPU over its whole grid, alone and among its neighbours: what is right
for other models is not taken unseen. It changes no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from deploykit.graph.nodes import label
from deploykit.numerics.sessions import Session
from deploykit_ort_qnn.atlas.deviations import Deviation, deviation
from deploykit_ort_qnn.audit_units import Kernel, kernels_of, within_grids
from deploykit_ort_qnn.repairs.trying import AS_IT_IS, Trial, trials_of
from deploykit_ort_qnn.repairs.ways import WAYS
from deploykit_qualcomm.atlas.verdicts import Verdict, verdict_of

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.atlas.together import Outputs, Ran

__all__ = ["Memory", "Repair", "Runner", "find_repairs"]

Runner: TypeAlias = "Callable[[Sequence[Trial]], Iterator[Ran]]"
"""Runs trials on an emulator and gives what became of each, in any order."""


_MUCH = 1 << 16
_LESS = 0.5
"""How far off a way may be, of what it is instead of, where that is within what its operator costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A way that is right for equal nodes whose kernel is wrong; how far off it is before and after, in words."""

    nodes: tuple[str, ...]
    operator: str
    way: str
    before: str
    after: str

    @property
    def told(self) -> str:
        """In words."""
        return f"{WAYS[self.way].told}: {self.after}, before {self.before}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seat:
    """Where a suspect sits in a kernel: which one of its operators it is."""

    kernel: Kernel
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """``most`` is how many steps the worst value is off."""

    verdict: Verdict
    told: str
    most: float = 0.0


class Memory(Protocol):
    """What was found of a kernel before."""

    def get(self, key: str) -> dict[str, Any] | None:
        """What was put under a key."""

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep it."""


def find_repairs(
    model: ModelProto,
    suspects: Collection[str],
    run: Runner,
    *,
    named: Collection[str] = (),
    memory: Memory | None = None,
) -> tuple[Repair, ...]:
    """For every distinct kernel of these nodes (labels) that is wrong, the way to do it, as far as there is one.

    Of ``named`` ones the outputs of the whole say that something is wrong, whatever their kernels cost otherwise: a way
    is one then if it is less than half as far off. What is found is kept in ``memory``.
    """
    kernels = [kernel for kernel in kernels_of(model, only=suspects) if not kernel.why]
    operators, found = {label(node): node.op_type for node in model.graph.node}, list[Repair]()
    for alone in (kernel for kernel in kernels if kernel.place == "alone"):
        seats = _seats_of(alone, kernels, suspects, operators[alone.nodes[0]])
        asked = not set(named).isdisjoint(alone.nodes)
        key = " ".join([str(asked), *sorted(f"{seat.kernel.key} {seat.at}" for seat in seats)])
        known = None if memory is None else memory.get(key)
        repair = _repair_of(seats, run, named=asked) if known is None else Repair(**known)
        if repair is not None:
            found.append(replace(repair, nodes=alone.nodes))
            if memory is not None and known is None:
                memory.put(key, asdict(repair))
    return tuple(found)


def _repair_of(seats: Sequence[_Seat], run: Runner, *, named: bool) -> Repair | None:
    """The way for one kernel that is wrong, by itself or in one of the places where it sits among others."""
    seats = [replace(seat, kernel=kernel) for seat in seats if not (kernel := within_grids(seat.kernel)).why]
    first = _measured([(seat, AS_IT_IS) for seat in seats], run)
    wrong = [seat for seat in seats if _verdict(first, seat, AS_IT_IS) is Verdict.WRONG]
    if not wrong and named:
        reached = [seat for seat in seats if _key(seat, AS_IT_IS) in first]
        wrong = sorted(reached, key=lambda seat: first[_key(seat, AS_IT_IS)].most)[-1:]
    return _repaired(wrong[0], [seat for seat in seats if seat not in wrong], first, run) if wrong else None


_Answers: TypeAlias = Mapping[tuple[str, int, str], _Found]


def _repaired(wrong: _Seat, right: Sequence[_Seat], as_it_is: _Answers, run: Runner) -> Repair | None:
    """The first way that is right where the kernel was wrong, and stays right where it was right."""
    before = as_it_is[_key(wrong, AS_IT_IS)]
    limit = math.inf if before.verdict is Verdict.WRONG else before.most * _LESS
    tried: dict[tuple[str, int, str], _Found] = {}
    for ways in _in_turn(wrong.kernel):
        tried |= _measured([(wrong, way) for way in ways], run)
        if any(one.verdict is Verdict.RIGHT and one.most < limit for one in tried.values()):
            break
    near = {way: one.verdict for way in WAYS if (one := tried.get(_key(wrong, way))) and one.most < limit}
    for wanted in (Verdict.RIGHT, Verdict.NARROWED):
        ways = [way for way, verdict in near.items() if verdict is wanted]
        among = _measured([(seat, way) for seat in right for way in ways], run)
        for way in ways:
            if all(_verdict(among, seat, way) is Verdict.RIGHT for seat in right):
                return Repair(
                    nodes=(),
                    operator=wrong.kernel.operators[wrong.at],
                    way=way,
                    before=before.told,
                    after=tried[_key(wrong, way)].told,
                )
    return None


def _in_turn(kernel: Kernel) -> list[list[str]]:
    """The ways, all at once; one after the other where one alone is much to emulate."""
    size = max(math.prod(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in kernel.model.graph.input)
    return [[way] for way in WAYS] if size > _MUCH else [[*WAYS]]


def _seats_of(alone: Kernel, kernels: Sequence[Kernel], suspects: Collection[str], operator: str) -> list[_Seat]:
    """Where an operator sits: by itself first, then among its neighbours; not where two are of its type."""
    seats = [_Seat(kernel=alone, at=alone.operators.index(operator))] if alone.operators.count(operator) == 1 else []
    for kernel in kernels:
        middle = len(kernel.operators) // 2
        if kernel.place != "inside":
            continue
        if not set(alone.nodes).isdisjoint(kernel.nodes) and kernel.operators[middle] == operator:
            seats.append(_Seat(kernel=kernel, at=middle))
        elif kernel.operators[0] == operator and set(suspects).isdisjoint(kernel.nodes):
            seats.append(_Seat(kernel=kernel, at=0))  # the first of a graph has none before it
    return seats


def _measured(asked: Sequence[tuple[_Seat, str]], run: Runner) -> dict[tuple[str, int, str], _Found]:
    """What each way comes to in each place; nothing of those that are no way there."""
    trials: list[Trial] = []
    keys = {}
    for seat, way in asked:
        for trial in trials_of(seat.kernel, seat.at, way, len(trials)):
            trials.append(trial)
            keys[trial.prefix] = _key(seat, way)
    wanted: dict[str, Outputs] = {}
    found = {}
    for ran in run(trials) if trials else ():
        trial = next(trial for trial in trials if trial.prefix == ran.probe.prefix)
        kernel = trial.kernel
        if kernel.prefix not in wanted:
            wanted[kernel.prefix] = _on_the_cpu(kernel)
        found[keys[trial.prefix]] = _judged(trial, ran, wanted[kernel.prefix])
    return found


def _judged(trial: Trial, ran: Ran, wanted: Outputs) -> _Found:
    if not ran.ran:
        return _Found(verdict=Verdict.REFUSED, told=f"{ran.answer}: {ran.why}")
    kernel = trial.kernel
    off = deviation(wanted, {trial.of_kernel(name): values for name, values in ran.got.items()}, kernel.steps)
    numbers = {name: asdict(off)[name] for name in ("most", "usual", "span", "share", "odd")}
    verdict = verdict_of(kernel.operators, kernel.type, **numbers)
    if kernel.place == "inside" and verdict is not Verdict.RIGHT:
        far = off.usual > off.span / 20 and off.share > 0.05
        verdict = Verdict.WRONG if far or off.odd else Verdict.RIGHT
    return _Found(verdict=verdict, told=_told(off), most=off.most)


def _told(off: Deviation) -> str:
    return f"{off.odd} values are not finite" if off.odd else f"up to {off.most:.4g} of {off.span:.4g} steps off"


def _on_the_cpu(kernel: Kernel) -> Outputs:
    session = Session(kernel.model)
    made = session.runs(kernel.samples)
    return {name: [one[name] for one in made] for name in session.outputs}


def _key(seat: _Seat, way: str) -> tuple[str, int, str]:
    return seat.kernel.prefix, seat.at, way


def _verdict(answers: _Answers, seat: _Seat, way: str) -> Verdict | None:
    found = answers.get(_key(seat, way))
    return None if found is None else found.verdict

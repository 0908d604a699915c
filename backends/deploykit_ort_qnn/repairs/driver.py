"""Finds what can be done about kernels that are not right, for a finding to advise and for a package to do.

Every way is tried on the emulator; those are kept that are right there, in their order. What counts is the kernel's own
reference on the CPU over its whole grid, alone and among its neighbours: what is right for other models is not taken
unseen. It changes no model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from deploykit.model.nodes import label
from deploykit_ort_qnn.audit_units import Kernel, kernels_of
from deploykit_ort_qnn.kernel_bench import Answer, Bench, Seat, SeatedWay, verdict_on
from deploykit_ort_qnn.repairs.ways import WAYS
from deploykit_qualcomm.atlas.verdicts import Verdict

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Outlook", "Repair", "find_repairs", "outlooks"]

_MUCH = 1 << 16
_LESS = 0.5
"""How far off a way may be, of what it is instead of, where that is within what its operator costs."""
_WORST_FIRST = (Verdict.WRONG, Verdict.REFUSED, Verdict.NARROWED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A way that is right for equal nodes whose kernel is not; how far off it is before and after, in words."""

    nodes: tuple[str, ...]
    operator: str
    way: str
    before: str
    after: str

    @property
    def told(self) -> str:
        """What is done, how far off it is then, and how far it was."""
        return f"{WAYS[self.way].told}: {self.after}, before {self.before}"

    @property
    def words(self) -> str:
        """What it is called, and what is done."""
        return f"{self.way} ({WAYS[self.way].told})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Equal nodes whose kernel is not right, with every way that is, the one to take first."""

    nodes: tuple[str, ...]
    repairs: tuple[Repair, ...] = ()


def find_repairs(
    model: ModelProto, suspects: Collection[str], bench: Bench, *, named: Collection[str] = ()
) -> tuple[Repair, ...]:
    """For every distinct kernel of these nodes (labels) that is wrong, the way to do it, as far as there is one.

    Of ``named`` ones the outputs of the whole say that something is wrong, whatever their kernels cost otherwise: a way
    is one then if it is less than half as far off.
    """
    found = outlooks(model, suspects, bench, named=named)
    return tuple(one.repairs[0] for one in found if one.repairs)


def outlooks(
    model: ModelProto,
    suspects: Collection[str],
    bench: Bench,
    *,
    named: Collection[str] = (),
    faults: Collection[Verdict] = (Verdict.WRONG,),
) -> tuple[Outlook, ...]:
    """What can be done about each distinct kernel of these nodes that has one of these faults, or is ``named``."""
    cases = _cases(model, suspects, bench, named=named, faults=faults)
    tried = _tried(cases, bench)
    kept: list[tuple[Repair, ...]] = [() for _ in cases]
    for wanted in (Verdict.RIGHT, Verdict.NARROWED):
        near = [() if found else case.near(tried, wanted) for case, found in zip(cases, kept, strict=True)]
        pairs = [*zip(cases, near, strict=True)]
        among = bench.otherwise([(seat, way) for case, ways in pairs for seat in case.elsewhere for way in ways])
        for number, (case, ways) in enumerate(pairs):
            stays = [way for way in ways if all(_is_right(seat, way, among) for seat in case.right)]
            everywhere = [way for way in stays if all(_is_right(seat, way, among) for seat in case.bad)]
            kept[number] = kept[number] or tuple(case.repair(way, tried) for way in everywhere or stays)
    return tuple(Outlook(nodes=case.nodes, repairs=found) for case, found in zip(cases, kept, strict=True))


_Answers: TypeAlias = Mapping[SeatedWay, Answer]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Case:
    """An operator of equal nodes, where it is worst and what it is there.

    ``bad`` are the other places where it is so: a way that is right there too is better. In those that are ``right`` it
    must stay so.
    """

    nodes: tuple[str, ...]
    operator: str
    seat: Seat
    answer: Answer
    bad: tuple[Seat, ...]
    right: tuple[Seat, ...]

    @property
    def elsewhere(self) -> tuple[Seat, ...]:
        """All places but the worst."""
        return (*self.bad, *self.right)

    @property
    def verdict(self) -> Verdict:
        """What it is where it is worst."""
        return verdict_on(self.seat.kernel, self.answer)

    @property
    def limit(self) -> float:
        """Steps that a way may be off at most: what is computed nearly right is to be done much better, or left."""
        is_lost = self.verdict in (Verdict.WRONG, Verdict.REFUSED)
        return math.inf if is_lost else _most(self.answer) * _LESS

    @property
    def turns(self) -> list[list[str]]:
        """The ways, all at once; one after the other where one alone is much to emulate."""
        given = self.seat.kernel.model.graph.input
        size = max(math.prod(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in given)
        return [[way] for way in WAYS] if size > _MUCH else [[*WAYS]]

    def near(self, tried: _Answers, wanted: Verdict) -> list[str]:
        """The ways that come to this and are near enough."""
        found = ((way, tried.get(self.seat.by(way))) for way in WAYS)
        return [
            way
            for way, answer in found
            if answer is not None and verdict_on(self.seat.kernel, answer) is wanted and _most(answer) < self.limit
        ]

    def repair(self, way: str, tried: _Answers) -> Repair:
        """This way, with how far off it is before and after."""
        after = tried[self.seat.by(way)]
        return Repair(nodes=self.nodes, operator=self.operator, way=way, before=_told(self.answer), after=_told(after))


def _cases(
    model: ModelProto, suspects: Collection[str], bench: Bench, *, named: Collection[str], faults: Collection[Verdict]
) -> list[_Case]:
    kernels = [kernel for kernel in kernels_of(model, only=suspects) if not kernel.why]
    operators = {label(node): node.op_type for node in model.graph.node}
    known = {kernel.prefix: (kernel, answer) for kernel, answer in bench.as_they_are(kernels)}
    cases = []
    for alone in (kernel for kernel in kernels if kernel.place == "alone"):
        operator = operators[alone.nodes[0]]
        seats = [
            (seat, answer)
            for seat in _seats_of(alone, kernels, suspects, operator)
            if (answer := known[seat.kernel.prefix][1]) is not None
        ]
        bad = _bad(seats, faults, named=not set(named).isdisjoint(alone.nodes))
        if bad:
            seat, answer = bad[0]
            also = tuple(one for one, _ in bad[1:])
            right = tuple(one for one, _ in seats if one is not seat and one not in also)
            cases.append(_Case(nodes=alone.nodes, operator=operator, seat=seat, answer=answer, bad=also, right=right))
    return cases


def _bad(
    seats: Sequence[tuple[Seat, Answer]], faults: Collection[Verdict], *, named: bool
) -> list[tuple[Seat, Answer]]:
    """Where it has the worst of these faults; of a named one without any, where it is furthest off."""
    verdicts = [verdict_on(seat.kernel, answer) for seat, answer in seats]
    for fault in _WORST_FIRST:
        bad = [place for place, verdict in zip(seats, verdicts, strict=True) if verdict is fault and fault in faults]
        if bad:
            return bad
    return sorted(seats, key=lambda place: _most(place[1]))[-1:] if named else []


def _tried(cases: Sequence[_Case], bench: Bench) -> dict[SeatedWay, Answer]:
    """What the ways come to where each operator is worst; of much to emulate none after the first that is right."""
    found: dict[SeatedWay, Answer] = {}
    for ways in zip_longest(*(case.turns for case in cases), fillvalue=()):
        asked = [
            (case.seat, way)
            for case, some in zip(cases, ways, strict=True)
            if some and not case.near(found, Verdict.RIGHT)
            for way in some
        ]
        found |= bench.otherwise(asked)
    return found


def _seats_of(alone: Kernel, kernels: Sequence[Kernel], suspects: Collection[str], operator: str) -> list[Seat]:
    """Where an operator sits: by itself first, then among its neighbours; not where two are of its type."""
    seats = [Seat(kernel=alone, at=alone.operators.index(operator))] if alone.operators.count(operator) == 1 else []
    for kernel in kernels:
        middle = len(kernel.operators) // 2
        if kernel.place != "inside":
            continue
        if not set(alone.nodes).isdisjoint(kernel.nodes) and kernel.operators[middle] == operator:
            seats.append(Seat(kernel=kernel, at=middle))
        elif kernel.operators[0] == operator and set(suspects).isdisjoint(kernel.nodes):
            seats.append(Seat(kernel=kernel, at=0))  # the first of a graph has none before it
    return seats


def _is_right(seat: Seat, way: str, answers: _Answers) -> bool:
    return verdict_on(seat.kernel, answers.get(seat.by(way))) is Verdict.RIGHT


def _most(answer: Answer) -> float:
    return 0.0 if answer.deviation is None else answer.deviation.most


def _told(answer: Answer) -> str:
    off = answer.deviation
    if off is None:
        return f"{answer.answer}: {answer.why}"
    return f"{off.odd} values are not finite" if off.odd else f"up to {off.most:.4g} of {off.span:.4g} steps off"

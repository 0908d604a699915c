"""What packaging will make of encodings that were just made: the way it takes, ready to be run, and what refuses it.

The decision is ``deploykit.flow.plan``'s own, so that what is measured is what will be delivered. It judges and
writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from deploykit.accuracy.simulate.chain import Chain
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.backend.backend import SharedWork
from deploykit.encodings.float_sets import find_borders
from deploykit.flow.choose import choose_way
from deploykit.flow.plan import decide
from deploykit.flow.ways import segment_chain
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.backend.backend import AnyBackend, Progress, Situation
    from deploykit.encodings.values import EncodingSet
    from deploykit.flow.choose import ChosenWay

__all__ = ["Delivery", "deliver", "refused_by", "run_of"]

Run: TypeAlias = "Callable[[Feed], Mapping[str, npt.NDArray[Any]]]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """``way`` says in words what packaging changes, "" for nothing; ``run`` computes it; ``refused`` is why not.

    ``encodings`` are the entries where the graph stays as it was made, else None. ``on_npu`` is the share of nodes that
    are packaged for the accelerator: all, unless the host runs the end. ``borders`` are conversions to and from float.
    """

    way: str
    run: Run
    encodings: EncodingSet | None
    on_npu: float
    borders: int
    refused: str = ""


def deliver(backend: AnyBackend, situation: Situation, *, plans: bool, tell: Progress) -> Delivery:
    """Decide as packaging does; without ``plans`` only the way is chosen, and nothing can refuse it."""
    shared, refused = SharedWork(), ""
    if plans:
        decision = decide(backend, situation, shared, tell)
        chosen, refused = decision.chosen, _because(decision.plan)
    else:
        chosen = choose_way(backend, situation, shared, tell)
    won = chosen.prepared
    changed = bool(chosen.simplified) or chosen.situation.rewritten or bool(chosen.situation.segments)
    encodings = None if changed else chosen.situation.encodings if won is None else won.encodings
    return Delivery(
        way=chosen.explains,
        run=run_of(chosen),
        encodings=encodings,
        on_npu=_on_npu(chosen),
        borders=_borders(chosen),
        refused=refused,
    )


def refused_by(backend: AnyBackend, situation: Situation, tell: Progress) -> str:
    """Why a situation cannot be packaged; "" where it can."""
    return _because(decide(backend, situation, SharedWork(), tell).plan)


def _because(plan: Any) -> str:
    if plan.feasible:
        return ""
    blocking = [finding for finding in plan.findings if finding.blocks]
    return "; ".join(f"{one.code} {one.message}" for one in blocking[:2]) or "no route is open"


def run_of(chosen: ChosenWay) -> Run:
    """What computes the outputs of a way that was chosen."""
    situation, won = chosen.situation, chosen.prepared
    if situation.segments:
        return segment_chain(situation.segments, quantized=True, half=True).run
    model = lean_weights(situation.model) if won is None else won.model
    encodings = situation.encodings if won is None else won.encodings
    assert encodings is not None
    tail = [] if won is None or won.tail is None else [Session(won.tail)]
    return Chain([Simulator(model, encodings), *tail]).run


def _on_npu(chosen: ChosenWay) -> float:
    inside, won = len(chosen.situation.facts.nodes), chosen.prepared
    outside = 0 if won is None or won.tail is None else len(won.tail.graph.node)
    return inside / (inside + outside) if inside else 1.0


def _borders(chosen: ChosenWay) -> int:
    if chosen.prepared is not None:
        return chosen.prepared.way.borders
    encodings = chosen.situation.encodings
    return 0 if encodings is None else len(find_borders(chosen.situation.facts, encodings.floats))

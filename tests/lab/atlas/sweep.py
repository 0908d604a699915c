"""Runs units through one release's compiler and an emulator, and puts a number in dB to each; it judges nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atlas.units import Unit
from deploykit.accuracy.judge.measures import sqnr_db
from deploykit_ort_qnn.bench.together import Ran, run_together
from deploykit_ort_qnn.compiler.hosts import Host

__all__ = ["SAME", "Measured", "sweep"]

SAME = 200.0
"""dB of equal outputs: more than float32 can tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one release makes of one unit.

    ``answer`` is taken, refused, failed, crashed or timed-out; ``decibels`` of the worst output against the CPU, None
    where nothing ran, and ``why`` says why not.
    """

    unit: Unit
    answer: str
    decibels: float | None = None
    why: str = ""


def sweep(
    units: Sequence[Unit], *, host: Host | None, soc_model: int, progress: Callable[[str], None]
) -> Iterator[Measured]:
    """Every unit, in batches of one type and one operator set; ``host`` None is the wheel beside this Python."""
    kinds: dict[str, list[Unit]] = {}
    for one in units:
        kinds.setdefault(one.kind, []).append(one)
    for group in kinds.values():
        by_prefix = {one.prefix: one for one in group}
        for ran in run_together(group, host=host, soc_model=soc_model, progress=progress):
            yield _measured(by_prefix[ran.probe.prefix], ran)


def _measured(unit: Unit, ran: Ran) -> Measured:
    if not ran.ran:
        return Measured(unit=unit, answer=ran.answer, why=ran.why)
    values = [
        _decibels(one, two) for name, sets in ran.wanted.items() for one, two in zip(sets, ran.got[name], strict=True)
    ]
    worst = min(values)
    if math.isnan(worst):
        return Measured(unit=unit, answer="taken", decibels=-SAME, why="not finite")
    return Measured(unit=unit, answer="taken", decibels=round(max(-SAME, min(SAME, worst)), 1))


def _decibels(wanted: Any, got: Any) -> float:
    if wanted.shape != got.shape:
        return -SAME
    return sqnr_db(np.asarray(wanted, np.float64), np.asarray(got, np.float64))

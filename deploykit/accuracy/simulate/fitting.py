"""Judges a simulation on inputs that its encodings can hold; says nothing where only the inputs may be at fault.

Inputs that are derived from an input's own encoding fill its whole range everywhere at once, which real data does not:
the tensors behind it then leave the ranges they were calibrated for, and every right model looks wrong. So derived
inputs are made smaller until the loss no longer falls, and a miss on them is a no only where nothing is left of the
signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.accuracy.judge.judge import Judge, Numbers
from deploykit.accuracy.judge.verdict import Thresholds, Verdict
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Feed, group_room
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts
from deploykit.model.weights import mapped_bytes

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["FIRST", "Fitted", "Original", "fit_judge", "settled"]

_FACTORS = (0.5, 0.25)
"""How much smaller derived inputs are made where they are too large."""
_READ_FOR = 256
"""Bytes of weights for each number that nodes give, above which reading weights is nearly all of a run: then each
is used for a few numbers, as those of a convolution are for thousands."""
_DESTROYED_DB = 12.0
"""Below it, on the best of the derived inputs, the encodings are wrong and not the inputs: right models of the test
data have at least 14 dB there (4-bit weights), models with one destroyed tensor at most 10."""

_SAME_DB = 1.0

FIRST = 3
"""Samples whose outputs are kept: as many as a page draws."""

_PERHAPS = (
    "not judged: on derived inputs it misses what is asked, which may be the fault of the inputs; give --calibration"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """A judge on samples that the encodings can hold, and its verdict on the encodings as they are.

    ``first`` is what the simulation gave for the first of these samples, ``FIRST`` at most.
    """

    judge: Judge
    verdict: Verdict
    first: tuple[Mapping[str, Numbers], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Original:
    """The model as it was handed in: its judge, and what its encodings lose; None where it came without any."""

    judge: Judge
    quantization: Verdict | None = None


def fit_judge(
    model: ModelProto,
    facts: GraphFacts,
    encodings: EncodingSet,
    samples: Samples,
    thresholds: Thresholds | None = None,
) -> Fitted:
    """The judge of every execution of this model; samples other than derived ones are taken as they are."""
    first, *later = _rounds(model, facts) if samples.label is Label.DERIVED else ((1.0,),)
    start = Judge(
        model, facts, _drawn(samples, first), label=samples.label, thresholds=thresholds, stays_open=bool(later)
    )
    simulator = Simulator(model, encodings)
    tried = _tried(start, simulator, samples)
    for factors in later:
        if tried[-1].verdict.right:
            break
        tried += _tried(start.on(_drawn(samples, factors)), simulator, samples)
    for judge in (start, *(item.judge for item in tried)):
        judge.close()
    if tried[-1].verdict.right:
        return tried[-1]
    # Where size makes no difference, something else is wrong: what mends it is then seen best on the smallest.
    best = max(_order(item.verdict.overall_db) for item in tried)
    return next(item for item in reversed(tried) if _order(item.verdict.overall_db) >= best - _SAME_DB)


def _drawn(samples: Samples, factors: Iterable[float]) -> list[Feed]:
    """The samples at each of some sizes: float inputs that were derived are drawn towards zero, nothing else is."""
    derived = {name for name, source in samples.of_inputs.items() if source.label is Label.DERIVED}

    def at(factor: float, feed: Feed) -> Feed:
        return {
            name: value * value.dtype.type(factor) if name in derived and value.dtype.kind == "f" else value
            for name, value in feed.items()
        }

    return [feed if factor == 1 else at(factor, feed) for factor in factors for feed in samples.varied]


def _tried(judge: Judge, simulator: Simulator, samples: Samples) -> list[Fitted]:
    """The verdicts on the samples of each size, up to the first that is right."""
    shown, count, tried = simulator.runs(judge.feeds), len(samples.varied), list[Fitted]()
    for first in range(0, max(len(shown), 1), max(count, 1)):
        one, outputs = judge.part(first, first + count), shown[first : first + count]
        verdict = settled(one.compare(outputs), samples.label)
        tried.append(Fitted(judge=one, verdict=verdict, first=tuple(outputs[:FIRST])))
        if tried[-1].verdict.right:
            break
    return tried


def _rounds(model: ModelProto, facts: GraphFacts) -> tuple[tuple[float, ...], ...]:
    """The sizes of derived inputs that are run together, in the order in which they are judged.

    A model that reads its weights anew in each run is run once for all smaller inputs; where running it is little
    beside reading it, the smaller ones go with the first, whether they are needed or not.
    """
    weights = mapped_bytes(model)
    if weights <= group_room():
        return ((1.0,), *((factor,) for factor in _FACTORS))
    return ((1.0, *_FACTORS),) if _numbers(facts) * _READ_FOR < weights else ((1.0,), _FACTORS)


def _numbers(facts: GraphFacts) -> float:
    """How many numbers the nodes give together; without end where a shape is not known."""
    count = 0.0
    for fact in facts.tensors.values():
        if not fact.is_weight:
            known = [dim for dim in fact.shape or () if isinstance(dim, int)]
            is_known = fact.shape is not None and len(known) == len(fact.shape)
            count += math.prod(known) if is_known else math.inf
    return count


def settled(verdict: Verdict, label: Label) -> Verdict:
    """The verdict, without a no that derived inputs cannot carry."""
    if label is not Label.DERIVED or verdict.right is not False or _order(verdict.overall_db) < _DESTROYED_DB:
        return verdict
    return replace(verdict, right=None, reason=_PERHAPS)


def _order(value: float) -> float:
    return value if value == value else -np.inf

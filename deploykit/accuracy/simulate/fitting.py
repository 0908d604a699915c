"""Judges a simulation on inputs that its encodings can hold; says nothing where only the inputs may be at fault.

Inputs that are derived from an input's own encoding fill its whole range everywhere at once, which real data does not:
the tensors behind it then leave the ranges they were calibrated for, and every right model looks wrong. So derived
inputs are made smaller until the loss no longer falls, and a miss on them is a no only where nothing is left of the
signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from deploykit.accuracy.judge.judge import Judge, Numbers
from deploykit.accuracy.judge.verdict import Thresholds, Verdict
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["FIRST", "Fitted", "Original", "fit_judge", "settled"]

_FACTORS = (0.5, 0.25)
"""How much smaller derived inputs are made where they are too large."""
_DESTROYED_DB = 12.0
"""Below it, on the best of the derived inputs, the encodings are wrong and not the inputs: right models of the test
data have at least 14 dB there (4-bit weights), models with one destroyed tensor at most 10."""

_SAME_DB = 1.0

FIRST = 3
"""Samples whose outputs are kept: as many as a page draws."""

_PERHAPS = "not judged: it misses what is asked, perhaps only because the inputs are made up"


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
    derived = {name for name, source in samples.of_inputs.items() if source.label is Label.DERIVED}

    def drawn(factor: float, feed: Feed) -> Feed:
        """Float inputs that were derived are drawn towards zero, nothing else is."""
        small = {name for name in derived if feed[name].dtype.kind == "f"}
        return {name: value * value.dtype.type(factor) if name in small else value for name, value in feed.items()}

    session, simulator, tried = Session(model), Simulator(model, encodings), list[Fitted]()
    factors = (1.0, *_FACTORS) if samples.label is Label.DERIVED else (1.0,)
    sets = [
        samples.varied if factor == 1 else tuple(drawn(factor, feed) for feed in samples.varied) for factor in factors
    ]
    # Opening a model piece by piece costs more than what a few samples more do: then all sizes share one pass.
    for together in [sets] if session.streams or simulator.streams else [[one] for one in sets]:
        everything = [feed for feeds in together for feed in feeds]
        wanted, got = iter(session.runs(everything)), iter(simulator.runs(everything))
        for feeds in together:
            reference, outputs = list(islice(wanted, len(feeds))), list(islice(got, len(feeds)))
            judge = Judge(model, facts, feeds, label=samples.label, thresholds=thresholds, reference=reference)
            verdict = settled(judge.compare(outputs), samples.label)
            tried.append(Fitted(judge=judge, verdict=verdict, first=tuple(outputs[:FIRST])))
            if verdict.right:
                return tried[-1]
    # Where size makes no difference, something else is wrong: what mends it is then seen best on the smallest.
    best = max(_order(item.verdict.overall_db) for item in tried)
    return next(item for item in reversed(tried) if _order(item.verdict.overall_db) >= best - _SAME_DB)


def settled(verdict: Verdict, label: Label) -> Verdict:
    """The verdict, without a no that derived inputs cannot carry."""
    if label is not Label.DERIVED or verdict.right is not False or _order(verdict.overall_db) < _DESTROYED_DB:
        return verdict
    return replace(verdict, right=None, reason=_PERHAPS)


def _order(value: float) -> float:
    return value if value == value else -np.inf

"""The model as it was handed in, run on the samples of a request: what every package of it is judged by.

It runs no package and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.verdict import Against
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.fitting import Original, fit_judge
from deploykit.errors import DeploykitError
from deploykit.flow.samples import samples_of
from deploykit.model.weights import lean_weights

if TYPE_CHECKING:
    from deploykit.backend.backend import SharedWork
    from deploykit.flow.plan import Decision

__all__ = ["original_of"]


def original_of(decision: Decision[Any, Any], shared: SharedWork) -> Original | None:
    """Its judge, and what its encodings lose in a simulation; None where it does not run on the CPU.

    A model that comes without encodings is its own reference: more is asked of a package of the very same graph.
    """
    given, reference = decision.given, decision.chosen.reference
    samples = samples_of(given, shared)
    model, facts = lean_weights(given.model), given.facts
    try:
        if given.encodings is None:
            against = Against.QUANTIZED if facts.is_qdq else Against.FLOAT
            bits = 8 if facts.is_qdq else 0
            return Original(judge=Judge(model, facts, samples, against=against, same_graph=True, bits=bits))
        if samples.may_judge and (reference is None or samples.label is Label.DERIVED):
            fitted = fit_judge(model, facts, given.encodings, samples)
            return Original(judge=fitted.judge, quantization=fitted.verdict)
        return Original(judge=Judge(model, facts, samples), quantization=reference)
    except DeploykitError:
        return None

"""The samples of one request, gathered once per run and used by every judgement of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.accuracy.samples.declared import parse_declarations
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.backend.backend import Request, Situation
from deploykit.backend.kept import Kept, Same
from deploykit.model.weights import load_small_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.accuracy.samples.declared import Declaration
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.encodings.values import EncodingSet
    from deploykit.model.facts import GraphFacts

__all__ = ["declarations", "samples_of"]


def samples_of(situation: Situation, kept: Kept) -> Samples:
    """Given, declared, derived or arbitrary: the best there is for each input of the model as it was given.

    Raises InputError for data that does not fit the inputs, UsageError for a declaration that makes no sense.
    """

    def make() -> Samples:
        from deploykit.accuracy.samples.gathering import gather

        return gather(
            load_small_weights(situation.model),
            situation.facts,
            calibration=situation.request.calibration,
            declared=declarations(situation.request, situation.facts),
            encodings=_known_ranges(situation),
        )

    request = situation.request
    key = ("samples", Same(situation.model.proto), Same(situation.encodings), request.calibration, request.inputs)
    return kept.once(key, make)


def _known_ranges(situation: Situation) -> EncodingSet | None:
    """The encodings that were given; a quantized model says itself what its inputs hold."""
    if situation.encodings is not None or not situation.facts.is_qdq:
        return situation.encodings
    from deploykit.encodings.qdq import read_qdq

    return read_qdq(load_small_weights(situation.model), source=str(situation.model.path))


def declarations(request: Request, facts: GraphFacts) -> Mapping[str, Declaration]:
    """What ``--input`` says of each input."""
    if not request.inputs:
        return {}
    return parse_declarations(request.inputs, input_specs(facts))

"""The samples of one request, gathered once per run and used by every judgement of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.contract.backend import Request, Situation
from deploykit.contract.kept import Kept, Same
from deploykit.graph.mapped import load_small_weights
from deploykit.numerics.samples.declared import parse_declarations
from deploykit.numerics.samples.inputs import input_specs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.encodings.values import EncodingSet
    from deploykit.graph.facts import GraphFacts
    from deploykit.numerics.samples.declared import Declaration
    from deploykit.numerics.samples.gathering import Samples

__all__ = ["declarations", "samples_of"]


def samples_of(situation: Situation, kept: Kept) -> Samples:
    """Given, declared, derived or arbitrary: the best there is for each input of the model as it was given.

    Raises InputError for data that does not fit the inputs, UsageError for a declaration that makes no sense.
    """

    def make() -> Samples:
        from deploykit.numerics.samples.gathering import gather

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

"""Applies the rewrites that were asked for by name to a float or QDQ model, each proven on samples.

It judges no precision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.backend.backend import Situation
from deploykit.backend.kept import Kept
from deploykit.flow.entry_values import evidence_of
from deploykit.flow.qdq_rewrites import rewrite_quantized
from deploykit.flow.rewriting import Rewriting, rewrite
from deploykit.flow.sampling import samples_of
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights, whole_model

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["rewrite_as_asked"]


def rewrite_as_asked(situation: Situation, kept: Kept) -> tuple[Situation, Rewriting]:
    """The situation with the rewritten model, or the same one where no rewrite was kept, and the steps with reasons.

    The samples may be arbitrary: both models compute the same or not, whatever the inputs mean. Raises UsageError for a
    rewrite that nobody knows, InputError for samples that do not fit.
    """
    request = situation.request
    names = [name for name in dict.fromkeys(request.rewrite) if name not in request.no_rewrite]
    model, samples = lean_weights(situation.model), samples_of(situation, kept)
    if situation.facts.is_qdq:
        made = rewrite_quantized(model, names, samples.feeds, evidence=lambda changed: evidence_of(changed, samples))
    else:
        made = rewrite(model, situation.encodings, names, samples.feeds)
    return (_with(situation, made) if made.kept else situation), made


def _with(situation: Situation, made: Rewriting) -> Situation:
    model: ModelProto = made.model
    wrapped = wrap_proto(model, path=situation.model.path)
    return replace(
        situation,
        model=wrapped,
        facts=collect_facts(wrapped),
        encodings=made.encodings if situation.encodings is not None else None,
        rewritten=True,
        tail=None if made.tail is None else whole_model(made.tail).SerializeToString(deterministic=True),
    )

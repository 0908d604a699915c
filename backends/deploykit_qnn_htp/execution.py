"""Runs what can be run here: the compiler of a wheel where the route has one, else a second opinion on request.

A second opinion is evidence, never a proof for the user's SDK; what was asked and answered goes into the record.
"""

from __future__ import annotations

from pathlib import Path

from deploykit.backend.backend import Aids, Execution
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.model.weights import load_weights
from deploykit_qnn_htp.planning import ConversionPart, ConversionPlan
from deploykit_qnn_htp.prepare import PreparedConversions
from deploykit_qnn_htp.rules.opinion import RULES as OPINION_RULES
from deploykit_qnn_htp.rules.opinion import ConversionOpinion

__all__ = ["execute"]


def execute(package: Path, prepared: PreparedConversions, plan: ConversionPlan, aids: Aids) -> Execution:
    """What the provider's backend does, or a second opinion."""
    provider = next((part.provider for part in plan.details or () if part.provider is not None), None)
    return second_opinion(prepared, plan, aids) if provider is None else provider.execute(package, aids)


def second_opinion(prepared: PreparedConversions, plan: ConversionPlan, aids: Aids) -> Execution:
    """Compile every conversion of the plan with the compiler that the core hands over; nothing unless asked for."""
    if not prepared.situation.request.adapter_options.get("preflight"):
        return Execution()
    opinions = [_ask(part, aids) for part in plan.details or ()]
    return Execution(
        executed=("preflight",) if any(opinion.verdict.get("available") for opinion in opinions) else (),
        record={"preflight": {opinion.graph: dict(opinion.verdict) for opinion in opinions}},
        findings=tuple(finding for opinion in opinions for finding in OPINION_RULES.run(opinion)),
    )


def _ask(part: ConversionPart, aids: Aids) -> ConversionOpinion:
    asked = aids.opinion
    if asked is None:
        return ConversionOpinion(graph=part.paths.graph, asked="", verdict={"available": False})
    aids.progress(f"asking {asked.id} about {part.paths.graph}")
    device = part.draft.situation.target.device
    # The QDQ form of one conversion, or the float model where it has no encodings.
    model, completed = load_weights(part.draft.situation.model), part.draft.completed
    if completed is not None and len(completed):
        model = insert_qdq(model, completed, bias="float").model
    verdict = asked.preflight(bytes(model.SerializeToString()), device, aids.progress)
    return ConversionOpinion(graph=part.paths.graph, asked=asked.id, verdict=verdict)

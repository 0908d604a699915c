"""Asks another backend's compiler what it makes of the model: evidence, never a proof for the user's SDK.

It packages nothing; what was asked and answered goes into the manifest's record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploykit.contract.backend import Aids, Execution
from deploykit.contract.plans import Plan
from deploykit.findings import Severity, SubjectKind
from deploykit.rules import Found, Registry
from deploykit_qnn_htp.parts import Part
from deploykit_qnn_htp.prepare import Prepared

__all__ = ["OPINION_RULES", "Opinion", "second_opinion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one compiler said of one conversion; ``verdict`` as ``GivesSecondOpinion.preflight`` gives it."""

    graph: str
    asked: str
    verdict: Mapping[str, Any]


OPINION_RULES: Registry[Opinion] = Registry("second-opinion")


@OPINION_RULES.rule(
    "QNN131",
    "second-opinion",
    "info",
    what="The verdict of another backend's compiler on the quantized form of the model.",
    why="It is the same vendor's compiler, of another release than the package's SDK: what it refuses is worth knowing "
    "before a device is at hand, what it takes is no proof.",
    fix="read its findings in the manifest's record; package for that backend to see all of them",
    sources=("the compiler named in the message, run while packaging",),
)
def check_opinion(opinion: Opinion) -> Iterator[Found]:
    """A warning where it refuses, or where there is no compiler to ask."""
    verdict = opinion.verdict
    if not verdict.get("available"):
        message = f"no second opinion: {verdict.get('why', 'no backend offers one')}"
        yield Found(kind=SubjectKind.MODEL, name=opinion.graph, severity=Severity.WARNING, message=message)
        return
    ok = bool(verdict.get("ok"))
    yield Found(
        kind=SubjectKind.MODEL,
        name=opinion.graph,
        severity=None if ok else Severity.WARNING,
        message=f"{verdict['compiler']} {'compiles' if ok else 'refuses'} {opinion.graph}; {verdict['note']}",
        evidence={"status": verdict.get("status"), "codes": sorted({f["code"] for f in verdict.get("findings", ())})},
    )


def second_opinion(prepared: Prepared, plan: Plan[tuple[Part, ...]], aids: Aids) -> Execution:
    """Compile every conversion of the plan with the compiler that the core hands over; nothing unless asked for."""
    if not prepared.situation.request.adapter_options.get("preflight"):
        return Execution()
    opinions = [_ask(part, aids) for part in plan.details or ()]
    return Execution(
        executed=("preflight",) if any(opinion.verdict.get("available") for opinion in opinions) else (),
        record={"preflight": {opinion.graph: dict(opinion.verdict) for opinion in opinions}},
        findings=tuple(finding for opinion in opinions for finding in OPINION_RULES.run(opinion)),
    )


def _ask(part: Part, aids: Aids) -> Opinion:
    asked = aids.opinion
    if asked is None:
        return Opinion(graph=part.paths.graph, asked="", verdict={"available": False})
    aids.progress(f"asking {asked.id} about {part.paths.graph}")
    device = part.draft.situation.target.device
    verdict = asked.preflight(_quantized(part), device, aids.progress)
    return Opinion(graph=part.paths.graph, asked=asked.id, verdict=verdict)


def _quantized(part: Part) -> bytes:
    """The QDQ form of one conversion, or the float model where it has no encodings."""
    from deploykit.numerics.samples.feeds import load_weights

    model, completed = load_weights(part.draft.situation.model), part.draft.completed
    if completed is not None and len(completed):
        from deploykit.quantization.insert_qdq import insert_qdq

        model = insert_qdq(model, completed, bias="float").model
    return bytes(model.SerializeToString())

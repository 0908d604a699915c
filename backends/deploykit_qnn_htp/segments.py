"""Drafts the segments of a cut model as ordinary conversions: wholly integer ones, and wholly float ones.

It cuts nothing itself; the situation carries the segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.backend.backend import Request, Situation
from deploykit.encodings.float_sets import predict_float_set
from deploykit.errors import UsageError
from deploykit.findings import Finding
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit_qnn_htp.draft import Draft, draft_of, float16_plan
from deploykit_qnn_htp.encodings import complete
from deploykit_qnn_htp.routes import Intent, load_routes
from deploykit_qnn_htp.rules.prepared import RULES as DRAFT_RULES
from deploykit_qualcomm.rules.float16 import RULES as FLOAT16_RULES

if TYPE_CHECKING:
    from deploykit.encodings.segments import Segment
    from deploykit.encodings.values import EncodingSet
    from deploykit.model.facts import GraphFacts

__all__ = ["crossing_findings", "segment_drafts"]


def segment_drafts(whole: Draft) -> tuple[Draft, ...]:
    """One draft per segment, in the order in which they run. UsageError for options that contradict a cut."""
    situation = whole.situation
    _check_options(situation.request)
    drafts = []
    for segment in situation.segments:
        draft = _wholly_integer(draft_of(_situation_of(whole, segment)))
        handed_in = tuple(name for name in segment.inputs if name not in situation.facts.inputs)
        drafts.append(replace(draft, is_segment=True, handed_in=handed_in))
    return tuple(drafts)


def _check_options(request: Request) -> None:
    options = request.adapter_options
    listing = [row.id for row in load_routes().route if row.input_list]
    if options.get("input_list") is True or options.get("route") in listing:
        raise UsageError(
            "--input-list with a model that is cut into segments",
            why="segments are converted with complete encodings or wholly in float, and nothing is calibrated",
            next="leave it out, or choose another way with --mixed",
        )


def _situation_of(whole: Draft, segment: Segment) -> Situation:
    """The segment as if it were the model that was asked for."""
    situation = whole.situation
    model = wrap_proto(segment.model, path=situation.model.path)
    facts = collect_facts(model)
    encodings = _encodings_of(whole, segment, facts)
    return replace(
        situation,
        request=replace(situation.request, calibration=None, precision=_precision_of(situation.request, encodings)),
        model=model,
        facts=facts,
        encodings=encodings,
        rewritten=True,
        segments=(),
    )


def _encodings_of(whole: Draft, segment: Segment, facts: GraphFacts) -> EncodingSet | None:
    """The segment's own entries, and those that only the uncut graph lets follow; None for a float segment.

    A copy of an input that crosses a border has no entry of its own, and what it was copied from is elsewhere.
    """
    if segment.encodings is None:
        return None
    known = {} if whole.completed is None else whole.completed.entries
    derived = {name: entry for name, entry in known.items() if name in facts.tensors}
    entries = {**derived, **segment.encodings.entries}
    if not entries and not any(fact.is_float and not fact.is_weight for fact in facts.tensors.values()):
        return None  # shapes and indices only: there is nothing to quantize
    return replace(segment.encodings, entries=entries)


def _precision_of(request: Request, encodings: EncodingSet | None) -> str | None:
    if encodings is not None:
        return None
    return "fp32" if request.precision == "fp32" else "fp16"


def _wholly_integer(draft: Draft) -> Draft:
    """A quantized segment has no float set: what has no entry there is a gap, not an intent."""
    if draft.intent is not Intent.MIXED or draft.source is None or draft.before is None:
        return draft
    completed = complete(draft.source, draft.situation, frozenset())
    return replace(
        draft,
        intent=Intent.INTEGER,
        completed=completed,
        before=replace(draft.before, intended=frozenset()),
        after=predict_float_set(draft.situation.facts, completed),
    )


def crossing_findings(whole: Draft, drafts: Sequence[Draft]) -> tuple[Finding, ...]:
    """What only the uncut model shows: how the float set was found (QNN128), ranges from other segments (QNN127)."""
    found = DRAFT_RULES["QNN128"].run(whole)
    if whole.before is None:
        return tuple(found)
    floats = {name for draft in drafts if draft.source is None for name in _activations(draft)}
    wider = replace(whole.before, intended=whole.before.intended | floats)
    return (*found, *FLOAT16_RULES.run(float16_plan(replace(whole, before=wider, intent=Intent.MIXED))))


def _activations(draft: Draft) -> list[str]:
    return [name for name, fact in draft.situation.facts.tensors.items() if fact.is_float and not fact.is_weight]

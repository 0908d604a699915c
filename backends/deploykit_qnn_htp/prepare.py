"""The stage ``prepare``: drafts the whole model or every segment of a cut one; rules that look at values run here."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from deploykit.backend.backend import SharedWork, Situation
from deploykit.findings import Finding
from deploykit.flow.samples import largest_seen
from deploykit.records import Record
from deploykit_qnn_htp.commands import Paths, graph_name
from deploykit_qnn_htp.cutting import crossing_findings, cut_graphs, segment_drafts, wants_contexts
from deploykit_qnn_htp.draft import ConversionDraft, draft_of, float16_plan
from deploykit_qnn_htp.provider import ProviderPart, prepare_provider
from deploykit_qnn_htp.rules.prepared import RULES as DRAFT_RULES
from deploykit_qnn_htp.selection import select_route
from deploykit_qualcomm.rules.converters import FLOAT16_RULES
from deploykit_qualcomm.rules.registries import CONVERTERS, run_lint

__all__ = ["DraftedPart", "PreparedConversions", "prepare"]


class DraftedPart(Record):
    """One conversion before its route is known. ``segment`` is "" for a whole model."""

    draft: ConversionDraft
    paths: Paths
    segment: str = ""
    # The context that its graph shares with others, or with nothing but is one of several; "" otherwise.
    context: str = ""
    # What the provider's backend prepared, where its route is the one.
    provider: ProviderPart | None = None


class PreparedConversions(Record):
    """The draft of the whole model, and of each conversion; the same one where nothing is cut.

    ``findings`` are what only the uncut model shows.
    """

    whole: ConversionDraft
    parts: tuple[DraftedPart, ...]
    findings: tuple[Finding, ...] = ()


def prepare(situation: Situation, shared: SharedWork) -> PreparedConversions:
    """Everything the decision needs. UsageError for options that contradict a cut."""
    whole, graph = draft_of(situation), graph_name(situation.request.model)
    if wants_contexts(whole):
        # The parts of every graph; what only the uncut model shows is said of that, and only once.
        whole = _judged(whole, shared)
        cut = cut_graphs(whole)
        several = cut[-1][1] > 1
        made = []
        for name, number, draft in cut:
            context = f"{graph}_{number}" if several else graph
            paths = Paths(name, number if several else None, context)
            made.append(DraftedPart(draft=draft, paths=paths, segment=name, context=context))
        return PreparedConversions(whole=whole, parts=tuple(made), findings=whole.findings)
    if not situation.segments:
        whole = _judged(whole, shared)
        # The provider's backend prepares where the route that will be selected is its: weights may be loaded.
        selected, provider = select_route(whole).candidate, None
        if selected is not None and selected.route.by_provider and whole.carried is not None:
            provider = prepare_provider(situation, whole.carried, shared, dlc=selected.route.dlc)
        drafted = DraftedPart(draft=whole, paths=Paths(graph), provider=provider)
        return PreparedConversions(whole=whole, parts=(drafted,))
    drafts = segment_drafts(whole)
    parts = tuple(
        DraftedPart(draft=_judged(draft, shared), paths=Paths(f"{graph}_{segment.name}", number), segment=segment.name)
        for number, (segment, draft) in enumerate(zip(situation.segments, drafts, strict=True))
    )
    return PreparedConversions(whole=whole, parts=parts, findings=crossing_findings(whole, drafts))


def _judged(draft: ConversionDraft, shared: SharedWork) -> ConversionDraft:
    """The draft with what the rules say of it and of its graph."""
    # The shared rules see the encodings as they will be: what this adapter completes is not worth a warning.
    situation, source, completed = draft.situation, draft.source, draft.completed
    if source is not None and completed is not None:
        strangers = {entry.name: entry for entry in source if entry.name not in situation.facts.tensors}
        made = partial(replace, source, entries={**completed.entries, **strangers}, float_tensors=draft.float_set)
        situation = replace(situation, encodings=situation.facts.once(("as converted", completed), made))
    halves = replace(float16_plan(draft), seen=partial(largest_seen, draft.situation, shared))
    findings = (*DRAFT_RULES.run(draft), *FLOAT16_RULES.run(halves), *run_lint(situation, CONVERTERS))
    return replace(draft, findings=findings)

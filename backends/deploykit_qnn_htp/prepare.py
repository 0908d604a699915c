"""The stage ``prepare``: drafts the whole model, or each part of a cut one (a segment, or one context's graph).

Rules that look at values run here. Weights are only read to check that two files hold equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from onnx import ModelProto

from deploykit.backend.backend import SharedWork, Situation
from deploykit.encodings.cut import CutPart, cut_alike, large_weights
from deploykit.encodings.float_sets import predict_float_set
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.errors import UsageError
from deploykit.findings import Findings, listed
from deploykit.findings.records import Record, replace
from deploykit.flow.samples import largest_seen
from deploykit.model.collect import collect_facts
from deploykit.model.load import Model, load_model, wrap_proto
from deploykit.model.values import byte_size
from deploykit.model.weights import weight
from deploykit_qnn_htp.commands import Paths, graph_name
from deploykit_qnn_htp.draft import (
    ConversionDraft,
    Intent,
    complete,
    draft_of,
    float16_plan,
    load_routes,
)
from deploykit_qnn_htp.provider import ProviderPart, prepare_provider
from deploykit_qnn_htp.rules.prepared import RULES as DRAFT_RULES
from deploykit_qnn_htp.selection import select_route
from deploykit_qualcomm.devices import capability, has
from deploykit_qualcomm.rules.converters import FLOAT16_RULES
from deploykit_qualcomm.rules.registries import CONVERTERS, run_lint

__all__ = ["DraftedPart", "PreparedConversions", "prepare"]


class DraftedPart(Record, kw_only=False):
    """One conversion before its route is known. ``segment`` is the part's name, "" for a whole model."""

    draft: ConversionDraft
    paths: Paths
    segment: str = ""
    # The name of the graph's context if several graphs share it, or the model has several contexts; else "".
    context: str = ""
    # The result of the provider's backend, if the route is the provider's.
    provider: ProviderPart | None = None


class PreparedConversions(Record, kw_only=False):
    """The draft of the whole model, and of each conversion; without a cut they are the same.

    ``findings`` are those that only the uncut model shows.
    """

    whole: ConversionDraft
    parts: tuple[DraftedPart, ...]
    findings: Findings = ()


def prepare(situation: Situation, shared: SharedWork) -> PreparedConversions:
    """Drafts every conversion. Raises UsageError for options that contradict a cut."""
    whole, graph = draft_of(situation), graph_name(situation.request.model)
    if wants_contexts(whole):
        # Findings that only the uncut model shows are made of it, once.
        whole = _judged(whole, shared)
        cut = cut_graphs(whole)
        several = cut[-1][1] > 1
        made = []
        for name, number, draft in cut:
            context = f"{graph}_{number}" if several else graph
            paths = Paths(name, number if several else None, context)
            made.append(DraftedPart(draft, paths, segment=name, context=context))
        return PreparedConversions(whole, tuple(made), findings=whole.findings)
    if not situation.segments:
        whole = _judged(whole, shared)
        # The provider's backend prepares only if its route will be selected, as it may load weights.
        selected, provider = select_route(whole).candidate, None
        if selected is not None and selected.route.by_provider and whole.carried is not None:
            provider = prepare_provider(situation, whole.carried, shared, dlc=selected.route.dlc)
        return PreparedConversions(whole, (DraftedPart(whole, Paths(graph), provider=provider),))
    drafts = segment_drafts(whole)
    parts = tuple(
        DraftedPart(_judged(draft, shared), Paths(f"{graph}_{segment.name}", number), segment=segment.name)
        for number, (segment, draft) in enumerate(zip(situation.segments, drafts, strict=True))
    )
    return PreparedConversions(whole, parts, findings=crossing_findings(whole, drafts))


def _judged(draft: ConversionDraft, shared: SharedWork) -> ConversionDraft:
    """The draft with the findings of the rules about it and its graph."""
    # The rules see the completed encodings: entries that this adapter adds deserve no warning.
    situation, source, completed = draft.situation, draft.source, draft.completed
    if source is not None and completed is not None:
        strangers = {entry.name: entry for entry in source if entry.name not in situation.facts.tensors}
        made = partial(replace, source, entries={**completed.entries, **strangers}, float_tensors=draft.float_set)
        situation = replace(situation, encodings=situation.facts.once(("as converted", completed), made))
    halves = replace(float16_plan(draft), seen=partial(largest_seen, draft.situation, shared))
    findings = (*DRAFT_RULES.run(draft), *FLOAT16_RULES.run(halves), *run_lint(situation, CONVERTERS))
    return replace(draft, findings=findings)


def wants_contexts(whole: ConversionDraft) -> bool:
    """True if there is a second graph, or the model is to be cut by size. Raises UsageError for contradicting
    options.
    """
    situation = whole.situation
    also, parts = situation.request.adapter_options.get("also"), parts_wanted(whole)
    if also is None and parts == 1:
        return False
    name = "--also" if also is not None else f"{parts} parts"
    if situation.segments or situation.tail is not None:
        raise UsageError(f"{name}: the model is cut already, to mix types", next="add --mixed fallback")
    if also is not None and situation.rewritten:
        why = "its first graph is rewritten, and the second one would no longer have the same weights"
        raise UsageError("--also: not with rewriting", why=why, next="add --no-rewrite and the names that 'plan' gives")
    if also is not None and not has("weight_sharing", situation.target.device):
        why = f"{situation.target.device.name} ({whole.arch or 'no known architecture'}) is not known to share weights"
        raise UsageError("--also: not on this device", why=why, next="package the graphs one by one")
    return True


def parts_wanted(whole: ConversionDraft) -> int:
    """The number of parts asked for; else the fewest with which each part's weights fit the compiler's limit."""
    asked = whole.situation.request.adapter_options.get("parts")
    if isinstance(asked, int):
        return asked
    limit = capability("graph_limit_kb", device=whole.situation.target.device)
    if limit is None or not isinstance(limit.value, int):
        return 1
    return max(1, -(-sum(_sizes(whole).values()) // (limit.value << 10)))


def cut_graphs(whole: ConversionDraft) -> list[tuple[str, int, ConversionDraft]]:
    """The parts of every graph, context by context: (name, number of its context from 1 on, draft)."""
    drafts = [whole, *_second(whole)]
    cut = cut_alike([draft.situation.model.proto for draft in drafts], parts_wanted(whole), _sizes(whole))
    names = [graph_name(draft.situation.model.path) for draft in drafts]
    if len(set(names)) < len(names):
        raise UsageError(f"--also: both graphs are called {names[0]}", next="rename one of the files")
    shared = len(drafts) > 1
    return [
        (f"{name}_{number}", number, _draft_of(draft, part, shared))
        for number, parts in enumerate(zip(*cut, strict=True), 1)
        for name, draft, part in zip(names, drafts, parts, strict=True)
    ]


def _second(whole: ConversionDraft) -> Iterable[ConversionDraft]:
    """The draft of the second graph, with those entries of the first one that it has tensors for."""
    path = whole.situation.request.adapter_options.get("also")
    if path is None:
        return
    model = load_model(path)
    _check_same_weights(whole.situation.model, model)
    facts = collect_facts(model)
    encodings = whole.situation.encodings
    if encodings is not None:
        entries = {name: entry for name, entry in encodings.entries.items() if name in facts.tensors}
        encodings = replace(encodings, entries=entries)
    yield draft_of(replace(whole.situation, model=model, facts=facts, encodings=encodings))


def _check_same_weights(first: Model, second: Model) -> None:
    """Raises UsageError if the graphs share no weight, or if weights of one name differ."""
    shared = large_weights(first.proto).keys() & large_weights(second.proto).keys()
    if not shared:
        why = f"{second.path.name} has no weight of a name that {first.path.name} has"
        raise UsageError("--also: nothing to share", why=why, next="package the graphs one by one")
    # Weights at the same byte of the same file need not be read.
    places = [
        {claim.tensor: (file.path, claim.offset) for file in model.external for claim in file.claims}
        for model in (first, second)
    ]
    other = []
    for name in sorted(shared):
        one, two = first.stored[name], second.stored[name]
        where = [found.get(name) for found in places]
        alike = (one.data_type, list(one.dims)) == (two.data_type, list(two.dims))
        if not alike or (
            (where[0] != where[1] or where[0] is None) and not np.array_equal(weight(first, name), weight(second, name))
        ):
            other.append(name)
    if other:
        raise UsageError(
            f"--also: {len(other)} weights have the same name and other values: {listed(other)}",
            next="export both graphs from one model, or package them one by one",
        )


def _sizes(whole: ConversionDraft) -> dict[str, int]:
    """The bytes of every weight as it will be on the device: in the width of its grid, or in float16."""
    situation = whole.situation
    entries = {} if situation.encodings is None else situation.encodings.entries
    sizes = {}
    for name, elements in large_weights(situation.model.proto).items():
        value = getattr(entries.get(name), "value", None)
        stored = situation.model.stored[name]
        width = 16 if situation.facts.tensors[name].is_float else 8 * byte_size(stored, name) / elements
        bits = value.bits if isinstance(value, Affine | Lpbq) else width
        sizes[name] = int(elements * bits) // 8
    return sizes


def _part_of(whole: ConversionDraft, model: ModelProto, encodings: EncodingSet | None) -> Situation:
    """A part as a situation of its own, with entries that can only be derived on the uncut graph.

    For example a copy of an input that crosses a border has no entry itself, and its source is in another part.
    """
    situation = whole.situation
    made = wrap_proto(model, path=situation.model.path)
    facts = collect_facts(made)
    if encodings is not None:
        known = {} if whole.completed is None else whole.completed.entries
        entries = {name: entry for name, entry in {**known, **encodings.entries}.items() if name in facts.tensors}
        encodings = replace(encodings, entries=entries, float_tensors=encodings.float_tensors & facts.tensors.keys())
    request = replace(situation.request, calibration=None)
    changed = replace(situation, request=request, model=made, facts=facts, encodings=encodings)
    return replace(changed, rewritten=True, segments=())


def _draft_of(whole: ConversionDraft, part: CutPart, shared: bool) -> ConversionDraft:
    """The draft of a part; if several graphs share a context, by a route that makes a DLC."""
    situation = _part_of(whole, part.model, whole.situation.encodings)
    draft, request = replace(draft_of(situation), is_segment=True), situation.request
    # A named route that makes no DLC is refused; without a name one that does is chosen.
    named, rows = request.adapter_options.get("route"), load_routes().route
    makes = {row.id: row.intents for row in rows if not (row.legacy or row.by_provider)}
    if not shared or named in makes or (named is not None and named not in [row.id for row in rows]):
        return draft
    able = next((name for name, intents in makes.items() if draft.intent in intents), None)
    if able is None:
        raise UsageError(f"--also: no route makes a DLC of a model that is {draft.intent}", next="give encodings")
    if named is not None:
        what = f"--also: the route {named} makes no DLC, of which several fit into one context"
        raise UsageError(what, next=f"--route {able}, or leave it out")
    asked = replace(request, adapter_options={**request.adapter_options, "route": able})
    return replace(draft, situation=replace(draft.situation, request=asked))


def segment_drafts(whole: ConversionDraft) -> tuple[ConversionDraft, ...]:
    """One draft per segment, in the order in which they run. Raises UsageError for options that contradict a cut."""
    situation = whole.situation
    options = situation.request.adapter_options
    listing = [row.id for row in load_routes().route if row.input_list]
    if options.get("input_list") is True or options.get("route") in listing:
        raise UsageError(
            "--input-list with a model that is cut into segments",
            why="segments are converted with complete encodings or wholly in float, and nothing is calibrated",
            next="leave it out, or choose another way with --mixed",
        )
    drafts = []
    for segment in situation.segments:
        part = _part_of(whole, segment.model, segment.encodings)
        computed = (fact for fact in part.facts.tensors.values() if fact.is_float and not fact.is_weight)
        if part.encodings is not None and not part.encodings.entries and not any(computed):
            part = replace(part, encodings=None)  # it has shapes and indices only, so there is nothing to quantize
        floats = "fp32" if situation.request.precision == "fp32" else "fp16"
        precision = None if part.encodings is not None else floats
        draft = draft_of(replace(part, request=replace(part.request, precision=precision)))
        # A quantized segment has no float set: a tensor without an entry is a gap there.
        if draft.intent is Intent.MIXED and draft.source is not None and draft.before is not None:
            completed = complete(draft.source, draft.situation, frozenset())
            before = replace(draft.before, intended=frozenset())
            after = predict_float_set(draft.situation.facts, completed)
            draft = replace(draft, intent=Intent.INTEGER, completed=completed, before=before, after=after)
        handed_in = tuple(name for name in segment.inputs if name not in situation.facts.inputs)
        drafts.append(replace(draft, is_segment=True, handed_in=handed_in))
    return tuple(drafts)


def crossing_findings(whole: ConversionDraft, drafts: Sequence[ConversionDraft]) -> Findings:
    """Findings that need the uncut model: how the float set was found (QNN128), ranges from other segments (QNN127)."""
    found = DRAFT_RULES["QNN128"].run(whole)
    if whole.before is None:
        return tuple(found)
    floats = {
        name
        for draft in drafts
        if draft.source is None
        for name, fact in draft.situation.facts.tensors.items()
        if fact.is_float and not fact.is_weight
    }
    wider = replace(whole.before, intended=whole.before.intended | floats)
    return (*found, *FLOAT16_RULES.run(float16_plan(replace(whole, before=wider, intent=Intent.MIXED))))

"""The stage ``plan``: one conversion for a whole model, one per segment or context for a cut one.

It reads values and tables only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

from msgspec.structs import replace

from deploykit.backend.plans import Plan, PlannedPrecision, Route, Step
from deploykit.encodings.formats.conversion import Conversion, convert
from deploykit.encodings.place import layouts
from deploykit.encodings.values import Encoding, Float
from deploykit.errors import UsageError
from deploykit.findings import Findings, each_once, exit_status
from deploykit_qnn_htp.commands import from_dlc, net_run, shared_steps, steps
from deploykit_qnn_htp.configs import build_configs, parse_settings
from deploykit_qnn_htp.draft import FLOAT_KINDS, ConversionDraft, RouteCandidate
from deploykit_qnn_htp.prepare import DraftedPart, PreparedConversions
from deploykit_qnn_htp.selection import Selection, alternatives, select_route

__all__ = ["ConversionPart", "ConversionPlan", "in_contexts", "make_plan"]


class ConversionPart(DraftedPart, dict=True):
    """A drafted conversion with its selected route; ``provider`` is set and has decided if the route is the
    provider's.
    """

    selection: Selection

    @property
    def candidate(self) -> RouteCandidate:
        """The selected route with its draft; call it only if a route was found."""
        assert self.selection.candidate is not None
        return self.selection.candidate

    @property
    def findings(self) -> Findings:
        """Findings about the draft, the graph and the routes; with a provider those of its plan instead of
        the draft's.
        """
        if self.provider is not None:
            return (*self.provider.decision.findings, *self.selection.findings)
        return (*self.draft.findings, *self.selection.findings)

    @cached_property
    def conversion(self) -> Conversion | None:
        """The encodings as this route's converter gets them; None if it gets none."""
        candidate, draft, version = self.candidate, self.draft, self.candidate.version
        if draft.completed is None or version is None:
            return None
        encodings = draft.completed
        if candidate.route.explicit_float:
            tensors = draft.situation.facts.tensors
            floats = {
                n: Encoding(n, Float("float16"), is_param=n in tensors and tensors[n].is_weight)
                for n in sorted(draft.float_set)
            }
            encodings = replace(encodings, entries={**encodings.entries, **floats})
        encodings = replace(encodings, float_tensors=frozenset())
        conversion = convert(encodings, version, layouts=layouts(draft.situation.facts))
        # Encodings that omit floats cannot say which tensors are float, so these are named separately.
        if draft.float_set and not conversion.float_tensors and not candidate.route.explicit_float:
            return replace(conversion, encodings=replace(conversion.encodings, float_tensors=draft.float_set))
        return conversion

    @property
    def precision(self) -> PlannedPrecision:
        """The intended and the expected type of every tensor of this conversion that has one."""
        return precision_of(self.draft) if self.provider is None else self.provider.decision.precision


ConversionPlan: TypeAlias = Plan[tuple[ConversionPart, ...]]


def in_contexts(parts: Iterable[ConversionPart]) -> tuple[tuple[ConversionPart, ...], ...]:
    """The parts grouped by the context that their graphs are in, in order."""
    return tuple(tuple(group) for _, group in groupby(parts, key=lambda part: part.context or part.paths.graph))


def part_of(drafted: DraftedPart) -> ConversionPart:
    """Selects the route of one draft; if it is the provider's, the provider's backend decides."""
    selection, paths, provider = select_route(drafted.draft), drafted.paths, None
    if drafted.provider is not None and selection.candidate is not None:
        provider = drafted.provider.planned()
        if provider.decision.route is None:
            selection = selection.without(provider.decision)
        else:
            paths = paths.of(
                model=provider.model, context=paths.context if provider.dlc else provider.binary, dlc=provider.dlc
            )
    return ConversionPart(
        draft=drafted.draft,
        selection=selection,
        paths=paths,
        segment=drafted.segment,
        context=drafted.context,
        provider=provider,
    )


def precision_of(draft: ConversionDraft) -> PlannedPrecision:
    """The intended and the expected type of every tensor of a draft that has one."""
    if draft.source is None or draft.after is None or draft.completed is None:
        if draft.intent not in FLOAT_KINDS:
            return PlannedPrecision()
        names = [name for name, fact in draft.situation.facts.tensors.items() if fact.is_float and not fact.is_weight]
        types = dict.fromkeys(names, FLOAT_KINDS[draft.intent])
        return PlannedPrecision(types, types)
    intended = {entry.name: entry.dtype for entry in draft.completed}
    intended |= dict.fromkeys(sorted(draft.float_set), "float16")
    expected = {entry.name: entry.dtype for entry in draft.completed}
    expected |= dict.fromkeys(sorted(draft.after.predicted), "float16")
    return PlannedPrecision(intended, expected)


def joined_precision(whole: ConversionDraft, parts: Iterable[ConversionPart]) -> PlannedPrecision:
    """The types of the whole model: intended by the encodings, expected from the segment that makes a tensor."""
    intended = precision_of(whole).intended
    expected = dict[str, str]()
    for part in parts:
        types, kind = dict(part.precision.expected), FLOAT_KINDS.get(part.draft.intent)
        if kind is not None:  # weights are converted to float although they have entries
            tensors = part.draft.situation.facts.tensors
            types |= {name: kind for name in tensors if tensors[name].is_weight and name in intended}
        expected = {**types, **expected}
    return PlannedPrecision(intended, expected)


def make_plan(prepared: PreparedConversions) -> ConversionPlan:
    """Decides the routes and the steps for one prepared model."""
    draft, situation = prepared.whole, prepared.whole.situation
    settings = parse_settings(situation.request.options, draft.sdk, situation.target.device)
    parts = tuple(part_of(drafted) for drafted in prepared.parts)
    if situation.request.adapter_options.get("emit") and not any(part.provider for part in parts):
        why = "the SDK's own tools cannot be installed on a hosted machine"
        raise UsageError("--emit: nothing of this route can run there", why=why, next="add --route provider-context")
    cut = bool(parts[0].segment)
    findings = parts[0].findings
    if cut:
        # QNN127 is judged on the uncut model, by ``crossing_findings``.
        inside = (finding for part in parts for finding in part.findings if finding.code != "QNN127")
        findings = (*inside, *prepared.findings)
    # The alternatives for the whole model are the routes that the selection did not reach.
    seen = [part.candidate.route.id for part in parts if part.selection.candidate is not None and not part.segment]
    seen += [row.id for part in parts for row in part.selection.rejected]
    plan: ConversionPlan = Plan(
        backend="qnn-htp",
        target=situation.target.device.to_json(),
        sdk=situation.target.sdk_json(),
        route=_route(parts),
        rejected=tuple(
            replace(row, id=f"{part.segment}: {row.id}" if part.segment else row.id)
            for part in parts
            for row in part.selection.rejected
        ),
        alternatives=alternatives(draft, seen),
        precision=joined_precision(draft, parts) if cut else parts[0].precision,
        findings=each_once(findings),  # segments may have equal findings
    )
    if plan.route is None or exit_status(situation.target.findings):
        return plan
    rows = list[Step]()
    files = dict[str, Any]()
    for group in in_contexts(parts):
        part, provider, named = group[0], group[0].provider, group[0].provider is None
        if len(group) > 1:  # several graphs in one context need an application, so no step runs them on the device
            rows += shared_steps([(other.candidate, other.paths) for other in group])
        elif provider is None:
            rows += steps(part.candidate, part.paths)
        else:
            ends = from_dlc(draft.sdk, part.paths) if provider.dlc else [net_run(draft.sdk, part.paths)]
            rows += [*provider.steps, *ends]
            files |= provider.decision.configs
        prepares = provider is None or bool(provider.dlc)
        graphs = [other.paths.graph for other in group]
        device = situation.target.device
        files |= build_configs(settings, draft.sdk, device, part.paths, named=named, graphs=graphs, prepares=prepares)
    # Steps for the host come first, then those for the device.
    ordered = tuple(sorted(rows, key=lambda step: step.where == "device"))
    return replace(plan, steps=ordered, configs=files, details=parts)


def _route(parts: Sequence[ConversionPart]) -> Route | None:
    """The route of a single conversion, or of all segments together; None if one of them has none."""
    if any(part.selection.candidate is None for part in parts):
        return None
    rows = [part.candidate.route for part in parts]
    written = [part.candidate.version for part in parts if part.candidate.version is not None]
    names = tuple(dict.fromkeys(row.id for row in rows))
    why, cut_by_type = rows[0].why, parts[0].segment and not parts[0].context
    if cut_by_type:
        each = ", ".join(f"{part.segment} by {row.id}" for part, row in zip(parts, rows, strict=True))
        why = (
            f"the graph is cut at precision borders into {len(parts)} segments that are wholly integer or wholly "
            f"float, each an ordinary conversion with a context binary of its own: {each}"
        )
    elif parts[0].segment:
        contexts = in_contexts(parts)
        graphs = len(contexts[0])
        cut = f"every graph is cut into {len(contexts)} parts" if len(contexts) > 1 else "nothing is cut"
        each = f"the {graphs} graphs of a context share one copy of their weights" if graphs > 1 else "a context each"
        why = f"{cut}, {each}; {why}"
    if written:
        why += f"; encodings are written as {written[0]}"
    return Route(
        "segments" if cut_by_type else "-and-".join(names),
        why,
        confidence=max((row.confidence for row in rows), key=lambda confidence: confidence.rank),
        sources=tuple(dict.fromkeys(source for row in rows for source in row.source)),
    )

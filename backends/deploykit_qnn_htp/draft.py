"""What is known before a route is chosen: the existing routes, the intent, completed encodings, gaps and widths.

It selects no route and writes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, cached_property, partial
from pathlib import Path

from packaging.version import Version

from deploykit.backend.backend import Situation
from deploykit.backend.requests import bits_of
from deploykit.encodings.complete import complete as complete_set
from deploykit.encodings.float_sets import FloatPrediction, predict_float_set
from deploykit.encodings.formats.conversion import writable_versions
from deploykit.encodings.values import EncodingSet, Float
from deploykit.errors import UsageError
from deploykit.findings import Findings
from deploykit.findings.records import Names, Record, replace
from deploykit.model.collect import constant_value
from deploykit.tables.capabilities import SdkTable, Status
from deploykit.tables.reading import read_toml, structure
from deploykit.tables.sources import SourcedRow
from deploykit_qnn_htp.provider import carried_for
from deploykit_qualcomm.carriers import Carried
from deploykit_qualcomm.devices import arch_of
from deploykit_qualcomm.rules.converters import Float16Plan

__all__ = [
    "FLOAT_KINDS",
    "PROVIDER_TOOL",
    "ConversionDraft",
    "ConverterRoute",
    "Intent",
    "RouteCandidate",
    "complete",
    "draft_of",
    "float16_plan",
    "load_routes",
    "preference",
    "route_row",
]


# The tool of routes and steps in which no part of the SDK takes part.
PROVIDER_TOOL = "onnxruntime-qnn"


class Intent(StrEnum):
    """The precision that the request wants for the model as a whole."""

    INTEGER = "integer"
    MIXED = "mixed"
    CALIBRATED = "calibrated"
    QDQ = "qdq"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class ConverterRoute(SourcedRow):
    """One route: its converter, the intents it serves, and the encodings versions its converter may get, best first."""

    id: str
    tool: str
    intents: tuple[Intent, ...]
    encodings: Names
    input_list: bool
    float_fallback: bool
    why: str
    quantizer_v2: bool = False
    explicit_float: bool = False
    # True if the provider makes a DLC and the SDK's own generator compiles it. Such a route is only offered.
    dlc: bool = False

    @property
    def legacy(self) -> bool:
        """True for a route through a model library instead of a DLC."""
        return self.tool == "qnn-onnx-converter"

    @property
    def by_provider(self) -> bool:
        """True for a route without any tool of the SDK: the compiler is inside a public wheel."""
        return self.tool == PROVIDER_TOOL


class Preference(SourcedRow):
    """The order in which routes are tried for one intent, from one SDK version on."""

    intent: Intent
    since: str
    order: Names
    why: str


class RouteTable(Record):
    schema: int
    route: tuple[ConverterRoute, ...]
    preference: tuple[Preference, ...]


@cache
def load_routes() -> RouteTable:
    """The table of routes and preferences."""
    path = Path(__file__).parent / "data" / "routes.toml"
    return structure(RouteTable, read_toml(path), where=path.name)


def route_row(route_id: str) -> ConverterRoute:
    """The row of one route."""
    return next(row for row in load_routes().route if row.id == route_id)


def preference(intent: Intent, version: Version) -> Preference:
    """The order of routes for an intent under one SDK version."""
    rows = [row for row in load_routes().preference if row.intent is intent and Version(row.since) <= version]
    return max(rows, key=lambda row: Version(row.since))


# The most elements of a stored tensor that is read to derive an entry from its values.
_LARGEST_BIAS = 1 << 20


def complete(encodings: EncodingSet, situation: Situation, floats: frozenset[str]) -> EncodingSet:
    """The integer entries, given or derived: copies over data movement, int32 biases. Float entries are left out.

    Nothing is derived for or through ``floats``, the tensors intended as float.
    """
    tensors = situation.facts.tensors
    integers = {
        entry.name: entry
        for entry in encodings
        if entry.name in tensors and entry.name not in floats and not isinstance(entry.value, Float)
    }
    named = replace(encodings, entries=integers, float_tensors=floats)
    values = partial(constant_value, situation.model, limit=_LARGEST_BIAS)
    completed, _ = complete_set(named, situation.facts, read_values=values)
    return replace(completed, float_tensors=frozenset())


# The type of every activation if the intent is float as a whole.
FLOAT_KINDS = {Intent.FLOAT16: "float16", Intent.FLOAT32: "float32"}

_PRECISIONS = {"fp32": Intent.FLOAT32, "fp16": Intent.FLOAT16}
_CALIBRATED = ("w8a8", "w8a16", "w4a8", "w4a16", "w16a16")


class ConversionDraft(Record, dict=True):
    """All facts that do not depend on the route. ``completed`` has derived
    entries and int32 biases, and no float entry.

    ``float_set`` are the tensors intended as float; ``gaps`` are other tensors without an entry. ``handed_in`` are
    inputs of a segment that earlier segments make. ``carried`` is the compiler in a public wheel for the target, None
    if there is none. The converter gets the ``widths`` of weights and activations, so that no gap gets its 8-bit
    default. ``findings`` are about the draft and the graph, not a route.
    """

    situation: Situation
    intent: Intent
    source: EncodingSet | None
    completed: EncodingSet | None
    before: FloatPrediction | None
    after: FloatPrediction | None
    widths: tuple[int, int]
    input_list_wanted: bool | None
    is_segment: bool = False
    handed_in: Names = ()
    carried: Carried | None
    findings: Findings = ()

    @cached_property
    def sdk(self) -> SdkTable:
        """The SDK table of the target."""
        assert self.situation.target.sdk is not None  # every target of qnn-htp has one
        return self.situation.target.sdk

    @property
    def arch(self) -> str:
        """The HTP architecture, "" when unknown."""
        return arch_of(self.situation.target.device)

    @property
    def float_set(self) -> frozenset[str]:
        """The tensors intended to stay float16."""
        return self.before.intended if self.before is not None else frozenset()

    @cached_property
    def gaps(self) -> Names:
        """The tensors without an entry after completion that are not intended as float, sorted by name."""
        return () if self.after is None else tuple(sorted(self.after.predicted - self.float_set))


class RouteCandidate(Record):
    """One route under consideration for one draft: the input of the route rules."""

    draft: ConversionDraft
    route: ConverterRoute

    @property
    def version(self) -> str | None:
        """The encodings version to write: the route's first one that this SDK's converter is known to read.

        If none is known, it is the first of unknown status; None if the route takes no encodings or can read none.
        """
        found = dict[Status, str]()
        draft, completed, once = self.draft, self.draft.completed, self.draft.situation.facts.once
        for version in self.route.encodings:
            if completed is None or version in once(("writable", completed), partial(writable_versions, completed)):
                status = draft.sdk.status(f"encodings-{version}", tool=self.route.tool, arch=draft.arch)
                found.setdefault(status, version)
        return found.get(Status.SUPPORTED, found.get(Status.UNKNOWN))


def draft_of(situation: Situation) -> ConversionDraft:
    """Collects the facts that do not depend on the route."""

    encodings, facts = situation.encodings, situation.facts
    before = predict_float_set(facts, encodings) if encodings is not None else None
    intent = _intent(situation, before)
    completed = (
        None
        if encodings is None or before is None
        else facts.once(("completed", encodings), partial(complete, encodings, situation, before.intended))
    )
    after = predict_float_set(facts, completed) if completed is not None else None
    widths = bits_of(situation.request.precision or "") or (8, 8)
    if encodings is not None:
        activations, weights = {8}, set()
        for entry in encodings:
            bits = entry.integer_bits or 8
            if facts.is_stored(entry.name) and entry.is_param:
                weights |= {bits} & {4, 8, 16}
            else:
                activations |= {bits} & {8, 16}
        # A gap is better filled too wide than too narrow, so the widest entry counts.
        widths = max(weights, default=8), max(activations)
    wanted = situation.request.adapter_options.get("input_list")
    by_provider = [row.id for row in load_routes().route if row.by_provider]
    # A user who names the route without a converter insists on its compiler.
    insisted = situation.request.adapter_options.get("route") in by_provider
    return ConversionDraft(
        situation=situation,
        intent=intent,
        source=encodings,
        completed=completed,
        before=before,
        after=after,
        widths=widths,
        input_list_wanted=wanted if isinstance(wanted, bool) else None,
        carried=carried_for(situation.target, insisted=insisted, ask="" if insisted else f"--route {by_provider[0]}"),
    )


def _intent(situation: Situation, before: FloatPrediction | None) -> Intent:
    precision = situation.request.precision
    if precision is not None and precision not in (*_PRECISIONS, *_CALIBRATED):
        known = ", ".join((*_PRECISIONS, *_CALIBRATED))
        raise UsageError(f"--precision {precision}: not a precision of qnn-htp", next=f"one of {known}")
    if situation.encodings is not None and before is not None:
        if all(isinstance(entry.value, Float) for entry in situation.encodings):
            return _PRECISIONS.get(precision or "fp16", Intent.FLOAT16)
        return Intent.MIXED if before.intended else Intent.INTEGER
    if precision in _PRECISIONS:
        return _PRECISIONS[precision]
    if precision in _CALIBRATED:
        return Intent.CALIBRATED
    return Intent.QDQ if situation.facts.is_qdq else Intent.FLOAT16


def float16_plan(draft: ConversionDraft) -> Float16Plan:
    """The tensors that this conversion leaves in float16: the float set, or every float tensor of a float model."""
    floats = draft.float_set if draft.intent is Intent.MIXED else frozenset()
    if draft.intent is Intent.FLOAT16:
        floats = frozenset(name for name, fact in draft.situation.facts.tensors.items() if fact.is_float)
    return Float16Plan(situation=draft.situation, tensors=floats, encodings=draft.completed)

"""What is known before a route is chosen: the routes there are, the intent, completed encodings, gaps, widths.

It selects no route and writes nothing."""

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
from deploykit.encodings.values import Affine, EncodingSet, Float
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


# The tool of routes and steps that no part of the SDK takes part in.
PROVIDER_TOOL = "onnxruntime-qnn"


class Intent(StrEnum):
    """What the request wants of the model as a whole."""

    INTEGER = "integer"
    MIXED = "mixed"
    CALIBRATED = "calibrated"
    QDQ = "qdq"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class ConverterRoute(SourcedRow):
    """One route: its converter, the intents it serves, the encodings versions it can be given, best first."""

    id: str
    tool: str
    intents: tuple[Intent, ...]
    encodings: tuple[str, ...]
    input_list: bool
    float_fallback: bool
    why: str
    quantizer_v2: bool = False
    explicit_float: bool = False
    # True where the provider makes a DLC, which the SDK's own generator compiles. Such a route is only offered.
    dlc: bool = False

    @property
    def legacy(self) -> bool:
        """True for routes that go through a model library instead of a DLC."""
        return self.tool == "qnn-onnx-converter"

    @property
    def by_provider(self) -> bool:
        """True for a route that no tool of the SDK takes part in: the compiler is one inside a public wheel."""
        return self.tool == PROVIDER_TOOL


class Preference(SourcedRow):
    """Which routes are tried in which order for one intent, from one version on."""

    intent: Intent
    since: str
    order: tuple[str, ...]
    why: str


class RouteTable(Record):
    schema: int
    route: tuple[ConverterRoute, ...]
    preference: tuple[Preference, ...]


@cache
def load_routes() -> RouteTable:
    """The whole table."""
    path = Path(__file__).parent / "data" / "routes.toml"
    return structure(RouteTable, read_toml(path), where=path.name)


def route_row(route_id: str) -> ConverterRoute:
    """The row of one route."""
    return next(row for row in load_routes().route if row.id == route_id)


def preference(intent: Intent, version: Version) -> Preference:
    """The preference that holds for an intent under one SDK version."""
    rows = [row for row in load_routes().preference if row.intent is intent and Version(row.since) <= version]
    return max(rows, key=lambda row: Version(row.since))


# Elements of a stored tensor that is still read to derive an entry from its values.
_LARGEST_BIAS = 1 << 20


def complete(encodings: EncodingSet, situation: Situation, floats: frozenset[str]) -> EncodingSet:
    """Every integer entry there is or that follows: copies over data movement, int32 biases; no float entry.

    ``floats`` are the tensors meant to stay float; nothing is derived for them or through them.
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


# The type of every activation where the intent is float as a whole.
FLOAT_KINDS = {Intent.FLOAT16: "float16", Intent.FLOAT32: "float32"}

_PRECISIONS = {"fp32": Intent.FLOAT32, "fp16": Intent.FLOAT16}
_CALIBRATED = ("w8a8", "w8a16", "w4a8", "w4a16", "w16a16")


class ConversionDraft(Record, dict=True):
    """Everything route-independent. ``completed`` has derived entries and int32 biases, and no float entry.

    ``float_set`` is what is meant to stay float; ``gaps`` are tensors that nothing covers although they are not in it.
    ``handed_in`` are inputs of a segment that earlier segments make. ``carried`` is the compiler that a public wheel
    has for the target, None where none has. ``widths`` of weights and activations are given to the converter, so that
    no gap falls to its 8-bit default. ``findings`` are about draft and graph, no route.
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
        """Tensors that are meant to stay float16."""
        return self.before.intended if self.before is not None else frozenset()

    @cached_property
    def gaps(self) -> Names:
        """Tensors without an entry after completion that are not meant to be float, in the order of the names."""
        return () if self.after is None else tuple(sorted(self.after.predicted - self.float_set))

    def status(self, feature: str, *, tool: str = "") -> Status:
        """What the SDK table says of a feature for this architecture."""
        return self.sdk.status(feature, tool=tool, arch=self.arch)


class RouteCandidate(Record):
    """One route under consideration for one draft: what the route rules look at."""

    draft: ConversionDraft
    route: ConverterRoute

    @property
    def version(self) -> str | None:
        """The encodings version to write: the first of the route's that this SDK's converter is known to read.

        Where none is known, the first of unknown status; None when the route takes no encodings or can read none.
        """
        found: dict[Status, str] = {}
        completed, once = self.draft.completed, self.draft.situation.facts.once
        for version in self.route.encodings:
            if completed is None or version in once(("writable", completed), partial(writable_versions, completed)):
                found.setdefault(self.draft.status(f"encodings-{version}", tool=self.route.tool), version)
        return found.get(Status.SUPPORTED, found.get(Status.UNKNOWN))


def draft_of(situation: Situation) -> ConversionDraft:
    """Collect what does not depend on the route."""

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
            bits = entry.value.bits if isinstance(entry.value, Affine) else 8
            if facts.is_stored(entry.name) and entry.is_param:
                weights |= {bits} & {4, 8, 16}
            else:
                activations |= {bits} & {8, 16}
        # A gap is better filled too wide than too narrow: the widest width met.
        widths = max(weights, default=8), max(activations)
    wanted = situation.request.adapter_options.get("input_list")
    by_provider = [row.id for row in load_routes().route if row.by_provider]
    # Who names the route without a converter insists on its compiler.
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

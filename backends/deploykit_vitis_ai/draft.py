"""A request worked out without judging it: product, number format, exclusions, options, toolchain.

The rules judge a draft; planning turns an unblocked one into a plan. It reads the situation and tables only.
"""

from __future__ import annotations

from collections.abc import Collection

from deploykit.accuracy.search.goals import GOAL, Goal, parse_goal
from deploykit.backend.backend import Request, Situation
from deploykit.encodings.post_processing import PostProcessing, find_post_processing
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Names, Record
from deploykit.model.facts import GraphFacts
from deploykit_vitis_ai.config_keys import ChosenOptions, check_quark_version, parse_options
from deploykit_vitis_ai.exclusions import Exclusions, resolve_exclusions
from deploykit_vitis_ai.tables import FormatRow, Fp16Way, Product, Release, product_of, rows
from deploykit_vitis_ai.targets import release_of

__all__ = [
    "AS_IS",
    "FloatPart",
    "QuarkDraft",
    "float_parts",
    "make_draft",
    "meant_by",
    "quark_formats",
    "route_row",
    "wanted_toolchain",
]


# The format of a model that is already quantized.
AS_IS = "as-is"


def route_row(form: str) -> FormatRow | None:
    """The row of one format, None for an unknown name."""
    return next((row for row in rows(FormatRow) if row.format == form), None)


def quark_formats() -> Names:
    """The formats that Quark makes."""
    return tuple(row.format for row in rows(FormatRow) if row.maker == "quark")


def meant_by(name: str) -> Names:
    """The formats that a name can mean, best first; the name itself if it is a format, or unknown."""
    return tuple(row.format for row in rows(FormatRow) if name in row.asked_as) or (name,)


def ladder(offered: Collection[str]) -> Names:
    """The formats that ``auto`` tries in order: those that a device has, cheapest first."""
    rungs = sorted((row for row in rows(FormatRow) if row.rung and row.format in offered), key=lambda row: row.rung)
    return tuple(row.format for row in rungs)


class FloatPart(Record):
    """The names of nodes that may stay in float, in graph order, with a description and the analysis, if any."""

    names: Names
    words: str
    found: PostProcessing | None = None


def float_parts(situation: Situation) -> tuple[FloatPart, ...]:
    """The post-processing that integers damage, then the same with the last layers before it.

    Empty if there is none, or if one of its nodes has no name: Quark finds nodes by name only.
    """
    from deploykit.model.graph import GraphCopy
    from deploykit.model.ranges import graph_bounds
    from deploykit.model.weights import load_small_weights

    facts = situation.facts
    found = find_post_processing(facts, graph_bounds(GraphCopy(load_small_weights(situation.model), copy=False)).get)
    if found is None:
        return ()
    parts = ((found.nodes, str(found)), (found.nodes | found.heads, f"{found}, and the last layers before"))
    named = [(tuple(facts.nodes[index].name for index in sorted(nodes)), words) for nodes, words in parts]
    return tuple(FloatPart(names=names, words=words, found=found) for names, words in named if all(names))


DEFAULT_TOOLCHAIN = "quark==0.13"
MIXED = "mixed"
AUTO = "auto"
# The way from a float16 model to VINT8 that converts only the quantized part to float32.
PARTS = "subgraphs_to_include"


class QuarkDraft(Record):
    """A request and what was derived from it.

    ``precision`` is a format of ``data/routes.toml``, ``as-is`` for a model that is quantized already, or "" if none
    was given and none can be chosen. ``source`` is float32, float16 or qdq. ``found`` is the part to stay in float that
    deploykit found; it is among the exclusions. ``ladder`` holds the formats to choose from by measuring, cheapest
    first, if the user asked for ``auto``; ``goal`` is what the chosen one must reach, None without ``auto``.
    ``hold_out`` keeps some samples from the quantizer, to measure on. ``keep_float16`` keeps the float part in float16.
    """

    situation: Situation
    product: Product
    release: Release | None
    asked: str
    precision: str
    source: str
    exclusions: Exclusions
    options: ChosenOptions
    toolchain: str
    random_data: bool
    found: FloatPart | None
    ladder: Names
    goal: Goal | None
    hold_out: bool
    keep_float16: bool

    @property
    def facts(self) -> GraphFacts:
        """The facts of the model."""
        return self.situation.facts

    @property
    def device_facts(self) -> Json:
        """The values of the device's facts, by name."""
        return {name: fact.value for name, fact in self.situation.target.device.facts.items()}

    @property
    def offered(self) -> Names:
        """The formats the device is documented to have."""
        value = self.situation.target.device.fact("precisions")
        return value if isinstance(value, tuple) else ()

    @property
    def unconfirmed(self) -> Names:
        """The formats that only an uncertain source gives the device."""
        value = self.situation.target.device.fact("precisions_unconfirmed")
        return value if isinstance(value, tuple) else ()

    @property
    def needs_quark(self) -> bool:
        """True if Quark has to make the model."""
        return self.precision in quark_formats() and self.source != "qdq"

    @property
    def route(self) -> FormatRow | None:
        """The row of the request's format, None for an unknown format."""
        return route_row(self.precision)

    @property
    def precision_with_exclusions(self) -> str:
        """The format to ask for if a part is to stay in float: one of its own on gen 2, the same one elsewhere."""
        return (self.route.with_exclusions if self.route is not None else "") or self.precision

    @property
    def float16_way(self) -> Fp16Way | None:
        """The way from a float16 source to int8 with this Quark; None if no valid one was observed."""
        version = self.toolchain.partition("==")[2]
        wanted = (PARTS,) if self.keep_float16 else ("shapeshifter", "convert_fp16_to_fp32")
        ways = [way for way in rows(Fp16Way) if way.quark == version and way.valid]
        return next((way for way in ways if way.way in wanted), None)


def make_draft(situation: Situation) -> QuarkDraft:
    """Works out the request. Raises UsageError for options that make no sense."""
    device, request = situation.target.device, situation.request
    product = product_of(str(device.fact("product")))
    given = request.adapter_options
    exclusions = resolve_exclusions(situation.facts, given.get("exclude_node", ()), given.get("exclude_subgraph", ()))
    stored = [fact.dtype for fact in situation.facts.tensors.values() if fact.is_weight and fact.is_float]
    source = "float16" if stored.count("float16") > len(stored) / 2 else "float32"
    source = "qdq" if situation.facts.is_qdq else source
    asked, found = (request.precision or "").lower(), None
    if asked == MIXED and not exclusions and source != "qdq" and not given.get("exclude_nothing"):
        # Mixed precision without named float parts leaves the post-processing in float, if there is any.
        found = next(iter(float_parts(situation)), None)
    if found is not None:
        exclusions = resolve_exclusions(situation.facts, found.names, ())
    offered = device.fact("precisions") or ()
    rungs = ladder(offered) if asked == AUTO else ()
    release = release_of(situation.target)
    options = parse_options(request.options, product=product.id, device_class=str(device.fact("device_class") or ""))
    toolchain = f"quark=={options.quark}" if options.quark else wanted_toolchain(release)
    check_quark_version(options, toolchain.partition("==")[2])
    return QuarkDraft(
        situation=situation,
        product=product,
        release=release,
        asked=request.precision or "",
        precision=_precision((rungs or (request.precision or "",))[0], offered, source, exclusions),
        source=source,
        exclusions=exclusions,
        options=options,
        toolchain=toolchain,
        random_data=bool(given.get("random_data")),
        found=found,
        ladder=rungs,
        goal=_goal(request) if rungs else None,
        hold_out=bool(rungs or given.get("hold_out")),
        keep_float16=bool(given.get("keep_float16")),
    )


def _goal(request: Request) -> Goal:
    goal = parse_goal(request.goal or GOAL)
    if goal.needs_metric or request.metric:
        raise UsageError(
            f"--goal {goal}: asks about a measure" if goal.needs_metric else "--metric: not for this device's formats",
            why="formats are chosen by what the quantized model computes on the calibration samples",
            next="give --goal kept>=95% or sqnr>=30, or leave it out: then the first whose outputs are right is taken",
        )
    return goal


def wanted_toolchain(release: Release | None) -> str:
    """The Quark toolchain of a release; the default if the release names none."""
    return (release.toolchain if release is not None else "") or DEFAULT_TOOLCHAIN


def _precision(asked: str, offered: Names, source: str, exclusions: Exclusions) -> str:
    if not asked:
        if source == "qdq":
            return AS_IS
        return "bf16" if "bf16" in offered else ""
    family = meant_by(asked.lower())
    chosen = next((member for member in family if member in offered), family[0])
    route = route_row(chosen)
    return route.with_exclusions if exclusions and route is not None and route.with_exclusions else chosen

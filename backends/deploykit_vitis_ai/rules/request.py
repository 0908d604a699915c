"""Rules about the request: device, number format, exclusions, options, calibration, release. They judge a draft."""

from __future__ import annotations

from deploykit.findings.rules import Finds, Found, Registry
from deploykit_vitis_ai.draft import AS_IS, QuarkDraft, meant_by, quark_formats
from deploykit_vitis_ai.exclusions import GRAPH_INPUT
from deploykit_vitis_ai.tables import Bound, PrecisionRow, rows
from deploykit_vitis_ai.targets import is_older

__all__ = ["RULES"]


RULES = Registry[QuarkDraft]("draft")

_LAB = "observed with amd-quark 0.13, 0.12.post1 and 0.11.2 on Linux x86-64"
_PAGE = 'AMD documentation page "Model Quantization", Vitis AI 6.2 (June 2026)'
_RAI = "repository amd/ryzen-ai-documentation, main = 1.8"
_ROSS = "repository Xilinx/ross-ai-assistant (AMD assistant skills, for Vitis AI 6.3+)"


def _device(draft: QuarkDraft) -> str:
    return draft.situation.target.device.id


@RULES.rule(
    "VAI101",
    "other-tool-chain",
    "error",
    ["repository amd/Vitis-AI, branch 6.3", "AMD UG1414, Vitis AI 3.5 user guide"],
)
def check_product(draft: QuarkDraft) -> Finds:
    """The device belongs to a tool chain that this backend does not drive.

    Boards of the first Versal AI Edge generation use snapshots, DPU boards use Vitis AI 3.5 with arch.json.

    Fix: Use that tool chain's own flow; 'deploykit targets' lists the devices that are packaged for.
    """
    # A device whose product is neither Vitis AI gen 2 nor Ryzen AI.
    if not draft.product.driven:
        device = draft.situation.target.device
        yield Found("target", device.id, f"{device.name}: {device.note}")


@RULES.rule(
    "VAI102",
    "precision-not-on-device",
    "error",
    [_RAI, "Ultralytics documentation, AMD integration page (format xilinx)"],
)
def check_precision(draft: QuarkDraft) -> Finds:
    """The device does not have the number format that was asked for.

    The compiler would refuse it, or run everything on the CPU.

    Fix: Ask for a format that the device has.
    """
    # A known format on the wrong device.
    if not draft.product.driven or draft.route is None or draft.precision == AS_IS:
        return
    if draft.precision not in (*draft.offered, *draft.unconfirmed):
        yield Found(
            "target",
            _device(draft),
            f"{_device(draft)} has no {draft.precision}",
            hint=f"it has {', '.join(draft.offered)}",
        )


@RULES.rule("VAI103", "precision-unconfirmed", "warning", _ROSS)
def check_unconfirmed(draft: QuarkDraft) -> Finds:
    """Only one uncertain source gives this device that number format.

    The compiler may refuse the model.

    Fix: Compile early, and read the compiler's summary.
    """
    if draft.precision in draft.unconfirmed and draft.precision not in draft.offered:
        yield Found(
            "target",
            _device(draft),
            f"{draft.precision} on {_device(draft)}: only an assistant skill of the vendor names it, no manual",
        )


@RULES.rule("VAI104", "precision-unknown", "error", "deploykit: data/precisions.toml of this backend")
def check_known(draft: QuarkDraft) -> Finds:
    """No number format was given and none can be chosen, or the name means nothing here.

    A float model runs on this NPU only in a format that the compiler or the quantizer makes.

    Fix: Give --precision with one that the device has.
    """
    if not draft.product.driven or draft.route is not None:
        return
    asked = f"{draft.asked!r} is not a format of this backend" if draft.asked else "no precision was given"
    listed = [row.name for row in rows(PrecisionRow)]
    yield Found(
        "target",
        _device(draft),
        f"{asked}; {_device(draft)} has {', '.join(draft.offered)}",
        evidence={"known": listed},
    )


@RULES.rule("VAI105", "quark-without-calibration", "error", [_PAGE, _LAB])
def check_calibration(draft: QuarkDraft) -> Finds:
    """Quantizing needs calibration data and none was given.

    Without data Quark stops with a ValueError, or uses random data, which is not for production.

    Fix: Give --calibration DIR or FILE.npz; --random-data only to see the tools run.
    """
    if draft.needs_quark and draft.situation.request.calibration is None and not draft.random_data:
        yield Found("data", "calibration", f"{draft.precision} needs calibration data")


@RULES.rule("VAI106", "encodings-not-used", "error", _RAI)
def check_encodings(draft: QuarkDraft) -> Finds:
    """Encodings were given, and Quark does not take any.

    The quantizer makes its own ranges; the encodings would be ignored silently.

    Fix: Leave them out, and quantize here with --precision; for Ryzen AI 1.6 and newer, apply them to the model
    ('deploykit encodings apply') and package the QDQ model.
    """
    # An encodings file for a backend that quantizes itself.
    if draft.situation.request.encodings is not None:
        name = draft.situation.request.encodings.name
        message = "encodings are not read by this backend's tools"
        # A compiler that takes only power-of-two scales refuses a model with these encodings (VAI120).
        hint = "Leave them out, and quantize here with --precision." if draft.product.power_of_two_only else ""
        yield Found("encodings", name, message, hint=hint)


@RULES.rule("VAI107", "excluded-node-unknown", "error", _LAB)
def check_excluded_names(draft: QuarkDraft) -> Finds:
    """A node that is to stay in float is not in the model.

    Quark ignores unknown names of nodes, and answers those of subgraphs with a misleading sentence.

    Fix: Check the spelling; the nearest names are listed.
    """
    # Names that no node has, and excluded nodes without a name.
    for name, near in draft.exclusions.unknown:
        hint = f"did you mean {', '.join(near)}?" if near else "no node has a similar name"
        yield Found("node", name, f"no node is called {name!r}", hint=hint)
    for label in draft.exclusions.nameless(draft.facts):
        yield Found(
            "node",
            label,
            f"{label} lies inside an excluded subgraph and has no name by which Quark could leave it out",
            hint="give every node a name when you export the model",
        )


@RULES.rule("VAI108", "excluded-subgraph-leaks", "error", _LAB)
def check_closed(draft: QuarkDraft) -> Finds:
    """A way leads into an excluded subgraph past its starts, or a start does not lead to its ends.

    Quark refuses such a subgraph without naming the way, or leaves out other nodes than meant.

    Fix: Add the node where the way comes in to the starts.
    """
    # Every leak of every subgraph.
    for region in draft.exclusions.regions:
        for leak in region.leaks:
            yield Found(
                "node",
                leak.consumer,
                f"{region.subgraph}: {leak.tensor!r} of {leak.producer} enters at {leak.consumer}, which is no start",
                hint=f"add {leak.consumer if leak.producer == GRAPH_INPUT else leak.producer} to the starts",
                evidence={"tensor": leak.tensor, "producer": leak.producer, "consumer": leak.consumer},
            )
        for name in region.unreached:
            yield Found(
                "node",
                name,
                f"{region.subgraph}: no way leads from the start {name} to the ends",
                hint="leave this start out",
            )


@RULES.rule("VAI109", "mixed-without-exclusion", "error", _PAGE)
def check_mixed(draft: QuarkDraft) -> Finds:
    """Mixed precision was asked for without saying what stays in float, and nothing was found that should.

    Nothing would be left out: the result would be plain VINT8 under another name.

    Fix: Ask for vint8, or give --exclude-subgraph START,…:END,… or --exclude-node NAME.
    """
    if draft.precision == "mixed" and draft.source != "qdq" and not draft.exclusions:
        yield Found(
            "model",
            draft.facts.model_name,
            "nothing is excluded from quantization: no post-processing that integers hurt was found, or its "
            "nodes have no names",
        )


@RULES.rule(
    "VAI282",
    "float-part-found",
    "info",
    "deploykit: the graph, its stored values and interval arithmetic over both",
)
def check_found(draft: QuarkDraft) -> Finds:
    """Mixed precision was asked for without saying what stays in float, and it was found.

    Coordinates, their decoding and a Concat of unlike ranges need more than a few integers.

    Fix: Name another part with --exclude-subgraph or --exclude-node.
    """
    # The part that was found, with the nodes that integers damage.
    if draft.found is not None and draft.found.found is not None:
        harms = ", ".join(draft.found.found.harms)
        yield Found(
            "node",
            draft.found.names[-1],
            f"{draft.found.words} stay in float: {harms}",
            evidence={"nodes": list(draft.found.names), **draft.found.found.to_json()},
        )


@RULES.rule("VAI110", "exclusion-without-effect", "error", _PAGE)
def check_exclusion_used(draft: QuarkDraft) -> Finds:
    """Nodes are to stay in float, but nothing quantizes the model.

    In bf16 and fp16 every node is float, and a QDQ model is packaged as it is: the wish would be ignored.

    Fix: Ask for --precision mixed (gen 2) or an integer format, with a float model.
    """
    if draft.exclusions and not draft.needs_quark:
        yield Found(
            "model",
            draft.facts.model_name,
            f"exclusions have no effect on {draft.precision or 'this request'} from a {draft.source} model",
        )


@RULES.rule("VAI111", "option-renamed", "info", [_LAB, _ROSS])
def check_renamed(draft: QuarkDraft) -> Finds:
    """An option was typed under a name that the tool ignores or that is older.

    Quark accepts any name and ignores unknown ones.

    Fix: Write the name that is used.
    """
    for typed, used in draft.options.renamed:
        yield Found("config-key", typed, f"{typed} is written {used}", handled=f"{used} is set instead")


@RULES.rule("VAI112", "option-beyond-documentation", "warning", "deploykit: the tables of this backend")
def check_beyond(draft: QuarkDraft) -> Finds:
    """An option has a value that its documentation does not list.

    The compiler may ignore it or refuse it.

    Fix: Use a documented value.
    """
    for name, value, documented in draft.options.beyond:
        yield Found("config-key", name, f"{name}={value}: documented are {documented}")


@RULES.rule("VAI114", "foreign-qdq", "error", [_RAI, _ROSS])
def check_qdq(draft: QuarkDraft) -> Finds:
    """A model that is quantized already meets a compiler that may not take it.

    Ryzen AI takes QDQ models of other quantizers since 1.6; the gen 2 compiler wants power-of-two scales and zero point
    0 at the borders.

    Fix: Quantize the float model with --precision, or use a newer release.
    """
    # A QDQ model: an old Ryzen AI refuses it, on gen 2 its scales decide (see the VAI2xx rules).
    if draft.source != "qdq":
        return
    if draft.asked and not {*meant_by(draft.asked.lower())} <= {AS_IS, *quark_formats()}:
        message = f"the model is quantized already and cannot become {draft.asked}"
        yield Found("model", draft.facts.model_name, message, hint="Leave --precision out, or give the float model.")
    release = draft.release
    quark_made = "quark" in draft.facts.producer
    if release is not None and not quark_made and is_older(release, draft.product.foreign_qdq_since):
        yield Found("model", draft.facts.model_name, f"{release.name} {release.version} takes QDQ models of Quark only")


@RULES.rule("VAI115", "quantizer-not-established", "warning", "deploykit: the data files of this backend")
def check_toolchain(draft: QuarkDraft) -> Finds:
    """Which Quark belongs to this release is not known, or that version was never tried here.

    A model of a newer Quark may use what an older compiler does not know.

    Fix: Use the Quark inside the vendor's container: scripts/quantize.py runs there as it is.
    """
    # A release whose file names no toolchain, or one other than the one used.
    release = draft.release
    if draft.needs_quark and release is not None and draft.toolchain != release.toolchain:
        bundled = f"it belongs to Quark {release.quark}" if release.quark else "its Quark is not known"
        yield Found("sdk", f"{release.name} {release.version}", f"{bundled}; {draft.toolchain} is used here")


@RULES.rule("VAI116", "no-overlay-in-release", "warning", ["amd/RyzenAI-SW#396", "amd/RyzenAI-SW#400"])
def check_overlay(draft: QuarkDraft) -> Finds:
    """The release does not ship the overlay file that this NPU needs.

    Without its xclbin the provider runs everything on the CPU, silently.

    Fix: Take xclbins/phoenix/4x4.xclbin from Ryzen AI 1.7.1 and name it with --option xclbin=PATH.
    """
    release = draft.release
    if "xclbin" in draft.device_facts and release is not None and release.version == "1.8":
        message = "Ryzen AI 1.8.0 was reported to ship no xclbin for Phoenix"
        named = dict(draft.situation.request.options).get("xclbin")
        handled = f"{named} is taken, as asked for" if named else None
        yield Found("sdk", "Ryzen AI 1.8", message, handled=handled)


@RULES.rule("VAI117", "xclbin-forbidden", "error", _RAI)
def check_xclbin(draft: QuarkDraft) -> Finds:
    """An xclbin is named for a device that chooses it by itself.

    Since Ryzen AI 1.6 it must not be set on Strix and Krackan.

    Fix: Leave the option out.
    """
    # ``xclbin`` on a device with an automatic overlay.
    release = draft.release
    if "xclbin" not in draft.options.provider or not draft.device_facts.get("xclbin_automatic"):
        return
    if release is not None and not is_older(release, "1.6"):
        yield Found(
            "config-key",
            "xclbin",
            f"{_device(draft)} chooses its xclbin by itself since 1.6: none may be set",
        )


@RULES.rule("VAI118", "before-the-new-compiler", "warning", _RAI)
def check_compiler(draft: QuarkDraft) -> Finds:
    """The release is older than the INT8 compiler whose options are written.

    Ryzen AI 1.6 brought a new INT8 compiler. The targets X1 and X2, and no xclbin on Strix and Krackan, are options of
    that compiler. What older releases need besides an xclbin is not known here.

    Fix: Use Ryzen AI 1.6 or newer.
    """
    # An integer format on a release older than the options that are written.
    release = draft.release
    since = draft.product.integer_options_since
    if release is not None and draft.precision in quark_formats() and is_older(release, since):
        name = f"{release.name} {release.version}"
        yield Found("sdk", name, f"{name}: the provider options are those of {since} and newer")


@RULES.rule("VAI119", "driver-bound", "info", _RAI)
def check_driver(draft: QuarkDraft) -> Finds:
    """The execution provider of this release needs an NPU driver of at least some version.

    With an older driver, and with one released after a date in 2028 to 2029, it does not start.

    Fix: Check the driver of the PC before you deploy.
    """
    # The driver bound of this release, if it is known.
    release = draft.release
    wanted = (draft.product.id, "" if release is None else release.version)
    bound = next((bound for bound in rows(Bound) if (bound.product, bound.ep_version) == wanted), None)
    if bound is not None:
        yield Found(
            "environment",
            "NPU driver",
            f"{draft.product.sdk} {bound.ep_version} needs an NPU driver of at least {bound.driver_min}",
        )

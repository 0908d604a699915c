"""Rules about the release: its Quark, its overlay files, its compiler, the driver it needs. They judge a draft."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import Severity, SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit_vitis_ai.draft import Draft
from deploykit_vitis_ai.routes import quark_formats
from deploykit_vitis_ai.tables import driver_bounds
from deploykit_vitis_ai.targets import is_older

__all__ = ["RULES"]

RULES: Registry[Draft] = Registry("draft")

_RAI = "repository amd/ryzen-ai-documentation, main = 1.8"


@RULES.rule(
    "VAI115",
    "quantizer-not-established",
    "warning",
    what="Which Quark belongs to this release is not known, or that version was never tried here.",
    why="A model of a newer Quark may use what an older compiler does not know.",
    fix="Use the Quark inside the vendor's container: scripts/quantize.py runs there as it is.",
    sources=["deploykit: the data files of this backend"],
)
def check_toolchain(draft: Draft) -> Iterator[Found]:
    """A release whose file names no toolchain, or another one than is used."""
    release = draft.release
    if draft.needs_quark and release is not None and draft.toolchain != release.toolchain:
        bundled = f"it belongs to Quark {release.quark}" if release.quark else "its Quark is not known"
        yield Found(
            kind=SubjectKind.SDK,
            name=f"{release.name} {release.version}",
            message=f"{bundled}; {draft.toolchain} is used here",
        )


@RULES.rule(
    "VAI116",
    "no-overlay-in-release",
    "warning",
    what="The release does not ship the overlay file that this NPU needs.",
    why="Without its xclbin the provider runs everything on the CPU, silently.",
    fix="Take xclbins/phoenix/4x4.xclbin from Ryzen AI 1.7.1 and name it with --option xclbin=PATH.",
    sources=["amd/RyzenAI-SW#396", "amd/RyzenAI-SW#400"],
)
def check_overlay(draft: Draft) -> Iterator[Found]:
    """Phoenix under 1.8."""
    release = draft.release
    if "xclbin" in draft.device_facts and release is not None and release.version == "1.8":
        message = "Ryzen AI 1.8.0 was reported to ship no xclbin for Phoenix"
        named = dict(draft.situation.request.options).get("xclbin")
        handled = f"{named} is taken, as asked for" if named else None
        yield Found(kind=SubjectKind.SDK, name="Ryzen AI 1.8", message=message, handled=handled)


@RULES.rule(
    "VAI117",
    "xclbin-forbidden",
    "error",
    what="An xclbin is named for a device that chooses it by itself.",
    why="Since Ryzen AI 1.6 it must not be set on Strix and Krackan.",
    fix="Leave the option out.",
    sources=[_RAI],
)
def check_xclbin(draft: Draft) -> Iterator[Found]:
    """``xclbin`` on a device with an automatic overlay."""
    release = draft.release
    if "xclbin" not in draft.options.provider or not draft.device_facts.get("xclbin_automatic"):
        return
    if release is not None and not is_older(release, "1.6"):
        yield Found(
            kind=SubjectKind.CONFIG_KEY,
            name="xclbin",
            message=f"must not be set on {draft.situation.target.device.id} since 1.6",
            severity=Severity.ERROR,
        )


@RULES.rule(
    "VAI118",
    "before-the-new-compiler",
    "warning",
    what="The release is older than the INT8 compiler whose options are written.",
    why="Ryzen AI 1.6 brought a new INT8 compiler: target X1 and X2, no xclbin on Strix and Krackan, are its rules. "
    "What older releases want beside an xclbin is not in the tables.",
    fix="Use Ryzen AI 1.6 or newer.",
    sources=[_RAI],
)
def check_compiler(draft: Draft) -> Iterator[Found]:
    """An integer format on a release from before the options that are written."""
    release = draft.release
    since = draft.product.integer_options_since
    if release is not None and draft.precision in quark_formats() and is_older(release, since):
        name = f"{release.name} {release.version}"
        message = f"{name}: the provider options are those of {since} and newer"
        yield Found(kind=SubjectKind.SDK, name=name, message=message)


@RULES.rule(
    "VAI119",
    "driver-bound",
    "info",
    what="The execution provider of this release needs an NPU driver of at least some version.",
    why="With an older driver, and with one released after a date in 2028 to 2029, it does not start.",
    fix="Check the driver of the PC before you deploy.",
    sources=[_RAI],
)
def check_driver(draft: Draft) -> Iterator[Found]:
    """The bound of this release, where one is known."""
    release = draft.release
    wanted = (draft.product.id, "" if release is None else release.version)
    bound = next((bound for bound in driver_bounds() if (bound.product, bound.ep_version) == wanted), None)
    if bound is not None:
        message = f"{draft.product.sdk} {bound.ep_version} needs an NPU driver of at least {bound.driver_min}"
        yield Found(kind=SubjectKind.ENVIRONMENT, name="NPU driver", message=message)

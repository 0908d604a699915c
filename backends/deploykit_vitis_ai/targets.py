"""Picks the release that answers for a device and a version as typed; what follows from it is decided elsewhere."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from deploykit.backend.targets import Target
from deploykit.errors import UnknownTargetError
from deploykit.tables.capabilities import SdkTable
from deploykit.tables.devices import Device
from deploykit_vitis_ai.products import product_of
from deploykit_vitis_ai.rules.target import RULES as TARGET_RULES
from deploykit_vitis_ai.rules.target import Choice
from deploykit_vitis_ai.tables import Release, releases

__all__ = ["is_older", "release_of", "resolve"]


def is_older(release: Release | None, bound: str) -> bool:
    """True when a release lies below the series ``bound``; never without a release or a bound."""
    return release is not None and bool(bound) and Version(release.version).release[:2] < Version(bound).release[:2]


def release_of(target: Target) -> Release | None:
    """The release behind a resolved target; None for a device of another tool chain."""
    if target.sdk is None:
        return None
    name, version = target.sdk.sdk, target.sdk.version
    return next((r for r in releases() if (r.name, r.version) == (name, version)), None)


def resolve(device: Device, sdk: str | None) -> Target:
    """The target for a device and a version as typed; devices of other tool chains resolve without a table."""
    name = product_of(str(device.fact("product"))).sdk
    requested = sdk or ""
    if not name:
        return Target(device=device, backend="vitis-ai", requested=requested, sdk=None)
    choice = Choice(requested=requested, release=_pick(name, requested))
    findings = TARGET_RULES.run(choice)
    return Target(device=device, backend="vitis-ai", requested=requested, sdk=_table(choice), findings=findings)


def _pick(name: str, requested: str) -> Release:
    known = sorted((r for r in releases() if r.name == name), key=lambda r: Version(r.version))
    if not requested:
        return known[-1]
    try:
        wanted = Version(requested)
    except InvalidVersion:
        raise UnknownTargetError(f"{requested!r} is not a version of {name}", next=_offer(known)) from None
    lower = [r for r in known if Version(r.version).release[:2] <= wanted.release[:2]]
    if not lower:
        raise UnknownTargetError(f"{name} {requested} is older than every table", next=_offer(known))
    return lower[-1]


def _offer(known: list[Release]) -> str:
    return "known: " + ", ".join(r.version for r in known)


def _table(choice: Choice) -> SdkTable:
    release = choice.release
    return SdkTable(
        sdk=release.name,
        version=release.version,
        extends="",
        builds=(choice.requested,) if choice.exact and choice.requested else (),
        source=release.source,
        confidence=release.confidence,
        changes=release.changes,
        facts={"quark": release.quark, "toolchain": release.toolchain, "established": release.established},
    )

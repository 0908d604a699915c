"""Picks the release that answers for a device and a version as typed; what follows from it is decided elsewhere."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from deploykit.contract.targets import Target
from deploykit.errors import UnknownTargetError
from deploykit.tables.capabilities import SdkTable
from deploykit.tables.devices import Device
from deploykit_vitis_ai.rules.target import RULES as TARGET_RULES
from deploykit_vitis_ai.rules.target import Choice
from deploykit_vitis_ai.tables import Release, releases

__all__ = ["PRODUCTS", "is_older", "release_of", "resolve"]

GEN2 = "versal_ai_edge_gen2"
RYZEN = "ryzen_ai"
PRODUCTS = {GEN2: "Vitis AI", RYZEN: "Ryzen AI"}
"""The products that are packaged for, with the name of the SDK whose releases count."""


def is_older(version: str, bound: tuple[int, int]) -> bool:
    """True when a version lies below ``bound``, its first two numbers."""
    return Version(version).release[:2] < bound


def release_of(target: Target) -> Release | None:
    """The release behind a resolved target; None for a device of another tool chain."""
    if target.sdk is None:
        return None
    name, version = target.sdk.sdk, target.sdk.version
    return next((r for r in releases() if (r.name, r.version) == (name, version)), None)


def resolve(device: Device, sdk: str | None) -> Target:
    """The target for a device and a version as typed; devices of other tool chains resolve without a table."""
    name = PRODUCTS.get(str(device.fact("product")))
    requested = sdk or ""
    if name is None:
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

"""Picks the release for a device and a version as typed, with the rules about this choice: VAI001, VAI002.

What follows from a release is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from deploykit.backend.targets import Target
from deploykit.errors import UnknownTargetError
from deploykit.findings.records import Record
from deploykit.findings.rules import Found, Registry
from deploykit.tables.capabilities import SdkTable
from deploykit.tables.devices import Device
from deploykit_vitis_ai.tables import Release, product_of, releases

__all__ = ["RULES", "is_older", "release_of", "resolve"]


class PickedRelease(Record):
    """The release picked for a version as typed ("" for the newest)."""

    requested: str
    release: Release

    @property
    def exact(self) -> bool:
        """True if the release is of the requested series."""
        if not self.requested:
            return True
        return Version(self.requested).release[:2] == Version(self.release.version).release[:2]


RULES = Registry[PickedRelease]("target")


@RULES.rule("VAI001", "release-between-tables", "warning", "deploykit: the data files of this backend")
def check_exact(choice: PickedRelease) -> Iterable[Found]:
    """The version that was asked for has no table of its own; the nearest lower one answers for it.

    A release may change what the execution provider accepts; what is said here is known for another one.

    Fix: Compare the release notes of the two versions.
    """
    if not choice.exact:
        yield Found(
            "sdk",
            f"{choice.release.name} {choice.requested}",
            f"no table for {choice.release.name} {choice.requested}: that of {choice.release.version} is used",
            evidence={"requested": choice.requested, "table": choice.release.version},
        )


@RULES.rule("VAI002", "release-not-established", "warning", "deploykit: the data files of this backend")
def check_established(choice: PickedRelease) -> Iterable[Found]:
    """Nothing reliable is published about this release.

    Options, passes and the quantizer that belongs to it are taken from what newer releases document.

    Fix: Ask the release's own documentation, or use a newer release.
    """
    # A release known by name only.
    if not choice.release.established:
        yield Found(
            "sdk",
            f"{choice.release.name} {choice.release.version}",
            f"{choice.release.name} {choice.release.version}: {choice.release.note}",
        )


def is_older(release: Release | None, bound: str) -> bool:
    """True if a release is below the series ``bound``; False without a release or a bound."""
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
    known = sorted((release for release in releases() if release.name == name), key=lambda one: Version(one.version))
    offer = "known: " + ", ".join(release.version for release in known)
    # Nothing is known of a release that is only a name, so it is never the default.
    newest = next((release for release in reversed(known) if release.established), known[-1])
    try:
        wanted = Version(requested or newest.version).release[:2]
    except InvalidVersion:
        raise UnknownTargetError(f"{requested!r} is not a version of {name}", next=offer) from None
    lower = [release for release in known if Version(release.version).release[:2] <= wanted]
    if not lower:
        raise UnknownTargetError(f"{name} {requested} is older than every table", next=offer)
    choice = PickedRelease(requested=requested, release=lower[-1])
    release = choice.release
    table = SdkTable(
        sdk=release.name,
        version=release.version,
        extends="",
        builds=(requested,) if choice.exact and requested else (),
        source=release.source,
        confidence=release.confidence,
        changes=release.changes,
        facts={"quark": release.quark, "toolchain": release.toolchain, "established": release.established},
    )
    return Target(device=device, backend="vitis-ai", requested=requested, sdk=table, findings=RULES.run(choice))

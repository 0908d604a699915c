"""A resolved target: a device with the SDK table for the requested version.

An unknown name is answered with the nearest one; a version between two tables uses
the nearest lower one, and a finding says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from os.path import commonprefix

from deploykit.errors import UnknownTargetError
from deploykit.findings import Findings
from deploykit.findings.records import Json, Record
from deploykit.tables.capabilities import SdkTable
from deploykit.tables.devices import Device

__all__ = ["Target", "find_device", "nearest_names"]


class Target(Record):
    """A device under one SDK version.

    ``requested`` is the version as typed ("" for the newest), ``sdk`` the table used for it, None for a backend without
    SDK tables. ``findings`` tell how the two differ.
    """

    device: Device
    backend: str
    requested: str
    sdk: SdkTable | None
    findings: Findings = ()

    def sdk_json(self) -> Json:
        """The SDK as published in a plan."""
        if self.sdk is None:
            return {"name": "", "version": self.requested, "requested": self.requested, "table": ""}
        exact = self.requested in ("", self.sdk.version) or self.requested in self.sdk.builds
        return {
            "name": self.sdk.sdk,
            "version": self.requested or self.sdk.version,
            "requested": self.requested,
            "table": self.sdk.version,
            "exact": exact,
        }


def find_device(devices: Iterable[Device], name: str) -> Device:
    """The device with that id, alias, name or marketing name. Raises UnknownTargetError with the nearest names."""
    known = dict[str, Device]()
    for device in devices:
        for spelling in (device.id, device.name, *device.aliases, device.marketing):
            known.setdefault(_normal(spelling), device)
    known.pop("", None)  # a device without a marketing name is not called ""
    found = known.get(_normal(name))
    if found is not None:
        return found
    hint = ", ".join(dict.fromkeys(known[spelling].id for spelling in nearest_names(_normal(name), known)))
    raise UnknownTargetError(
        f"unknown target {name!r}",
        next=f"did you mean {hint}? 'deploykit targets' lists all" if hint else "'deploykit targets' lists all",
    )


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Known names similar to ``name``, best first; of two equally similar ones that with the same
    letters, then that with the longer common start.
    """
    from difflib import SequenceMatcher, get_close_matches  # imported only if a name is unknown

    close = get_close_matches(name, list(known), n=24, cutoff=0.5)
    likeness = {other: SequenceMatcher(None, other, name).ratio() for other in close}
    starts = {other: len(commonprefix([name, other])) for other in close}  # noqa: RUF071 (letters are meant)
    return sorted(close, key=lambda other: (-likeness[other], sorted(other) != sorted(name), -starts[other]))[:3]


def _normal(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())

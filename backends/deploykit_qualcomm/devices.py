"""The Qualcomm devices and the capabilities of their HTP architectures, each with its source. It does not know SDKs.

There is one file per chip, found by id, chip, marketing or board name. Chips that no HTP toolchain serves are listed in
``unsupported.toml``. A capability stated for a device outranks its architecture's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from deploykit.backend.targets import find_device
from deploykit.tables.devices import Device, Fact, load_device_of_id, load_devices, own_devices
from deploykit.tables.reading import parse_rows
from deploykit.tables.sources import sourced_file
from deploykit_qualcomm.tables import DATA, tables

__all__ = [
    "POWER",
    "arch_number",
    "arch_of",
    "capability",
    "device_of_id",
    "has",
    "known_archs",
    "lacks",
    "qualcomm_device",
    "qualcomm_devices",
]

POWER = {"burst": "burst", "balanced": "balanced", "saver": "power_saver"}
"""The HTP's names of the performance modes."""


def known_archs() -> tuple[str, ...]:
    """Every architecture of the table, oldest first: ``v66`` … ``v81``."""
    archs = tables().archs.arch
    return tuple(sorted(archs, key=lambda name: archs[name].number))


def arch_number(arch: str) -> int | None:
    """The number of an architecture, 73 for ``v73``; None if the table does not have it."""
    row = tables().archs.arch.get(arch)
    return None if row is None else row.number


def arch_of(device: Device) -> str:
    """The architecture of a device, "" if nobody published it."""
    return str(device.fact("arch") or "")


def capability(name: str, *, arch: str = "", device: Device | None = None) -> Fact | None:
    """One capability (``fp16``, ``bf16``, ``lpbq``, ``a16w16``, ``extended_udma`` …), None if it is unknown.

    A fact of that name on the device outranks its architecture.
    """
    if device is not None:
        if name in device.facts:
            return device.facts[name]
        arch = arch_of(device)
    row = tables().archs.arch.get(arch)
    return None if row is None else row.facts.get(name)


def has(name: str, device: Device) -> bool:
    """True if a device is known to have a capability."""
    fact = capability(name, device=device)
    return fact is not None and fact.value is True


def lacks(name: str, device: Device) -> bool:
    """True if a device is known to lack a capability; False if that is unknown."""
    fact = capability(name, device=device)
    return fact is not None and fact.value is False


# The names of precisions by the capability that they need.
_PRECISIONS = {"a16w8": "w8a16", "a16w16": "w16a16", "fp16": "fp16", "bf16": "bf16", "lpbq": "lpbq"}


@cache
def qualcomm_devices(data: Path = DATA) -> tuple[Device, ...]:
    """Every device of the data folder and of the user's folder, sorted by id."""
    devices = (*load_devices(data / "devices"), *_unsupported(data / "unsupported.toml"), *own_devices("Qualcomm"))
    by_id = {device.id: device for device in devices}  # a user's device replaces a shipped one
    return tuple(_with_precisions(by_id[name]) for name in sorted(by_id))


def device_of_id(name: str, data: Path = DATA) -> Device | None:
    """The device of an id, read from its own file only; None if it has none, as those in ``unsupported.toml``."""
    own = next((device for device in own_devices("Qualcomm") if device.id == name.lower()), None)
    found = own or load_device_of_id(data / "devices", name)
    return None if found is None else _with_precisions(found)


def qualcomm_device(name: str, data: Path = DATA) -> Device:
    """One device by id, alias, chip or marketing name. Raises UnknownTargetError with the nearest names."""
    return device_of_id(name, data) or find_device(qualcomm_devices(data), name)


def _unsupported(path: Path) -> tuple[Device, ...]:
    """The devices in a file with shared facts; none if there is no file, as in a test's folder."""
    if not path.is_file():
        return ()
    shared = sourced_file(dict[str, Any], path)
    rows, _ = shared.pop("device"), shared.pop("sources")
    return parse_rows(Device, [{**shared, **row} for row in rows], where=path.name)


def _with_precisions(device: Device) -> Device:
    found = {name: capability(name, device=device) for name in _PRECISIONS}
    known = {name: fact for name, fact in found.items() if fact is not None}
    if not known or "precisions" in device.facts:
        return device
    precisions = Fact(
        value=tuple(_PRECISIONS[name] for name, fact in known.items() if fact.value is True),
        source=tuple(dict.fromkeys(source for fact in known.values() for source in fact.source)),
        confidence=max((fact.confidence for fact in known.values()), key=lambda confidence: confidence.rank),
        note=f"of the architecture {device.fact('arch')}, beside w8a8",
        contradicts="; ".join(known[name].contradicts for name in known if name in device.facts),
    )
    return replace(device, facts={**device.facts, "precisions": precisions})

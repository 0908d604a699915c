"""The Qualcomm devices: one file per chip, found by id, chip, marketing or board name; it knows no SDK.

What the files do not repeat, the precisions of a chip's architecture, is added as the fact ``precisions``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from deploykit.backend.targets import find_device
from deploykit.tables.devices import Device, Fact, load_device_of_id, load_devices
from deploykit_qualcomm.archs import capability
from deploykit_qualcomm.tables import DATA

__all__ = ["device_of_id", "qualcomm_device", "qualcomm_devices"]

_PRECISIONS = {"a16w8": "w8a16", "a16w16": "w16a16", "fp16": "fp16", "bf16": "bf16", "lpbq": "lpbq"}
"""Capabilities of an architecture, and what the precision they stand for is called."""


def qualcomm_devices(data: Path = DATA) -> tuple[Device, ...]:
    """Every device of the data folder, by id."""
    return _all(data / "devices")


def device_of_id(name: str, data: Path = DATA) -> Device | None:
    """The device of that id, from its own file alone, or None."""
    found = load_device_of_id(data / "devices", name)
    return None if found is None else _with_precisions(found)


def qualcomm_device(name: str, data: Path = DATA) -> Device:
    """One device by id, alias, chip or marketing name; raises UnknownTargetError with the nearest names."""
    return device_of_id(name, data) or find_device(qualcomm_devices(data), name)


@cache
def _all(folder: Path) -> tuple[Device, ...]:
    return tuple(map(_with_precisions, load_devices(folder)))


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

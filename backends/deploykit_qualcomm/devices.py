"""The Qualcomm devices: one file per chip, found by id, chip, marketing or board name; it knows no SDK."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from deploykit.devices import Device, load_device, load_devices
from deploykit.target import find_device
from deploykit_qualcomm.tables import DATA

__all__ = ["qualcomm_device", "qualcomm_devices"]

_PLAIN = re.compile(r"[a-z0-9]+")


def qualcomm_devices(data: Path = DATA) -> tuple[Device, ...]:
    """Every device of the data folder, by id."""
    return _all(data / "devices")


def qualcomm_device(name: str, data: Path = DATA) -> Device:
    """One device by id, alias, chip or marketing name; only its own file is read when ``name`` is an id.

    Raises UnknownTargetError with the nearest names.
    """
    path = data / "devices" / f"{name.lower()}.toml"
    if _PLAIN.fullmatch(name.lower()) and path.is_file():
        return load_device(path)
    return find_device(qualcomm_devices(data), name)


@cache
def _all(folder: Path) -> tuple[Device, ...]:
    return load_devices(folder)

"""Reads the devices that deploykit.toml names in [devices.NAME]: how to reach each one and the limits for its runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from deploykit.accuracy.judge.verdict import Thresholds
from deploykit.accuracy.latency import read_time
from deploykit.backend.backend import AnyBackend
from deploykit.backend.on_device import Place
from deploykit.errors import InputError, UsageError
from deploykit.findings.records import Record
from deploykit.tables.reading import read_toml, structure

__all__ = ["DeviceRow", "device_at", "devices_in", "draft_device"]


class DeviceRow(Record):
    """One device. ``at`` is a value of ``--on``; ``python`` and ``folder`` replace the default paths there if not "".

    ``max_p90`` (for example ``5ms``) limits the time of a run; the ``min_`` and ``max_`` values
    after it replace the usual limits for its outputs. ``target`` is the target of the matrix whose
    packages it runs; "" means the one with its own name.
    """

    at: str
    target: str = ""
    python: str = ""
    folder: str = ""
    power: str = ""
    max_p90: str = ""
    min_sqnr: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    max_box_error: float | None = None

    @property
    def budget_us(self) -> float | None:
        """``max_p90`` in microseconds, None if it is not set. Raises UsageError if it is not a time."""
        return read_time(self.max_p90, "max_p90") or None

    @property
    def thresholds(self) -> Thresholds:
        """The limits of this row, in the form that the judge takes."""
        names = ("min_sqnr", "min_cosine", "min_agreement", "max_box_error")
        return Thresholds(**{name: getattr(self, name) for name in names})


def devices_in(file: Path) -> Mapping[str, DeviceRow]:
    """Return the devices of a file, or none if the file does not exist. Raises InputError that names what is wrong."""
    if not file.is_file():
        return {}
    rows = read_toml(file).get("devices", {})
    if not isinstance(rows, dict):
        raise InputError(f"{file}: devices: is no table", next='[devices.phone] with at = "adb:SERIAL"')
    return {name: structure(DeviceRow, row, where=f"{file}: devices.{name}") for name, row in rows.items()}


def device_at(where: str, file: Path) -> DeviceRow:
    """Return the device for a value of ``--on``: a name in the file, or an address. Raises UsageError if unknown."""
    if where == "local" or where.startswith(("adb:", "ssh://")) or where == "adb":
        return DeviceRow(at=where)
    rows = devices_in(file)
    if where not in rows:
        known = f"{file} names {', '.join(sorted(rows))}" if rows else f"{file} names no device"
        raise UsageError(
            f"--on {where}: no such device", why=known, next="local, adb[:SERIAL], ssh://user@host, or add it"
        )
    return rows[where]


def draft_device(place: Place, backend: AnyBackend, target: str) -> str:
    """Draft a device file for an unknown chip, from what the device reports and the facts of the target it ran as.

    Returns "" for a known chip and for a device that does not report its chip.
    """
    named = place.soc.lower()
    devices = {device.id: device for device in backend.devices()}
    base = devices.get(target)
    known = (named in (one.id, one.name.lower(), *map(str.lower, one.aliases)) for one in devices.values())
    if not named or base is None or any(known):
        return ""
    lines = ["schema = 1", f"id = {json.dumps(re.sub(r'[^a-z0-9]+', '-', named).strip('-'))}"]
    lines += [f"name = {json.dumps(place.soc)}", f"vendor = {json.dumps(base.vendor)}"]
    lines.append(f"backends = {json.dumps(list(base.backends))}")
    lines.append(f'note = "drafted from a device that ran a package for {base.name}: compare it with the documents"')
    for name, fact in base.facts.items():
        if isinstance(fact.value, int | str) and name != "marketing":
            source = json.dumps([f"as {base.name}, whose package ran on it"])
            lines += ["", f"[facts.{name}]", f"value = {json.dumps(fact.value)}", f"source = {source}"]
            lines.append('confidence = "inferred"')
    return "\n".join([*lines, ""])

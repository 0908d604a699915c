"""``deploykit targets``: search the device database, or show one device with its facts and their sources."""

from __future__ import annotations

from contextlib import suppress

import click

from deploykit.backend.plugins import all_devices, device_of_id, load_backend, load_backends
from deploykit.backend.targets import find_device
from deploykit.cli.frame import Command
from deploykit.cli.options import option
from deploykit.cli.terminal import emit, table
from deploykit.errors import UnknownTargetError
from deploykit.tables.devices import Device, search_devices

__all__ = ["command"]


@click.command(cls=Command)
@click.argument("device", nargs=-1)
@option("--backend", "ID", "Only the devices of this backend.", default="")
def command(device: tuple[str, ...], backend: str) -> None:
    """Show DEVICE by id, alias, chip or marketing name, or list the devices that contain every word.

    Words match names, backends and the values of facts: 'deploykit targets v75', 'deploykit targets 8 gen 3'.
    """
    chosen = (load_backend(backend),) if backend else load_backends()
    words = " ".join(device)
    one = device_of_id(words, chosen)
    devices = [] if one else [found for found in all_devices() if backend in ("", *found.backends)]
    if one is None and device:
        with suppress(UnknownTargetError):
            one = find_device(devices, words)
    if one is not None:
        emit({"targets": [one]}, _one_text(one))
        return
    found = search_devices(devices, words)
    if not found:
        find_device(devices, words)  # raises, with the nearest names

    def text() -> str:
        names = ("arch", "soc_model", "vtcm_mb")
        rows = []
        for item in found:
            called = item.marketing if item.marketing != item.name else ""
            facts = (_shown(item.fact(name)) for name in names)
            rows.append((item.id, *facts, ", ".join(item.backends), called))
        return table(rows, header=("id", *names, "backends", "marketing name"))

    emit({"targets": found}, text)


def _one_text(device: Device) -> str:
    lines = [
        f"{click.style(device.id, bold=True)}  {device.name}, {device.vendor}"
        + (f", {device.marketing}" if device.marketing not in ("", device.name) else ""),
        f"backends: {', '.join(device.backends) or 'none'}",
    ]
    lines += [f"also called: {', '.join(device.aliases)}"] if device.aliases else []
    lines += [f"note: {device.note}"] if device.note else []
    for name, fact in device.facts.items():
        others = f", others say {', '.join(map(str, fact.alternatives))}" if fact.alternatives else ""
        lines.append(f"{name}: {_shown(fact.value)} ({fact.confidence}{others})")
        lines += [
            f"    {remark}" for remark in (fact.note, f"but: {fact.contradicts}" if fact.contradicts else "") if remark
        ]
        lines.append(f"    source: {'; '.join(fact.source)}")
    if "arch" not in device.facts:
        lines.append("arch: unknown")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

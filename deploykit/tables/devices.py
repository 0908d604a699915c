"""The device database: one TOML file per device, found by id, alias or marketing name.

A device is a set of facts with sources; the adapter decides what a fact, such as a memory size, means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.findings.records import Json, Names, Published, Record, published
from deploykit.tables.reading import read_toml, structure
from deploykit.tables.sources import NO_SOURCES, write_out

__all__ = ["Device", "Fact", "load_device", "load_device_of_id", "load_devices", "own_devices", "search_devices"]

_WORD = re.compile(r"[a-z0-9.+]+")
_LONGEST = 64  # letters of an id; the longest one shipped has 37
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class Fact(Record):
    """One fact about a device, with its sources and confidence. ``alternatives`` are values from other sources."""

    value: int | str | bool | Names
    source: tuple[str, ...]
    confidence: Confidence
    note: str = ""
    alternatives: tuple[int | str, ...] = ()
    contradicts: str = ""


class Device(Published):
    """One device. ``facts`` holds what is known about it by name; a missing name means unknown, never false."""

    schema: int
    id: str
    name: str
    vendor: str
    backends: Names
    marketing: str = ""
    aliases: Names = ()
    facts: Mapping[str, Fact] = {}
    note: str = ""

    def fact(self, name: str) -> Any:
        """Return the value of one fact, None if it is unknown."""
        found = self.facts.get(name)
        return None if found is None else found.value

    def as_published(self) -> Json:
        """The published JSON: plain values first, sources under ``facts``."""
        facts = {
            name: {key: value for key, value in published(fact).items() if value not in ("", ()) or key == "value"}
            for name, fact in self.facts.items()
        }
        about = published(self, without=("schema", "facts", "note"))
        values = {name: fact.value for name, fact in self.facts.items()}
        return {**about, **values, "facts": facts, **({"note": self.note} if self.note else {})}


def load_device(path: Path, sources: Mapping[str, str] = NO_SOURCES) -> Device:
    """Read one device file. ``sources`` maps short source names to full ones.

    Raises InputError if the file is not valid or the id differs from the file's stem.
    """
    table = read_toml(path, shipped=True)
    write_out(table, sources)
    device = structure(Device, table, where=f"{path.parent.name}/{path.name}:")
    if device.id != path.stem:
        raise InputError(f"{path.parent.name}/{path.name}: id: {device.id!r} differs from the file name")
    return device


def load_device_of_id(folder: Path, name: str, sources: Mapping[str, str] = NO_SOURCES) -> Device | None:
    """Return the device with this id in any case, reading only its own file; None if there is none."""
    # User input is used in a path only after it was checked to look like an id.
    path = folder / f"{name.lower()}.toml" if len(name) <= _LONGEST and _ID.fullmatch(name.lower()) else None
    return load_device(path, sources) if path is not None and path.is_file() else None


def load_devices(folder: Path, sources: Mapping[str, str] = NO_SOURCES) -> tuple[Device, ...]:
    """Return all devices of one folder, sorted by id."""
    return tuple(load_device(path, sources) for path in sorted(folder.glob("*.toml")))


def own_devices(vendor: str) -> tuple[Device, ...]:
    """Return the user's own devices of one vendor, from the folder in ``DEPLOYKIT_DEVICES``.

    Raises InputError if that folder does not exist.
    """
    folder = os.environ.get("DEPLOYKIT_DEVICES", "")
    if folder and not Path(folder).is_dir():
        raise InputError(f"DEPLOYKIT_DEVICES={folder}: no such folder")
    found = load_devices(Path(folder)) if folder else ()
    return tuple(device for device in found if device.vendor == vendor)


def search_devices(devices: Iterable[Device], words: str) -> tuple[Device, ...]:
    """Return the devices whose id, names, backends or fact values contain the words, ignoring case.

    The result is the first that is not empty: devices with the words in sequence (``8 gen 3``); with a fact of that
    name and value (``soc 90``); with every word as a whole word; with every word as a part of a word.
    """
    haystacks = []
    for device in devices:
        names = (device.id, device.name, device.marketing, *device.aliases, *device.backends)
        values = (str(fact.value) for fact in device.facts.values())
        haystacks.append((device, " ".join((*names, *values)).lower()))
    wanted = words.lower().split()
    phrase = " ".join(wanted)
    tests: tuple[Callable[[Device, str], bool], ...] = (
        lambda _, haystack: phrase in haystack,
        lambda device, _: _has_fact(device, wanted),
        lambda _, haystack: set(wanted) <= set(_WORD.findall(haystack)),
        lambda _, haystack: not any(word.isdigit() for word in wanted) and all(word in haystack for word in wanted),
    )
    for test in tests:
        found = tuple(device for device, haystack in haystacks if test(device, haystack))
        if found:
            return found
    return ()


def _has_fact(device: Device, words: Sequence[str]) -> bool:
    """Whether all words together name one fact and its value; a number never matches inside a longer one."""
    return any(
        str(fact.value).lower() in words
        and set(words) <= {*name.lower().split("_"), name.lower(), "id", str(fact.value).lower()}
        for name, fact in device.facts.items()
    )

"""The table of provider options and session entries, and the check of the user's options against it.

The provider silently ignores an unknown option, so an unknown one is refused here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.version import Version

from deploykit.backend.targets import nearest_names
from deploykit.errors import UsageError
from deploykit.findings.records import Names, Record
from deploykit.tables.sources import SourcedRow, sourced_file

__all__ = ["Chosen", "choose_options", "has_option", "load_options"]

_BOOLS = {"1": "1", "true": "1", "on": "1", "0": "0", "false": "0", "off": "0"}


class Entry(SourcedRow):
    """One session configuration entry."""

    name: str
    note: str
    values: Names = ()
    managed: bool = False


class Option(Entry):
    """One provider option: ``since`` is the first opened wheel that has it; the checked wheel has every option.

    ``excludes`` are options that must not be on together with it. ``set_for`` are operators for which it is set to 1 if
    the user does not set it, since results are better with it.
    """

    type: Literal["bool", "int", "enum", "string", "path"]
    phase: Literal["compile", "run", "both"]
    since: str = ""
    range: tuple[int, ...] = ()
    set_for: Names = ()
    excludes: Names = ()


class RefusedOption(SourcedRow):
    """A name that circulates although no wheel has it, with the right one ("" if there is none)."""

    name: str
    instead: str
    why: str


class OptionTable(Record):
    """The content of ``options.toml``."""

    schema: int
    checked_with: str
    sources: Mapping[str, str]
    option: tuple[Option, ...]
    entry: tuple[Entry, ...]
    refused: tuple[RefusedOption, ...] = ()

    def find(self, name: str) -> Option | None:
        """The row of one provider option, None if there is none."""
        return next((row for row in self.option if row.name == name), None)


class Chosen(Record):
    """The user's checked choices: provider options by phase, session entries, and the names not checked for
    the wheel.
    """

    compile: Mapping[str, str]
    run: Mapping[str, str]
    entries: Mapping[str, str]
    unchecked: Names

    @property
    def allows_cpu(self) -> bool:
        """True if nodes that the provider refuses may stay on the CPU."""
        return self.entries.get("session.disable_cpu_ep_fallback", "1") == "0"


@cache
def load_options() -> OptionTable:
    """The table of this adapter."""
    return sourced_file(OptionTable, Path(__file__).parent / "data" / "options.toml")


def choose_options(pairs: Iterable[tuple[str, str]], wheel: str, operators: Collection[str] = ()) -> Chosen:
    """Checks ``--option KEY=VALUE`` pairs for one wheel. Raises UsageError that suggests a near or right name.

    ``operators`` are the model's operator types: some options are set for them.
    """
    table = load_options()
    compiled, run, entries, unchecked = dict[str, str](), dict[str, str](), dict[str, str](), list[str]()
    for name, value in pairs:
        if "." in name:
            entry = next((one for one in table.entry if one.name == name), None)
            if entry is None:
                near = ", ".join(nearest_names(name, [one.name for one in table.entry]))
                raise UsageError(f"--option {name}: no such session entry", next=near and f"did you mean {near}?")
            entries[name] = _value(entry, value)
            continue
        row = _row(table, name, wheel)
        checked = _value(row, value)
        if row.phase in ("compile", "both"):
            compiled[name] = checked
        if row.phase in ("run", "both"):
            run[name] = checked
        if not row.since and Version(wheel) < Version(table.checked_with):
            unchecked.append(name)
    chosen = {**compiled, **run}
    for row in table.option:
        for other in row.excludes:
            if chosen.get(row.name) == "1" and chosen.get(other) == "1":
                raise UsageError(f"--option {row.name} and {other} exclude each other", why=row.note)
        # Options that operators ask for are set only for wheels with which they were seen to help.
        helps = Version(wheel) >= Version(table.checked_with)
        if helps and not set(row.set_for).isdisjoint(operators):
            compiled.setdefault(row.name, "1")
    return Chosen(compile=compiled, run=run, entries=entries, unchecked=tuple(unchecked))


def has_option(name: str, wheel: str) -> bool:
    """True if a wheel is known to have a provider option."""
    row = load_options().find(name)
    return row is not None and bool(row.since) and Version(row.since) <= Version(wheel)


def _row(table: OptionTable, name: str, wheel: str) -> Option:
    """The row of an option that the wheel has. Raises UsageError for any other name."""
    row = table.find(name)
    if row is None:
        refused = next((one for one in table.refused if one.name == name), None)
        if refused is not None:
            right = refused.instead and f"the option is called {refused.instead}"
            raise UsageError(f"--option {name}: {refused.why}", next=right)
        near = ", ".join(nearest_names(name, [one.name for one in table.option]))
        raise UsageError(
            f"--option {name}: the provider has no such option",
            why="it would ignore it without a word",
            next=f"did you mean {near}?" if near else "'deploykit compat provider-option' lists all",
        )
    if row.since and Version(wheel) < Version(row.since) and not row.managed:
        raise UsageError(
            f"--option {name}: not in onnxruntime-qnn {wheel}",
            why=f"it came with {row.since}; an older wheel would ignore it without a word",
            next=f"use --sdk {row.since} or later",
        )
    return row


def _value(row: Option | Entry, text: str) -> str:
    """The value as the provider reads it. Raises UsageError for a value that does not fit."""
    if row.managed:
        raise UsageError(f"--option {row.name}: deploykit sets this one itself", why=row.note)
    wanted, value = "", text
    if isinstance(row, Option) and row.type == "bool":
        value = _BOOLS.get(text.lower(), "")
        wanted = "" if value else "1 or 0 is expected"
    elif row.values and text not in row.values:
        wanted = f"not one of {', '.join(row.values)}"
    elif isinstance(row, Option) and row.type == "int":
        fits = text.isdecimal() and (not row.range or row.range[0] <= int(text) <= row.range[1])
        value = str(int(text)) if fits else text
        limits = f"a number from {row.range[0]} to {row.range[1]}" if row.range else "a whole number"
        wanted = "" if fits else f"{limits} is expected"
    if wanted:
        raise UsageError(f"--option {row.name}={text}: {wanted}")
    return value

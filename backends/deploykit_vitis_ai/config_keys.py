"""Sorts ``--option KEY=VALUE`` into compiler keys, provider options and Quark options, and checks each with its table.

Quark and the compiler silently take unknown names; here an unknown name is an error with the nearest one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from msgspec import Struct

from deploykit.backend.targets import nearest_names
from deploykit.errors import UsageError
from deploykit.findings import Confidence
from deploykit.findings.records import Names, Record
from deploykit.tables.reading import parse_rows, structure
from deploykit_vitis_ai.tables import DATA, ProviderOption, QuarkOption, Recipe, VaimlKey, read_table, rows

__all__ = [
    "ChosenOptions",
    "check_quark_version",
    "further_keys",
    "known_in",
    "parse_options",
    "quark_keys",
    "quark_recipes",
]


_NAMES = "quark_names.toml"


class _Group(Record):
    """Keys of one type in one place, each with the Quark versions that read it, () for all versions examined."""

    where: str
    type: str
    names: Mapping[str, Names]
    within: str = ""


@cache
def quark_keys() -> Mapping[str, QuarkOption]:
    """All keys that can be set, by dotted name: the described options and the further keys."""
    described = (row for row in rows(QuarkOption) if row.where in ("attribute", "extra") and not row.renamed_to)
    return {key.name: key for key in (*described, *further_keys())}


@cache
def further_keys() -> tuple[QuarkOption, ...]:
    """The keys in ``quark_names.toml`` that have no description."""
    table = read_table(_NAMES)
    confidence = Confidence(table["confidence"])
    groups = parse_rows(_Group, table["group"], where=f"{_NAMES}: group")
    return tuple(
        QuarkOption(
            name=f"{group.within}.{name}" if group.within else name,
            where=group.where,
            type=group.type,
            effect="",
            quark=quark,
            source=tuple(table["source"]),
            confidence=confidence,
        )
        for group in groups
        for name, quark in group.names.items()
    )


@cache
def renamed_keys() -> Mapping[str, str]:
    """Old names, and those of Quark's newer interface, with the names to use instead."""
    newer = structure(Mapping[str, str], read_table(_NAMES)["renamed"], where=_NAMES)  # type: ignore[type-abstract]
    return {**newer, **{row.name: row.renamed_to for row in rows(QuarkOption) if row.renamed_to}}


@cache
def quark_recipes() -> Mapping[str, Recipe]:
    """The recipes by name."""
    return {row.name: row for row in rows(Recipe)}


def spelled(name: str) -> str:
    """The dotted name of a key, also for other spellings and without its dictionary; "" if there is none.

    Raises UsageError for a key that is in several dictionaries.
    """
    name = renamed_keys().get(name, name)
    if name in quark_keys():
        return name
    inside = [known for known in quark_keys() if known.rpartition(".")[2] == name]
    if len(inside) > 1:
        raise UsageError(f"--option {name}: several dictionaries of Quark's have it", next=f"say {' or '.join(inside)}")
    return inside[0] if inside else ""


def known_in(key: QuarkOption, version: str) -> bool:
    """False if this version of Quark is known not to read the key."""
    return not key.quark or version in key.quark


def read_value(key: QuarkOption, text: str) -> Any:
    """The value of the text in the key's type. Raises UsageError for a wrong one."""
    if key.type == "enum":
        if text in key.values:
            return text
        near = [value for value in key.values if value.lower().endswith(f".{text.lower()}")]
        near = near or nearest_names(text, key.values)
        raise UsageError(
            f"--option {key.name}={text}: not one that Quark has",
            why=f"known are {', '.join(key.values)}",
            next=f"did you mean {' or '.join(near)}?" if near else "",
        )
    if key.type == "object":
        raise UsageError(
            f"--option {key.name}: takes an object of Python's, which cannot be typed",
            next="set it in scripts/quantize.py of the package, and run that",
        )
    return _typed(key.name, key.type, text)


_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "list": "a list such as Conv,Gemm",
    "json": 'a list or dictionary such as {"x": [1, 3, 224, 224]}',
}


def _typed(name: str, kind: str, text: str) -> Any:
    """The value of the text in a type. Raises UsageError for a wrong one;
    a type not listed above gives the text itself.
    """
    value: Any = None
    if kind == "bool":
        value = {"true": True, "false": False}.get(text.lower())
    elif kind in ("int", "float"):
        with suppress(ValueError):
            value = (int if kind == "int" else float)(text)
    elif kind in ("json", "list"):
        with suppress(ValueError):
            value = json.loads(text)
        if kind == "list" and not isinstance(value, list | dict):
            value = _items(text, _plain) or None
        value = value if isinstance(value, list if kind == "list" else list | dict) else None
    elif kind == "unknown":
        value = _guess(text)
    else:
        value = text
    if value is None:
        raise UsageError(f"--option {name}={text}: {_EXPECTED[kind]} is expected")
    return value


def _plain(text: str) -> Any:
    """The text as a number if it looks like one, else the text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _guess(text: str) -> Any:
    """The text as a boolean, a number or a list in brackets if it looks like one, else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return _items(text, _guess) if text.startswith("[") and text.endswith("]") else _plain(text)


def _items(text: str, read: Callable[[str], Any]) -> list[Any]:
    parts = (part.strip() for part in text.removeprefix("[").removesuffix("]").split(","))
    return [read(part) for part in parts if part]


_OWN = frozenset({"cache_dir", "cache_key", "config_file", "target"})
_RANGE = re.compile(r"(\d+)-(\d+)(?: \((\w+)\))?")


class ChosenOptions(Struct, kw_only=True):
    """The user's options as typed values by name. ``quark`` is the version to quantize with, "" for the release's.

    ``extra`` holds Quark's dictionaries. ``renamed`` are (as typed, as used);
    ``beyond`` are (key, value, documented values).
    """

    vaiml: dict[str, Any] = {}
    provider: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    cpu_partition: bool = False
    quark: str = ""
    named: list[str] = []
    renamed: list[tuple[str, str]] = []
    beyond: list[tuple[str, str, str]] = []


def parse_options(pairs: Iterable[tuple[str, str]], *, product: str, device_class: str) -> ChosenOptions:
    """Sorts and types the pairs. Raises UsageError for an unknown, dead, foreign or ill-typed one."""
    chosen = ChosenOptions()
    recipes = []
    for key, value in pairs:
        recipe = quark_recipes().get(key.removeprefix("quark."))
        if recipe is None:
            _take(chosen, key, value, product, device_class)
        elif _typed(key, "bool", value):
            recipes.append(recipe)
    for recipe in recipes:
        # Typed values replace those of recipes; dictionaries inside are merged.
        chosen.attributes = {**recipe.attributes, **chosen.attributes}
        typed = chosen.extra
        chosen.extra = {**recipe.extra, **typed}
        for name, value in recipe.extra.items():
            if isinstance(value, Mapping) and isinstance(typed.get(name), Mapping):
                chosen.extra[name] = {**value, **typed[name]}
    return chosen


def check_quark_version(chosen: ChosenOptions, version: str) -> None:
    """Raises UsageError for a key that this version of Quark does not read and would silently ignore."""
    for name in chosen.named:
        key = quark_keys()[name]
        if not known_in(key, version):
            raise UsageError(
                f"--option {name}: Quark {version} does not read it",
                why=f"{', '.join(key.quark)} do",
                next="leave it out, or choose another version with --option quark=VERSION",
            )


def _take(chosen: ChosenOptions, key: str, value: str, product: str, device_class: str) -> None:
    name = key.removeprefix("quark.")
    if key == "cpu_partition":
        chosen.cpu_partition = _typed(key, "bool", value)
    elif key == "quark":
        versions = [path.stem.removeprefix("quark-") for path in sorted((DATA / "toolchains").glob("quark-*.toml"))]
        if value not in versions:
            hint = f"known: {', '.join(versions)}"
            raise UsageError(f"--option quark={value}: no toolchain has that version", next=hint)
        chosen.quark = value
    elif key in _OWN:
        raise UsageError(
            f"--option {key}: deploykit sets it itself", why="cache key, file names and target belong together"
        )
    elif (row := next((row for row in rows(VaimlKey) if key in (row.name, *row.aliases)), None)) is not None:
        if product not in row.products:
            raise UsageError(f"--option {key}: not a key of this product", why=f"known for {', '.join(row.products)}")
        if key != row.name:
            chosen.renamed.append((key, row.name))
        typed = _typed(key, row.type, value)
        if row.values and not any(_matches(typed, allowed, device_class) for allowed in row.values):
            chosen.beyond.append((row.name, value, ", ".join(row.values)))
        chosen.vaiml[row.name] = typed
    elif (option := next((row for row in rows(ProviderOption) if row.name == key), None)) is not None:
        if product not in option.products:
            raise UsageError(
                f"--option {option.name}: not an option of this product",
                why=f"{option.status or 'known'} for {', '.join(option.products)}; {option.note}".rstrip("; "),
            )
        if option.values and value not in option.values:
            chosen.beyond.append((option.name, value, ", ".join(option.values)))
        chosen.provider[option.name] = _typed(option.name, "bool", value) if option.type == "bool" else value
    elif (own := spelled(name)) or any(row.name == name for row in rows(QuarkOption)):
        _take_quark(chosen, name, own or name, value)
    else:
        known = [row.name for row in rows(VaimlKey)] + [row.name for row in rows(ProviderOption)]
        known += [*quark_keys(), *renamed_keys(), *quark_recipes(), "cpu_partition", "quark"]
        near = nearest_names(name, known)
        raise UsageError(
            f"--option {key}: not a known key of vaiml_config, of the provider or of Quark",
            why="these tools ignore unknown names without a word",
            next=f"did you mean {', '.join(near)}?" if near else "'deploykit compat vaiml_config' lists the keys",
        )


def _take_quark(chosen: ChosenOptions, typed: str, name: str, value: str) -> None:
    """Takes a Quark option; ``name`` is the key's own name, ``typed`` the user's spelling."""
    if name in ("subgraphs_to_exclude", "nodes_to_exclude", "exclude"):
        raise UsageError(
            f"--option {typed}: what stays in float is told with --exclude-node and --exclude-subgraph",
            why="they are checked against the graph, which Quark does not do",
        )
    if name == "UseRandomData":
        raise UsageError(f"--option {typed}: deploykit sets it", next="--random-data asks for random data")
    row = next((row for row in rows(QuarkOption) if row.name == name), None)
    if row is not None and row.vint8_mandatory and value.lower() != row.vint8_mandatory:
        raise UsageError(
            f"--option {typed}={value}: the compiler needs {row.name} {row.vint8_mandatory}", why=row.effect
        )
    if typed in renamed_keys():
        chosen.renamed.append((typed, name))
    key = quark_keys()[name]
    place, _, inner = name.rpartition(".")
    settings = chosen.extra if key.where == "extra" else chosen.attributes
    (settings.setdefault(place, {}) if place else settings)[inner] = read_value(key, value)
    chosen.named.append(name)


def _matches(value: Any, allowed: str, device_class: str) -> bool:
    span = _RANGE.fullmatch(allowed)
    if span is None:
        return str(value) == allowed
    right_class = not span[3] or not device_class or span[3] == device_class
    return right_class and isinstance(value, int) and int(span[1]) <= value <= int(span[2])

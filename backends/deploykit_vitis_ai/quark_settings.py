"""What can be set in Quark: every key that its source reads, its type, the dictionary it lies in, who reads it.

Quark takes any key and any value without a word, so both are checked here. Reads ``data/quark/``; decides nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from deploykit.backend.targets import nearest_names
from deploykit.errors import UsageError
from deploykit.findings import Confidence
from deploykit.tables.reading import parse_rows, structure
from deploykit_vitis_ai.tables import QuarkOption, Sourced, quark_options, read_rows, read_table

__all__ = [
    "QuarkKey",
    "Recipe",
    "further_keys",
    "key_names",
    "known_in",
    "quark_keys",
    "quark_recipes",
    "read_value",
    "renamed_keys",
    "spelled",
]

_NAMES = "quark/names.toml"
_INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Keys of one type in one place, each with the versions that read it, () for all that were looked at."""

    where: str
    type: str
    names: Mapping[str, tuple[str, ...]]
    within: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarkKey(Sourced):
    """One key; ``name`` is dotted where it lies in a dictionary. ``where`` is ``attribute`` or ``extra``."""

    name: str
    where: str
    type: str
    quark: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Sourced):
    """One word for several settings; ``extra`` holds dictionaries where its keys lie in one."""

    name: str
    effect: str
    words: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@cache
def quark_keys() -> Mapping[str, QuarkKey]:
    """Everything that can be set, by dotted name: the described options and the further keys."""
    described = (
        QuarkKey(
            name=row.name,
            where=row.where,
            type=row.type,
            values=row.values,
            source=row.source,
            confidence=row.confidence,
        )
        for row in quark_options()
        if _is_set_as_it_is(row)
    )
    return {key.name: key for key in (*described, *further_keys())}


def _is_set_as_it_is(row: QuarkOption) -> bool:
    return row.where in ("attribute", "extra") and not row.renamed_to


@cache
def further_keys() -> tuple[QuarkKey, ...]:
    """The keys of ``names.toml``."""
    table = read_table(_NAMES)
    confidence = Confidence(table["confidence"])
    groups = parse_rows(_Group, table["group"], where=f"{_NAMES}: group")
    return tuple(
        QuarkKey(
            name=f"{group.within}.{name}" if group.within else name,
            where=group.where,
            type=group.type,
            quark=quark,
            source=tuple(table["source"]),
            confidence=confidence,
        )
        for group in groups
        for name, quark in group.names.items()
    )


@cache
def renamed_keys() -> Mapping[str, str]:
    """Names of Quark's newer interface, and old ones, by what is written instead."""
    newer = structure(Mapping[str, str], read_table(_NAMES)["renamed"], where=_NAMES)  # type: ignore[type-abstract]
    return {**newer, **{row.name: row.renamed_to for row in quark_options() if row.renamed_to}}


@cache
def quark_recipes() -> Mapping[str, Recipe]:
    """The recipes by name."""
    return {row.name: row for row in read_rows(Recipe, "quark/recipes.toml", "recipe")}


def key_names() -> tuple[str, ...]:
    """Every name that is understood, for suggestions."""
    return (*quark_keys(), *renamed_keys(), *quark_recipes())


def spelled(name: str) -> str:
    """The dotted name that a key is known by: other spellings, and keys without their dictionary; "" for none.

    Raises UsageError for a key that several dictionaries have.
    """
    name = renamed_keys().get(name, name)
    if name in quark_keys():
        return name
    inside = [known for known in quark_keys() if known.rpartition(".")[2] == name]
    if len(inside) > 1:
        raise UsageError(f"--option {name}: several dictionaries of Quark's have it", next=f"say {' or '.join(inside)}")
    return inside[0] if inside else ""


def known_in(key: QuarkKey, version: str) -> bool:
    """False for a key that this version of Quark is known not to read."""
    return not key.quark or version in key.quark


def read_value(key: QuarkKey, text: str) -> Any:
    """The value as typed; raises UsageError for one that is not of the key's type."""
    if key.type == "enum":
        return _one_of(key, text)
    if key.type == "object":
        raise UsageError(
            f"--option {key.name}: takes an object of Python's, which cannot be typed",
            next="set it in scripts/quantize.py of the package, and run that",
        )
    for expected, value in _readings(key.type, text):
        if value is None:
            raise UsageError(f"--option {key.name}={text}: {expected} is expected")
        return value
    return text


def _readings(kind: str, text: str) -> Iterator[tuple[str, Any]]:
    """What is expected of a type in words, and the value, None for another one; nothing for plain text."""
    if kind == "bool":
        yield "true or false", {"true": True, "false": False}.get(text.lower())
    elif kind == "int":
        yield "a whole number", int(text) if _INTEGER.fullmatch(text) else None
    elif kind == "float":
        yield "a number", _number(text)
    elif kind == "list":
        yield "a list such as Conv,Gemm", _listed(text)
    elif kind == "json":
        yield 'a list or dictionary such as {"x": [1, 3, 224, 224]}', _parsed(text)


def _one_of(key: QuarkKey, text: str) -> str:
    if text in key.values:
        return text
    near = [value for value in key.values if value.lower().endswith(f".{text.lower()}")]
    near = near or nearest_names(text, key.values)
    raise UsageError(
        f"--option {key.name}={text}: not one that Quark has",
        why=f"known are {', '.join(key.values)}",
        next=f"did you mean {' or '.join(near)}?" if near else "",
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list | dict) else None


def _listed(text: str) -> list[Any] | None:
    """JSON where it is some, else parts between commas, numbers by their look."""
    value = _parsed(text)
    if value is not None:
        return value if isinstance(value, list) else None
    parts = [part.strip() for part in text.removeprefix("[").removesuffix("]").split(",")]
    return [_plain(part) for part in parts if part] or None


def _plain(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    number = _number(text)
    return text if number is None else number

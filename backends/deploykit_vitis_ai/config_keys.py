"""``--option KEY=VALUE`` sorted into compiler keys, provider options and Quark options, each against its table.

Quark and the compiler take unknown names without a word; here an unknown name is an error with the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploykit.backend.targets import nearest_names
from deploykit.errors import UsageError
from deploykit_vitis_ai.quark_settings import (
    key_names,
    known_in,
    quark_keys,
    quark_recipes,
    read_value,
    renamed_keys,
    spelled,
)
from deploykit_vitis_ai.tables import DATA, ProviderOption, VaimlKey, provider_options, quark_options, vaiml_keys

__all__ = ["ChosenOptions", "check_quark_version", "parse_options"]

_OWN = frozenset({"cache_dir", "cache_key", "config_file", "target"})
_INTEGER = re.compile(r"[+-]?\d+")
_RANGE = re.compile(r"(\d+)-(\d+)(?: \((\w+)\))?")


@dataclass(slots=True, kw_only=True)
class ChosenOptions:
    """Typed values by name. ``quark`` is the version to quantize with, "" for the release's own.

    ``extra`` holds Quark's dictionaries as such. ``renamed`` are (as typed, as used); ``beyond`` are (key, value,
    documented values).
    """

    vaiml: dict[str, Any] = field(default_factory=dict)
    provider: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    cpu_partition: bool = False
    quark: str = ""
    named: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    beyond: list[tuple[str, str, str]] = field(default_factory=list)


def parse_options(pairs: Iterable[tuple[str, str]], *, product: str, device_class: str = "") -> ChosenOptions:
    """Sort and type the pairs; raises UsageError for an unknown, dead, foreign or ill-typed one."""
    chosen = ChosenOptions()
    recipes = []
    for key, value in pairs:
        recipe = quark_recipes().get(key.removeprefix("quark."))
        if recipe is None:
            _take(chosen, key, value, product, device_class)
        elif _typed(key, "bool", value):
            recipes.append(recipe)
    for recipe in recipes:
        chosen.attributes = {**recipe.attributes, **chosen.attributes}
        chosen.extra = _beneath(recipe.extra, chosen.extra)
    return chosen


def check_quark_version(chosen: ChosenOptions, version: str) -> None:
    """Raise UsageError for a key that this version of Quark does not read: it would be ignored without a word."""
    for name in chosen.named:
        key = quark_keys()[name]
        if not known_in(key, version):
            raise UsageError(
                f"--option {name}: Quark {version} does not read it",
                why=f"{', '.join(key.quark)} do",
                next="leave it out, or choose another version with --option quark=VERSION",
            )


def _beneath(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both, dictionaries inside them merged; what is in ``upper`` wins."""
    both = {**lower, **upper}
    for name, value in lower.items():
        if isinstance(value, Mapping) and isinstance(upper.get(name), Mapping):
            both[name] = {**value, **upper[name]}
    return both


def _take(chosen: ChosenOptions, key: str, value: str, product: str, device_class: str) -> None:
    name = key.removeprefix("quark.")
    if key == "cpu_partition":
        chosen.cpu_partition = _typed(key, "bool", value)
    elif key == "quark":
        chosen.quark = _quark_version(value)
    elif key in _OWN:
        raise UsageError(
            f"--option {key}: deploykit sets it itself", why="cache key, file names and target belong together"
        )
    elif (row := _vaiml_key(key)) is not None:
        _take_vaiml(chosen, row, key, value, product, device_class)
    elif (option := _provider_option(key)) is not None:
        _take_provider(chosen, option, value, product)
    elif (known := spelled(name)) or any(row.name == name for row in quark_options()):
        _take_quark(chosen, name, known or name, value)
    else:
        _refuse(key)


def _refuse(key: str) -> None:
    known = [row.name for row in vaiml_keys()] + [row.name for row in provider_options()]
    known += [*key_names(), "cpu_partition", "quark"]
    near = nearest_names(key.removeprefix("quark."), known)
    raise UsageError(
        f"--option {key}: not a known key of vaiml_config, of the provider or of Quark",
        why="these tools ignore unknown names without a word",
        next=f"did you mean {', '.join(near)}?" if near else "'deploykit compat vaiml_config' lists the keys",
    )


def _quark_version(value: str) -> str:
    known = [path.stem.removeprefix("quark-") for path in sorted((DATA / "toolchains").glob("quark-*.toml"))]
    if value not in known:
        raise UsageError(f"--option quark={value}: no toolchain has that version", next=f"known: {', '.join(known)}")
    return value


def _vaiml_key(name: str) -> VaimlKey | None:
    return next((row for row in vaiml_keys() if name in (row.name, *row.aliases)), None)


def _provider_option(name: str) -> ProviderOption | None:
    return next((row for row in provider_options() if row.name == name), None)


def _take_vaiml(chosen: ChosenOptions, row: VaimlKey, key: str, value: str, product: str, device_class: str) -> None:
    if product not in row.products:
        raise UsageError(f"--option {key}: not a key of this product", why=f"known for {', '.join(row.products)}")
    if key != row.name:
        chosen.renamed.append((key, row.name))
    typed = _typed(key, row.type, value)
    if row.values and not any(_matches(typed, allowed, device_class) for allowed in row.values):
        chosen.beyond.append((row.name, value, ", ".join(row.values)))
    chosen.vaiml[row.name] = typed


def _take_provider(chosen: ChosenOptions, row: ProviderOption, value: str, product: str) -> None:
    if row.status == "superseded" or product not in row.products:
        raise UsageError(
            f"--option {row.name}: not an option of this product",
            why=f"{row.status or 'known'} for {', '.join(row.products)}; {row.note}".rstrip("; "),
        )
    if row.values and value not in row.values:
        chosen.beyond.append((row.name, value, ", ".join(row.values)))
    chosen.provider[row.name] = _typed(row.name, "bool", value) if row.type == "bool" else value


def _take_quark(chosen: ChosenOptions, typed: str, name: str, value: str) -> None:
    """``name`` is the key's own, ``typed`` what was written."""
    if name in ("subgraphs_to_exclude", "nodes_to_exclude", "exclude"):
        raise UsageError(
            f"--option {typed}: what stays in float is told with --exclude-node and --exclude-subgraph",
            why="they are checked against the graph, which Quark does not do",
        )
    if name == "UseRandomData":
        raise UsageError(f"--option {typed}: deploykit sets it", next="--random-data asks for random data")
    row = next((row for row in quark_options() if row.name == name), None)
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


def _typed(key: str, kind: str, value: str) -> Any:
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise UsageError(f"--option {key}={value}: true or false is expected")
        return value.lower() == "true"
    if kind == "int":
        if not _INTEGER.fullmatch(value):
            raise UsageError(f"--option {key}={value}: a whole number is expected")
        return int(value)
    return _guess(value) if kind == "unknown" else value


def _guess(value: str) -> Any:
    """Booleans and numbers by their look; a list where brackets say so; text otherwise."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if _INTEGER.fullmatch(value):
        return int(value)
    if value.startswith("[") and value.endswith("]"):
        return [_guess(part.strip()) for part in value[1:-1].split(",") if part.strip()]
    try:
        return float(value)
    except ValueError:
        return value


def _matches(value: Any, allowed: str, device_class: str) -> bool:
    span = _RANGE.fullmatch(allowed)
    if span is None:
        return str(value) == allowed
    right_class = not span[3] or not device_class or span[3] == device_class
    return right_class and isinstance(value, int) and int(span[1]) <= value <= int(span[2])

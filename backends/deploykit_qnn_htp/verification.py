"""Judges a qnn-htp package on disk: encodings, configurations, scripts, and the converter's types where it ran.

It reads only; ``deploykit build`` is what runs the tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploykit.backend.backend import Check, Verification
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import DeploykitError
from deploykit.tables.reading import read_json
from deploykit_qnn_htp.draft import load_routes
from deploykit_qnn_htp.provider import verify_provider
from deploykit_qualcomm.qnn_types import mangled, same_grid, type_name
from deploykit_qualcomm.tables import load_sdk_table

__all__ = ["verify"]

# How the files of intended types begin; the conversion's number follows where there are several.
_TYPES = "intended_types"


# Files of the provider's backend, whose keys it checks itself.
_OF_THE_PROVIDER = ("compile_options", "run_options")


def verify(package: Path, manifest: Mapping[str, Any]) -> Verification:
    """Checks and, after a build, intended against actual types of every tensor that the converter kept."""
    route = manifest.get("route") or {}
    if any(row.id == route.get("id") and row.by_provider for row in load_routes().route):
        provider = verify_provider(package, manifest)
        return replace(provider, checks=(*provider.checks, *_flags(manifest), *_configs(package, manifest)))
    compared = tuple(_compared(package, manifest))
    # A tensor that crosses a cut has a type on either side; the one that is wrong counts.
    ordered = sorted(compared, key=lambda row: row.intended != row.actual)
    checks = (*_encodings(package), *_flags(manifest), *_configs(package, manifest), *_types(compared))
    return Verification(
        checks=checks,
        intended={row.tensor: row.intended for row in ordered},
        actual={row.tensor: row.actual for row in ordered},
    )


def _encodings(package: Path) -> Iterator[Check]:
    for path in sorted((package / "encodings").glob("*.json")):
        if path.name == "float_tensors.json":
            continue
        name = f"encodings/{path.name}"
        try:
            encodings = read_encodings(path)
        except DeploykitError as error:
            yield Check(id="encodings-readable", ok=False, detail=f"{name}: {error.what}")
        else:
            yield Check(
                id="encodings-readable",
                ok=True,
                detail=f"{name}: {len(encodings)} entries, version {encodings.version}",
            )


def _flags(manifest: Mapping[str, Any]) -> Iterator[Check]:
    """Every flag of every recorded command is listed for that tool and version."""
    table = str(manifest.get("sdk", {}).get("table", ""))
    try:
        sdk = load_sdk_table(table)
    except DeploykitError as error:
        yield Check(id="flags-listed", ok=False, detail=error.what)
        return
    unlisted = [
        f"{step['tool']} {word}"
        for step in manifest.get("steps", ())
        if step["tool"] in sdk.tools()
        for word in step["argv"][1:]
        if word.startswith("-") and not word[1:].replace(".", "").isdigit() and not sdk.has_flag(step["tool"], word)
    ]
    yield Check(
        id="flags-listed",
        ok=not unlisted,
        detail=f"not in the table of {table}: {', '.join(unlisted)}"
        if unlisted
        else f"all flags are listed for {table}",
    )


def _configs(package: Path, manifest: Mapping[str, Any]) -> Iterator[Check]:
    """Every key of every configuration file is listed for that version."""
    table = load_sdk_table(str(manifest.get("sdk", {}).get("table", "")))
    for path in sorted((package / "config").glob("*.json")):
        if path.name.startswith((_TYPES, *_OF_THE_PROVIDER)):
            continue
        known = {key.path for key in table.config_keys}
        unknown = [key for key in _paths(read_json(path)) if not _listed(key, known)]
        detail = f"config/{path.name}: " + (f"unknown keys: {', '.join(unknown)}" if unknown else "every key is listed")
        yield Check(id="config-keys", ok=not unknown, detail=detail)


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, dict):
            yield path
            yield from _paths(item, f"{path}.")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for entry in item:
                yield from _paths(entry, f"{path}[].")
        else:
            yield path


def _listed(path: str, known: set[str]) -> bool:
    """True for a listed key, for what leads to one, and for what lies inside an object-valued key."""
    parents = (path.rsplit(".", depth)[0] for depth in range(1, path.count(".") + 1))
    return (
        path in known
        or any(key.startswith((f"{path}.", f"{path}[].")) for key in known)
        or any(parent in known for parent in parents)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One tensor of one conversion, with the actual type told as the intended one where both have the same grid."""

    tensor: str
    intended: str
    actual: str


def _compared(package: Path, manifest: Mapping[str, Any]) -> Iterator[_Compared]:
    """The types that the converter really gave, read from every _net.json that a build left."""
    for step in manifest.get("steps", ()):
        suffix = str(step.get("id", "")).removeprefix("convert")
        for output in step.get("outputs", ()):
            if output.endswith("_net.json"):
                types = package / "config" / Path(f"{_TYPES}{suffix}.json").name
                yield from _compare(package / "artifacts" / Path(output).name, _read_types(types))


def _read_types(path: Path) -> dict[str, str]:
    types = read_json(path).get("types") if path.is_file() else None
    return {str(name): str(kind) for name, kind in types.items()} if isinstance(types, dict) else {}


def _compare(net_json: Path, intended: Mapping[str, str]) -> Iterator[_Compared]:
    names = {mangled(name): name for name in intended}
    try:
        tensors = json.loads(net_json.read_text("utf-8"))["graph"]["tensors"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name, tensor in tensors.items():
        known = names.get(mangled(name))
        if known is not None:
            kind = type_name(tensor.get("data_type"))
            same = same_grid(intended[known], kind, static=tensor.get("type") == 4)
            yield _Compared(tensor=known, intended=intended[known], actual=intended[known] if same else kind)


def _types(compared: tuple[_Compared, ...]) -> Iterator[Check]:
    if not compared:
        yield Check(id="converter-types", ok=True, detail="not built yet: the converter's types are not known")
        return
    wrong = [row.tensor for row in compared if row.actual != row.intended]
    yield Check(
        id="converter-types",
        ok=not wrong,
        detail=f"{len(compared)} tensors compared, {len(wrong)} differ",
    )

"""Judges a qnn-htp package on disk: configurations, scripts, and the converter's types if it ran.

It only reads; ``deploykit build`` runs the tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploykit.backend.backend import Check, Verification
from deploykit.findings.records import Json, replace
from deploykit.tables.reading import read_json
from deploykit_qnn_htp.draft import load_routes
from deploykit_qnn_htp.provider import verify_provider
from deploykit_qualcomm.qnn_types import mangled, same_grid, type_name
from deploykit_qualcomm.tables import tables

__all__ = ["verify"]

# The beginning of the files of intended types; a suffix follows if there are several.
_TYPES = "intended_types"


# Files of the provider's backend, whose keys it checks itself.
_OF_THE_PROVIDER = ("compile_options", "run_options")


def verify(package: Path, manifest: Json) -> Verification:
    """The checks and, after a build, the intended and actual types of every tensor that the converter kept."""
    route = manifest.get("route") or {}
    if any(row.id == route.get("id") and row.by_provider for row in load_routes().route):
        provider = verify_provider(package, manifest)
        return replace(provider, checks=(*provider.checks, *_listed(package, manifest)))
    # A tensor at a cut has a type on either side; a wrong one counts.
    ordered = sorted(_compared(package, manifest), key=lambda row: row[1] != row[2])
    wrong = sum(intended != actual for _, intended, actual in ordered)
    words = f"{len(ordered)} tensors compared, {wrong} differ"
    types = words if ordered else "not built yet: the converter's types are not known"
    return Verification(
        (*_listed(package, manifest), Check("converter-types", ok=not wrong, detail=types)),
        {tensor: intended for tensor, intended, _ in ordered},
        actual={tensor: actual for tensor, _, actual in ordered},
    )


def _listed(package: Path, manifest: Json) -> Iterator[Check]:
    """Checks that the version's table lists every flag of every recorded command, and every key of every
    configuration.
    """
    table = str(manifest.get("sdk", {}).get("table", ""))
    sdk = tables().table(table)
    unlisted = [
        f"{step['tool']} {word}"
        for step in manifest.get("steps", ())
        if step["tool"] in sdk.tools()
        for word in step["argv"][1:]
        if word.startswith("-") and not word[1:].replace(".", "").isdigit() and not sdk.has_flag(step["tool"], word)
    ]
    words = f"not in the table of {table}: {', '.join(unlisted)}" if unlisted else f"all flags are listed for {table}"
    yield Check("flags-listed", ok=not unlisted, detail=words)
    known = {key.path for key in sdk.config_keys}
    for path in sorted((package / "config").glob("*.json")):
        if path.name.startswith((_TYPES, *_OF_THE_PROVIDER)):
            continue
        unknown = []
        for key in _paths(read_json(path)):
            # A key counts as listed if it is a row, leads to one, or lies inside an object-valued one.
            parents = {key.rsplit(".", depth)[0] for depth in range(1, key.count(".") + 1)}
            leads = any(one.startswith((f"{key}.", f"{key}[].")) for one in known)
            if key not in known and not leads and known.isdisjoint(parents):
                unknown.append(key)
        detail = f"config/{path.name}: " + (f"unknown keys: {', '.join(unknown)}" if unknown else "every key is listed")
        yield Check("config-keys", ok=not unknown, detail=detail)


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


def _compared(package: Path, manifest: Json) -> Iterator[tuple[str, str, str]]:
    """Yields tensor, intended and actual type from each _net.json that a build left.

    A type with the same grid as the intended one counts as the intended one.
    """
    for step in manifest.get("steps", ()):
        suffix = str(step.get("id", "")).removeprefix("convert")
        path = package / "config" / Path(f"{_TYPES}{suffix}.json").name
        for output in step.get("outputs", ()):
            if not output.endswith("_net.json"):
                continue
            types = read_json(path).get("types") if path.is_file() else None
            types = types if isinstance(types, dict) else {}
            intended = {mangled(str(name)): (str(name), str(kind)) for name, kind in types.items()}
            try:
                text = (package / "artifacts" / Path(output).name).read_text("utf-8")
                tensors = json.loads(text)["graph"]["tensors"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            for name, tensor in tensors.items():
                if mangled(name) in intended:
                    known, wanted = intended[mangled(name)]
                    kind = type_name(tensor.get("data_type"))
                    yield known, wanted, wanted if same_grid(wanted, kind, static=tensor.get("type") == 4) else kind

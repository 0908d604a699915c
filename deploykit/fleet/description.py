"""Reads ``deploykit.toml`` into values: models, targets and what is packaged for which. It does not expand cells.

Paths in the file are relative to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from deploykit.devices.places import DeviceRow
from deploykit.errors import InputError
from deploykit.findings.records import Json, Names, Record, field
from deploykit.tables.reading import read_toml, schema_of, structure

__all__ = ["FILE_NAME", "Described", "Included", "Shared", "read_file", "schema"]

FILE_NAME = "deploykit.toml"

# These names become folder names and command line arguments.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Shared(Record):
    """Settings of ``deploykit package`` for the whole file, a model, a target or a cell; the most specific wins.

    ``options`` are documented configuration keys, ``own`` the options of a backend by name; both are merged key by key
    with less specific ones. None means not set.
    """

    encodings: str | None = None
    float_tensors: str | None = None
    precision: str | None = None
    calibration: str | None = None
    quantizer: str | None = None
    goal: str | None = None
    metric: str | None = None
    references: str | None = None
    inputs: Names | None = None
    io: Names | None = None
    mixed: Literal["auto", "fallback", "segments", "refuse"] | None = None
    rewrite: Names | None = None
    no_rewrite: Names | None = None
    compile: bool | None = None
    second_opinion: bool | None = None
    samples: bool | None = None
    options: Json = field(default_factory=dict)
    own: Json = field(default_factory=dict)


class ModelRow(Shared):
    """One model: an ONNX file and the settings for it."""

    path: str


class TargetRow(Shared):
    """One device, with each of ``backends`` and ``sdks``; the defaults are its first backend and the newest SDK."""

    device: str
    backends: Names = ()
    sdks: Names = ()


class Excluded(Record):
    """Cells that are excluded; each pattern may contain ``*``."""

    model: str = "*"
    target: str = "*"
    backend: str = "*"
    sdk: str = "*"


class Included(Shared):
    """One additional cell with its own settings; ``name`` is the last part of its id."""

    model: str
    target: str
    name: str
    backend: str | None = None
    sdk: str | None = None


class Matrix(Record):
    """Which models are combined with which targets; empty means all."""

    models: Names = ()
    targets: Names = ()
    exclude: tuple[Excluded, ...] = ()
    include: tuple[Included, ...] = ()


class Described(Record):
    """The whole file of a fleet: models, targets and what is packaged for
    which; ``devices`` are the names for ``--on``.
    """

    models: Mapping[str, ModelRow]
    targets: Mapping[str, TargetRow]
    devices: Mapping[str, DeviceRow] = {}
    defaults: Shared = field(default_factory=Shared)
    matrix: Matrix = field(default_factory=Matrix)


def read_file(path: Path) -> Described:
    """Read and check the file. Raises InputError that names what is unknown, missing or unusable as a name."""
    described = structure(Described, read_toml(path), where=f"{path}:")
    for kind, rows in (("models", described.models), ("targets", described.targets)):
        if not rows:
            raise InputError(f"{path}: {kind}: names none", next=f"add a table [{kind}.NAME]")
        for name in rows:
            _check_name(path, f"{kind}.{name}", name)
    for position, cell in enumerate(described.matrix.include):
        _check_name(path, f"matrix.include[{position}].name", cell.name)
        _check_known(path, f"matrix.include[{position}]", {"model": cell.model, "target": cell.target}, described)
    for kind, names in (("model", described.matrix.models), ("target", described.matrix.targets)):
        for name in names:
            _check_known(path, f"matrix.{kind}s", {kind: name}, described)
    return described


def schema() -> Json:
    """Return the JSON Schema of the file, for editors."""
    return schema_of(Described)


def _check_name(path: Path, where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{path}: {where}: {name!r} cannot be the name of a folder",
            next="use letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        )


def _check_known(path: Path, where: str, named: Mapping[str, str], described: Described) -> None:
    for kind, name in named.items():
        known = described.models if kind == "model" else described.targets
        if name not in known:
            raise InputError(f"{path}: {where}: no {kind} is called {name!r}", why=f"there are {', '.join(known)}")

"""Cells: one model for one target each, expanded from ``deploykit.toml``, with the request and the key of their inputs.

A result with the same key need not be made again: it stands for the request, the bytes of every input and the versions
that read them. Nothing is packaged here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Any, TypeVar

from msgspec import convert, to_builtins
from packaging.requirements import Requirement

from deploykit.backend.backend import Request
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import make_request
from deploykit.errors import InputError, UsageError
from deploykit.findings import listed
from deploykit.fleet.description import Described, Excluded, Included, ModelRow, Shared, TargetRow
from deploykit.model import load_model
from deploykit.packages.manifests import hash_file
from deploykit.system.files import regular_size

__all__ = [
    "Cell",
    "Keys",
    "cells_of",
    "chosen_cells",
    "input_files",
    "moved",
    "request_from_json",
    "request_to_json",
    "tool_versions",
]

_PATHS = ("encodings", "float_tensors", "calibration", "references")
_ARRAYS = (".npy", ".npz")
_MOST_FILES = 100_000

Row = TypeVar("Row", bound=Shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One package to be made. ``id`` is a path of two parts, model and target, and the folder of its results."""

    id: str
    model: str
    target: str
    request: Request

    def to_json(self) -> dict[str, Any]:
        """What a process that makes it is told."""
        return {"id": self.id, "request": request_to_json(self.request)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a cell stands: its two names, the device and what is packaged for it."""

    model: str
    target: str
    device: str
    backend: str | None
    sdk: str | None
    suffix: str = ""

    @property
    def id(self) -> str:
        return f"{self.model}/{self.target}{self.suffix}"


def cells_of(described: Described, folder: Path) -> tuple[Cell, ...]:
    """Every cell of the file that lies in ``folder``, model by model. UsageError where nothing is left."""
    made = [
        _cell(place, described, folder)
        for place in _places(described)
        if not any(_is_excluded(place, rule) for rule in described.matrix.exclude)
    ]
    for more in described.matrix.include:
        device = described.targets[more.target].device
        place = _Place(
            model=more.model,
            target=more.target,
            device=device,
            backend=more.backend,
            sdk=more.sdk,
            suffix=f"-{more.name}",
        )
        made.append(_cell(place, described, folder, more))
    if not made:
        raise UsageError("the file leaves no model for any target", next="look at matrix.exclude")
    seen: set[str] = set()
    for cell in made:
        if cell.id.casefold() in seen:  # some disks do not tell letters apart
            raise InputError(f"two cells are called {cell.id}", next="give matrix.include entries names of their own")
        seen.add(cell.id.casefold())
    order = {name: position for position, name in enumerate(described.models)}
    return tuple(sorted(made, key=lambda cell: order[cell.model]))


def chosen_cells(cells: Iterable[Cell], only: Iterable[str]) -> tuple[Cell, ...]:
    """The cells whose id matches one of the patterns, a model or a target alone included; all without patterns."""
    known, patterns = tuple(cells), tuple(only)
    found = tuple(
        cell
        for cell in known
        if not patterns
        or any(fnmatchcase(name, one) for one in patterns for name in (cell.id, cell.model, cell.target))
    )
    if not found:
        names = listed([cell.id for cell in known], most=8)
        raise UsageError(f"--only {' --only '.join(patterns)}: no cell is called so", why=f"there are {names}")
    return found


def _places(described: Described) -> Iterator[_Place]:
    for model in described.matrix.models or tuple(described.models):
        for target in described.matrix.targets or tuple(described.targets):
            row = described.targets[target]
            for backend in row.backends or (None,):
                for sdk in row.sdks or (None,):
                    suffix = f"-{backend}" if len(row.backends) > 1 else ""
                    suffix += f"-{sdk}" if len(row.sdks) > 1 else ""
                    yield _Place(model=model, target=target, device=row.device, backend=backend, sdk=sdk, suffix=suffix)


def _is_excluded(place: _Place, rule: Excluded) -> bool:
    return (
        fnmatchcase(place.model, rule.model)
        and fnmatchcase(place.target, rule.target)
        and fnmatchcase(place.backend or "", rule.backend)
        and fnmatchcase(place.sdk or "", rule.sdk)
    )


def _cell(place: _Place, described: Described, folder: Path, more: Included | None = None) -> Cell:
    model, target = described.models[place.model], described.targets[place.target]
    everywhere = tuple(backend for row in described.targets.values() for backend in row.backends)
    shared = (
        _without_others(described.defaults, place.backend, everywhere),
        _without_others(model, place.backend, everywhere),
        _without_others(target, place.backend, target.backends),
    )
    merged = _merged((*shared, *([] if more is None else [more])))
    paths = {spec.name for spec in all_options() if spec.kind == "path"}
    own = {
        name: folder / value if name in paths and isinstance(value, str) else value
        for name, value in merged.own.items()
    }
    try:
        request = make_request(
            folder / model.path,
            place.device,
            backend=place.backend,
            sdk=place.sdk,
            options={key: _scalar(key, value) for key, value in merged.options.items()},
            **{**own, **_core(merged, folder)},
        )
    except UsageError as error:
        raise UsageError(f"{place.id}: {error.what}", why=error.why, next=error.next) from None
    return Cell(id=place.id, model=place.model, target=place.target, request=request)


def _merged(rows: Iterable[Shared | ModelRow | TargetRow | Included]) -> Shared:
    """The nearest word wins; keys of ``options`` and ``own`` are taken one by one."""
    merged = Shared()
    for row in rows:
        named = {item.name: getattr(row, item.name) for item in fields(Shared)}
        both: dict[str, Any] = {name: {**getattr(merged, name), **named.pop(name)} for name in ("options", "own")}
        merged = replace(merged, **both, **{name: value for name, value in named.items() if value is not None})
    return merged


def _without_others(row: Row, backend: str | None, among: Collection[str]) -> Row:
    """What is said for cells of several backends, without the options that this one lacks and another of them has."""
    if backend is None or not row.own:
        return row
    owners = _owners()
    own = {
        name: value
        for name, value in row.own.items()
        if backend in owners.get(name, ()) or owners.get(name, set()).isdisjoint(among)
    }
    return replace(row, own=own)


@cache
def _owners() -> dict[str, set[str]]:
    """The ids of the backends that have an option, by its name."""
    owners: dict[str, set[str]] = {}
    for spec, ids in all_options().items():
        owners.setdefault(spec.name, set()).update(ids)
    return owners


def _core(merged: Shared, folder: Path) -> dict[str, Any]:
    """The options of the core that are set; what an empty text is set to is not set."""
    given = {item.name: getattr(merged, item.name) for item in fields(Shared) if item.name not in ("options", "own")}
    given = {name: value for name, value in given.items() if value not in (None, "")}
    for name in _PATHS:
        if name in given:
            given[name] = folder / given[name]
    if "inputs" in given:
        given["inputs"] = tuple(_moved_input(text, lambda path: folder / path) for text in given["inputs"])
    return given


def _scalar(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"options.{key}: one value is expected, not {type(value).__name__}")


def moved(request: Request, place: Callable[[Path], Path]) -> Request:
    """The same request with every path that it names put through ``place``."""
    paths: dict[str, Any] = {name: place(value) for name in _PATHS if (value := getattr(request, name)) is not None}
    own = {name: place(value) if isinstance(value, Path) else value for name, value in request.adapter_options.items()}
    inputs = tuple(_moved_input(text, place) for text in request.inputs)
    return replace(request, model=place(request.model), inputs=inputs, adapter_options=own, **paths)


def _moved_input(text: str, place: Callable[[Path], Path]) -> str:
    name, separator, value = text.partition("=")
    return f"{name}={place(Path(value))}" if separator and value.endswith(_ARRAYS) else text


def request_to_json(request: Request) -> dict[str, Any]:
    """Every field of a request that is set, as JSON has it."""
    made: dict[str, Any] = to_builtins(request, enc_hook=str)  # a path is its text
    return {name: value for name, value in made.items() if value is not None}


def request_from_json(value: Mapping[str, Any]) -> Request:
    """The request that ``request_to_json`` wrote."""
    return convert(value, Request, dec_hook=lambda kind, text: kind(text))


class Keys:
    """Makes keys; each file is hashed once, however many cells it belongs to."""

    def __init__(self) -> None:
        self._digests: dict[Path, str] = {}
        self._tools = tool_versions()

    def key(self, cell: Cell) -> str:
        """The key of one cell; InputError where an input cannot be read. Where files lie is no part of it."""
        request = request_to_json(cell.request)
        files: dict[str, list[str]] = {}
        for role, paths in _by_role(cell.request):
            for path in paths:
                if path not in self._digests:
                    self._digests[path] = hash_file(path)[1]
            files[role] = [self._digests[path] for path in paths]
        facts = {
            "request": {name: value for name, value in request.items() if name not in files and name != "inputs"},
            "inputs": [text for text in cell.request.inputs if _file_of(text) is None],
            "names": {role: [path.name for path in paths] for role, paths in _by_role(cell.request)},
            "files": files,
            "tools": self._tools,
        }
        return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def input_files(request: Request) -> Iterator[Path]:
    """Every file that a request names or reads, external data and the files of folders included."""
    for _, paths in _by_role(request):
        yield from paths


def tool_versions() -> dict[str, str]:
    """The versions of deploykit, of the packages of backends, and of what these require; "" where it is missing."""
    owners = {entry.dist.name for entry in entry_points(group="deploykit.backends") if entry.dist is not None}
    needed = [Requirement(text) for owner in owners for text in requires(owner) or ()]
    # Packages of the extras for tests change no verdict.
    only_tests = ('extra == "test"', 'extra == "dev"')
    names = owners | {row.name for row in needed if not any(extra in str(row.marker) for extra in only_tests)}
    found: dict[str, str] = {}
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _by_role(request: Request) -> Iterator[tuple[str, tuple[Path, ...]]]:
    regular_size(request.model)
    yield "model", (request.model,)
    yield "external-data", tuple(external.path for external in load_model(request.model).external)
    for role, path in (
        ("encodings", request.encodings),
        ("float_tensors", request.float_tensors),
        ("calibration", request.calibration),
        ("references", request.references),
    ):
        if path is not None:
            yield role, tuple(_files_at(path))
    for name, value in request.adapter_options.items():
        if isinstance(value, Path):
            yield name, tuple(_files_at(value))
    yield "input", tuple(found for text in request.inputs if (found := _file_of(text)) is not None)


def _file_of(declared: str) -> Path | None:
    """The file of an ``--input NAME=FILE.npy``; None where a value is declared."""
    _, _, value = declared.partition("=")
    return Path(value) if value.endswith(_ARRAYS) else None


def _files_at(path: Path) -> Iterator[Path]:
    """A file, or those of a folder in the order of their names."""
    if not path.is_dir():
        regular_size(path)
        yield path
        return
    count = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > _MOST_FILES:
                raise InputError(f"{path}: holds more than {_MOST_FILES:,} files")
            yield Path(folder, name)

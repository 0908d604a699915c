"""Cells: one model for one target each, expanded from ``deploykit.toml``, with the request and the key of their inputs.

A result with the same key need not be made again: it stands for the request, the bytes of every input and the versions
that read them. Nothing is packaged here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from msgspec import convert, to_builtins
from msgspec.structs import fields
from packaging.requirements import Requirement

from deploykit.backend.backend import Request
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import make_request
from deploykit.errors import InputError, UsageError
from deploykit.findings import listed
from deploykit.findings.records import Json, Record, replace
from deploykit.fleet.description import Described, Included, Shared
from deploykit.model.load import load_model
from deploykit.packages.manifests import hash_file
from deploykit.system.files import paths_below, regular_size

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
_MOST_FILES = 100_000
# A line of the file adds as many cells as it has targets or models.
_MOST_CELLS = 10_000

Row = TypeVar("Row", bound=Shared)


class Cell(Record):
    """One package to be made. ``id`` is a path of two parts, model and target, and the folder of its results."""

    id: str
    model: str
    target: str
    request: Request

    def to_json(self) -> Json:
        """What a process that makes it is told."""
        return {"id": self.id, "request": request_to_json(self.request)}


def cells_of(described: Described, folder: Path) -> tuple[Cell, ...]:
    """Every cell of the file that lies in ``folder``, model by model. UsageError where nothing is left."""
    made, matrix = [], described.matrix
    models = matrix.models or tuple(described.models)
    rows = [(target, described.targets[target]) for target in matrix.targets or described.targets]
    count = len(models) * sum(max(1, len(row.backends)) * max(1, len(row.sdks)) for _, row in rows)
    if count > _MOST_CELLS:
        why = f"at most {_MOST_CELLS:,} cells are described in one file"
        raise InputError(f"{count:,} cells", why=why, next="split the file")
    for model in models:
        for target, row in rows:
            for backend, sdk in product(row.backends or (None,), row.sdks or (None,)):
                names = (model, target, backend or "", sdk or "")
                rules = ((rule.model, rule.target, rule.backend, rule.sdk) for rule in matrix.exclude)
                if any(all(map(fnmatchcase, names, rule)) for rule in rules):
                    continue
                suffix = f"-{backend}" if len(row.backends) > 1 else ""
                suffix += f"-{sdk}" if len(row.sdks) > 1 else ""
                made.append(_cell(f"{model}/{target}{suffix}", model, target, backend, sdk, described, folder))
    for more in matrix.include:
        identity = f"{more.model}/{more.target}-{more.name}"
        made.append(_cell(identity, more.model, more.target, more.backend, more.sdk, described, folder, more))
    if not made:
        raise UsageError("the file leaves no model for any target", next="look at matrix.exclude")
    seen = set[str]()
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


def _cell(
    identity: str,
    model: str,
    target: str,
    backend: str | None,
    sdk: str | None,
    described: Described,
    folder: Path,
    more: Included | None = None,
) -> Cell:
    """The nearest word wins, of the cell, the target, the model, the file; ``options`` and ``own`` key by key."""
    row = described.targets[target]
    everywhere = tuple(name for one in described.targets.values() for name in one.backends)
    shared = [
        _without_others(described.defaults, backend, everywhere),
        _without_others(described.models[model], backend, everywhere),
        _without_others(row, backend, row.backends),
        *([] if more is None else [more]),
    ]
    options: dict[str, Any] = {}
    own: dict[str, Any] = {}
    core: dict[str, Any] = {}
    for one in shared:
        options |= one.options
        own |= one.own
        named = {item.name: getattr(one, item.name) for item in fields(Shared)}
        core |= {name: value for name, value in named.items() if value is not None and name not in ("options", "own")}
    # What an empty text is set to is not set.
    core = {name: value for name, value in core.items() if value != ""}
    paths = {spec.name for spec in all_options() if spec.kind == "path"}
    own = {name: Path(value) if name in paths and isinstance(value, str) else value for name, value in own.items()}
    try:
        for key, value in options.items():
            if not isinstance(value, bool | str | int | float):
                raise UsageError(f"options.{key}: one value is expected, not {type(value).__name__}")
            options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        path = described.models[model].path
        request = make_request(path, row.device, backend=backend, sdk=sdk, options=options, **{**own, **core})
    except UsageError as error:
        raise UsageError(f"{identity}: {error.what}", why=error.why, next=error.next) from None
    return Cell(id=identity, model=model, target=target, request=moved(request, lambda place: folder / place))


def _without_others(row: Row, backend: str | None, among: Collection[str]) -> Row:
    """What is said for cells of several backends, without the options that this one lacks and another of them has."""
    if backend is None or not row.own:
        return row
    owners: dict[str, set[str]] = {}
    for spec, ids in all_options().items():
        owners.setdefault(spec.name, set()).update(ids)
    own = {
        name: value
        for name, value in row.own.items()
        if backend in owners.get(name, ()) or owners.get(name, set()).isdisjoint(among)
    }
    return replace(row, own=own)


def moved(request: Request, place: Callable[[Path], Path]) -> Request:
    """The same request with every path that it names put through ``place``."""
    paths = {name: place(value) for name in _PATHS if (value := getattr(request, name)) is not None}
    own = {name: place(value) if isinstance(value, Path) else value for name, value in request.adapter_options.items()}
    inputs = tuple(_moved_input(text, place) for text in request.inputs)
    return replace(request, model=place(request.model), inputs=inputs, adapter_options=own, **paths)


def _moved_input(text: str, place: Callable[[Path], Path]) -> str:
    file = _file_of(text)
    return text if file is None else f"{text.partition('=')[0]}={place(file)}"


def request_to_json(request: Request) -> Json:
    """Every field of a request that is set, as JSON has it."""
    made: Json = to_builtins(request, enc_hook=str)  # a path is its text
    return {name: value for name, value in made.items() if value is not None}


def request_from_json(value: Json) -> Request:
    """The request that ``request_to_json`` wrote."""
    return convert(value, Request, dec_hook=lambda kind, text: kind(text))


class Keys:
    """Makes keys; each file is hashed once, and each model read once, however many cells it belongs to."""

    def __init__(self) -> None:
        self._digest = cache(lambda path: hash_file(path)[1])
        self._external = cache(_external)
        self._tools = tool_versions()

    def key(self, cell: Cell) -> str:
        """The key of one cell; InputError where an input cannot be read. Where files lie is no part of it."""
        roles = dict(_by_role(cell.request, self._external(cell.request.model)))
        facts = {
            "request": request_to_json(moved(cell.request, lambda _: Path())),
            "names": {role: [path.name for path in paths] for role, paths in roles.items()},
            "files": {role: list(map(self._digest, paths)) for role, paths in roles.items()},
            "tools": self._tools,
        }
        return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def input_files(request: Request) -> Iterator[Path]:
    """Every file that a request names or reads, external data and the files of folders included."""
    for _, paths in _by_role(request, _external(request.model)):
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


def _external(model: Path) -> tuple[Path, ...]:
    return tuple(file.path for file in load_model(model).external)


def _by_role(request: Request, external: tuple[Path, ...]) -> Iterator[tuple[str, tuple[Path, ...]]]:
    yield "model", (request.model,)
    yield "external-data", external
    for role in _PATHS:
        path = getattr(request, role)
        if path is not None:
            yield role, tuple(_files_at(path))
    for name, value in request.adapter_options.items():
        if isinstance(value, Path):
            yield name, tuple(_files_at(value))
    yield "input", tuple(found for text in request.inputs if (found := _file_of(text)) is not None)


def _file_of(declared: str) -> Path | None:
    """The file of an ``--input NAME=FILE.npy``; None where a value is declared."""
    _, _, value = declared.partition("=")
    return Path(value) if value.lower().endswith((".npy", ".npz")) else None


def _files_at(path: Path) -> Iterator[Path]:
    """A file, or those of a folder in the order of their names."""
    if not path.is_dir():
        regular_size(path)
        yield path
        return
    for count, name in enumerate(paths_below(path)):
        if count >= _MOST_FILES:
            raise InputError(f"{path}: holds more than {_MOST_FILES:,} files")
        yield path / name

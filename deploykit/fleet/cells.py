"""Expands ``deploykit.toml`` into cells: one model for one target each, with the request and a key of its inputs.

A result with the same key need not be made again: the key covers the request, the bytes of every input and the versions
of the tools. Nothing is packaged here.
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
# One line of the file can add as many cells as there are targets or models.
_MOST_CELLS = 10_000

Row = TypeVar("Row", bound=Shared)


class Cell(Record):
    """One package to be made. ``id`` is a path of two parts, model and
    target; its results are in the folder of that name.
    """

    id: str
    model: str
    target: str
    request: Request

    def to_json(self) -> Json:
        """The JSON that a process needs to make this cell."""
        return {"id": self.id, "request": request_to_json(self.request)}


def cells_of(described: Described, folder: Path) -> tuple[Cell, ...]:
    """Return every cell of the file in ``folder``, ordered by model.

    Raises UsageError if no cell is left, InputError for too many cells or two with the same id.
    """
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
        if cell.id.casefold() in seen:  # some file systems ignore case
            raise InputError(f"two cells are called {cell.id}", next="give matrix.include entries names of their own")
        seen.add(cell.id.casefold())
    order = {name: position for position, name in enumerate(described.models)}
    return tuple(sorted(made, key=lambda cell: order[cell.model]))


def chosen_cells(cells: Iterable[Cell], only: Iterable[str]) -> tuple[Cell, ...]:
    """Return the cells that match one of the patterns by id, model or target; all cells if there are no patterns.

    Raises UsageError if none matches.
    """
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
    """Make one cell. The most specific setting wins, in the order cell, target, model, file.

    ``options`` and ``own`` are merged key by key. Raises UsageError for settings that are not valid.
    """
    row = described.targets[target]
    everywhere = tuple(name for one in described.targets.values() for name in one.backends)
    shared = [
        _without_others(described.defaults, backend, everywhere),
        _without_others(described.models[model], backend, everywhere),
        _without_others(row, backend, row.backends),
        *([] if more is None else [more]),
    ]
    options = dict[str, Any]()
    own = dict[str, Any]()
    core = dict[str, Any]()
    for one in shared:
        options |= one.options
        own |= one.own
        named = {item.name: getattr(one, item.name) for item in fields(Shared)}
        core |= {name: value for name, value in named.items() if value is not None and name not in ("options", "own")}
    # An empty text removes a setting.
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
    """Return a row without options that belong only to other backends in ``among`` and not to this one."""
    if backend is None or not row.own:
        return row
    owners = dict[str, set[str]]()
    for spec, ids in all_options().items():
        owners.setdefault(spec.name, set()).update(ids)
    own = {
        name: value
        for name, value in row.own.items()
        if backend in owners.get(name, ()) or owners.get(name, set()).isdisjoint(among)
    }
    return replace(row, own=own)


def moved(request: Request, place: Callable[[Path], Path]) -> Request:
    """Return the same request with ``place`` applied to every path in it."""
    paths = {name: place(value) for name in _PATHS if (value := getattr(request, name)) is not None}
    own = {name: place(value) if isinstance(value, Path) else value for name, value in request.adapter_options.items()}
    inputs = tuple(
        f"{text.partition('=')[0]}={place(file)}" if (file := _file_of(text)) else text for text in request.inputs
    )
    return replace(request, model=place(request.model), inputs=inputs, adapter_options=own, **paths)


def request_to_json(request: Request) -> Json:
    """Return the fields of a request that are set, as JSON."""
    made: Json = to_builtins(request, enc_hook=str)  # paths become text
    return {name: value for name, value in made.items() if value is not None}


def request_from_json(value: Json) -> Request:
    """Return the request that ``request_to_json`` wrote."""
    return convert(value, Request, dec_hook=lambda kind, text: kind(text))


class Keys:
    """Makes keys of cells; each file is hashed once and each model read once, for any number of cells."""

    def __init__(self) -> None:
        self._digest = cache(lambda path: hash_file(path)[1])
        self._external = cache(_external)
        self._tools = tool_versions()

    def key(self, cell: Cell) -> str:
        """Return the key of one cell, which does not depend on where files
        are. Raises InputError for an unreadable input.
        """
        roles = dict(_by_role(cell.request, self._external(cell.request.model)))
        facts = {
            "request": request_to_json(moved(cell.request, lambda _: Path())),
            "names": {role: [path.name for path in paths] for role, paths in roles.items()},
            "files": {role: list(map(self._digest, paths)) for role, paths in roles.items()},
            "tools": self._tools,
        }
        return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def input_files(request: Request) -> Iterator[Path]:
    """Yield every file that a request names or reads, including external data and the files in folders."""
    for _, paths in _by_role(request, _external(request.model)):
        yield from paths


def tool_versions() -> dict[str, str]:
    """Return the versions of deploykit, backend packages and their requirements; "" for one that is not installed."""
    owners = {entry.dist.name for entry in entry_points(group="deploykit.backends") if entry.dist is not None}
    needed = [Requirement(text) for owner in owners for text in requires(owner) or ()]
    # Packages for tests do not affect any verdict.
    only_tests = ('extra == "test"', 'extra == "dev"')
    names = owners | {row.name for row in needed if not any(extra in str(row.marker) for extra in only_tests)}
    found = dict[str, str]()
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
    """Return the file of an ``--input NAME=FILE.npy``, None if it declares no file."""
    _, _, value = declared.partition("=")
    return Path(value) if value.lower().endswith((".npy", ".npz")) else None


def _files_at(path: Path) -> Iterator[Path]:
    """Yield the file itself, or the files of a folder sorted by name. Raises InputError for too many files."""
    if not path.is_dir():
        regular_size(path)
        yield path
        return
    for count, name in enumerate(paths_below(path)):
        if count >= _MOST_FILES:
            raise InputError(f"{path}: holds more than {_MOST_FILES:,} files")
        yield path / name

"""What a cell's result depends on, as one key: the request, the bytes of every input, the versions that read them.

A result with the same key need not be made again. It reads files and writes none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from deploykit.backend.backend import Request
from deploykit.errors import InputError
from deploykit.fleet.cells import Cell, request_to_json
from deploykit.model import load_model
from deploykit.packages.manifests import hash_file
from deploykit.system.files import regular_size

__all__ = ["Keys", "input_files", "tool_versions"]

_GROUP = "deploykit.backends"
_ONLY_FOR_TESTS = ("test", "dev")
"""Extras whose packages change no verdict."""
_MOST_FILES = 100_000


class Keys:
    """Makes keys; each file is hashed once, however many cells it belongs to."""

    def __init__(self) -> None:
        self._digests: dict[Path, str] = {}
        self._tools = tool_versions()

    def key(self, cell: Cell) -> str:
        """The key of one cell; InputError where an input cannot be read. Where files lie is no part of it."""
        request = request_to_json(cell.request)
        files = {role: [self._digest(path) for path in paths] for role, paths in _by_role(cell.request)}
        facts = {
            "request": {name: value for name, value in request.items() if name not in files and name != "inputs"},
            "inputs": [text for text in cell.request.inputs if _file_of(text) is None],
            "names": {role: [path.name for path in paths] for role, paths in _by_role(cell.request)},
            "files": files,
            "tools": self._tools,
        }
        return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = hash_file(path)[1]
        return self._digests[path]


def input_files(request: Request) -> Iterator[Path]:
    """Every file that a request names or reads, external data and the files of folders included."""
    for _, paths in _by_role(request):
        yield from paths


def tool_versions() -> dict[str, str]:
    """The versions of deploykit, of the packages of backends, and of what these require; "" where it is missing."""
    owners = {entry.dist.name for entry in entry_points(group=_GROUP) if entry.dist is not None}
    needed = [Requirement(text) for owner in owners for text in requires(owner) or ()]
    return {name: _version(name) for name in sorted(owners | {row.name for row in needed if _changes_verdicts(row)})}


def _changes_verdicts(row: Requirement) -> bool:
    return not any(f'extra == "{extra}"' in str(row.marker) for extra in _ONLY_FOR_TESTS)


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
    return Path(value) if value.endswith((".npy", ".npz")) else None


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


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""

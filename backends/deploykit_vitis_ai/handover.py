"""Keeps what a trial run of the quantizer made until the same run is asked for: a trial that won does not run twice.

One place, one result; it is handed out once, and to one process at a time. Nothing is kept for readers, whose data may
lie anywhere.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploykit.system.folders import holding

__all__ = ["keep", "take"]

_FOLDER, _KEY = "handover", "key"
_DECIDING = ("model", "calibration")
"""The folders of a package that the quantizer reads; its recipe is given. The script is deploykit's own."""


def keep(place: Path, package: Path, recipe: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Copy a run's files or folders, by the name under which they are taken again; a full disk keeps nothing."""
    folder = place / _FOLDER
    with suppress(OSError), holding(place) as held:
        if not held:
            return
        shutil.rmtree(folder, ignore_errors=True)
        if recipe["calibration"]["kind"] == "reader":
            return
        for name, path in files.items():
            _copy(path, folder / name)
        (folder / _KEY).write_text(_key(package, recipe), "utf-8")


def take(place: Path, package: Path, recipe: Mapping[str, Any], files: Mapping[str, Path]) -> bool:
    """Put the files where they are wanted, and forget them; False where another run, or one with less, was kept."""
    folder = place / _FOLDER
    with suppress(OSError), holding(place) as held:
        known = (folder / _KEY).read_text("utf-8") == _key(package, recipe)
        if held and known and all((folder / name).exists() for name in files):
            for name, path in files.items():
                _copy(folder / name, path)
            shutil.rmtree(folder, ignore_errors=True)
            return True
    return False


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _key(package: Path, recipe: Mapping[str, Any]) -> str:
    """A hash of everything that the run reads."""
    digest = hashlib.sha256(json.dumps([version("deploykit"), recipe], sort_keys=True).encode())
    for path in _read_files(package):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _read_files(package: Path) -> Iterator[Path]:
    for name in _DECIDING:
        yield from sorted(path for path in (package / name).rglob("*") if path.is_file())

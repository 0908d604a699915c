"""Writes packages: to a temporary sibling, hashed while written, renamed into place. It decides nothing.

Nothing half written ever stands under the wanted name: a failure removes the sibling, an existing folder is kept
unless ``force`` was given, and even then it is replaced only by a finished package.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from deploykit.contract.backend import BytesFile, CopiedFile, JsonFile, PackageFile, TextFile
from deploykit.errors import DefectError, DeploykitError, PackageError

__all__ = [
    "BUILD_FOLDERS",
    "MANIFEST",
    "FileRecord",
    "PackageWriter",
    "hash_file",
    "json_text",
    "list_files",
    "read_manifest",
    "record_build",
]

MANIFEST = "manifest.json"
BUILD_FOLDERS = ("artifacts/", "logs/")
"""Where a build leaves files; the manifest learns of them from ``record_build`` only."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a package: its path, size in bytes, SHA-256, and whether it was ``generated`` or ``executed``."""

    path: str
    bytes: int
    sha256: str
    origin: str

    def to_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        return {"bytes": self.bytes, "sha256": self.sha256, "origin": self.origin}


def json_text(value: Any) -> str:
    """JSON as deploykit writes it everywhere: one space of indent, the given key order, UTF-8, no NaN."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def hash_file(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file, read in chunks."""
    with path.open("rb") as stream:
        return _drain(stream, None)


def _drain(stream: BinaryIO, sink: BinaryIO | None) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if sink is not None:
            sink.write(chunk)
    return size, digest.hexdigest()


def list_files(package: Path) -> tuple[str, ...]:
    """Every file of a package by its POSIX path, sorted; the manifest is left out, links are listed, not followed."""
    found = []
    for folder, folders, names in os.walk(package, followlinks=False):
        relative = Path(folder).relative_to(package)
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        found += [(relative / name).as_posix() for name in (*names, *linked)]
    return tuple(sorted(path for path in found if path != MANIFEST))


def read_manifest(package: Path) -> dict[str, Any]:
    """The manifest of a package folder; raises PackageError when the folder is none or the manifest is damaged."""
    path = package / MANIFEST
    if not package.is_dir():
        raise PackageError(f"{package}: no such package folder")
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PackageError(f"{package}: has no {MANIFEST}", why="it is not a deploykit package") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"{path}: cannot be read", why=str(error), next="make the package again") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != 1 or not isinstance(manifest.get("files"), dict):
        raise PackageError(f"{path}: is not a manifest of schema 1", next="make the package again")
    return manifest


class PackageWriter:
    """Collects one package in a temporary sibling of ``out`` and publishes it with a manifest.

    Use as a context manager; leaving it without ``seal`` and ``publish`` removes everything that was written.
    """

    def __init__(self, out: Path, *, force: bool = False) -> None:
        self.out = out
        self.force = force
        self.records: dict[str, FileRecord] = {}
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the package grows until it is published."""
        if self._folder is None:
            raise DefectError("the package writer is used outside its context")
        return self._folder

    def __enter__(self) -> PackageWriter:
        _refuse_existing(self.out, force=self.force)
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.", dir=self.out.parent))
            self._folder.chmod(0o755)
        except OSError as error:
            raise _unwritable(self.out, error) from None
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def add(self, files: Iterable[PackageFile]) -> None:
        """Write files; two files of one path are a defect."""
        for file in files:
            try:
                self._add(file)
            except DeploykitError:
                raise
            except OSError as error:
                raise _unwritable(self.out / file.path, error) from None

    def _add(self, file: PackageFile) -> None:
        path = self._place(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        match file:
            case CopiedFile(source=source):
                with source.open("rb") as stream, path.open("wb") as sink:
                    size, digest = _drain(stream, sink)
            case TextFile() | JsonFile() | BytesFile():
                data = _content(file)
                path.write_bytes(data)
                size, digest = len(data), hashlib.sha256(data).hexdigest()
        path.chmod(0o755 if isinstance(file, TextFile) and file.executable else 0o644)
        self.records[file.path] = FileRecord(path=file.path, bytes=size, sha256=digest, origin="generated")

    def _place(self, path: str) -> Path:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts or path in (MANIFEST, *self.records):
            raise DefectError(f"{path!r} cannot be a file of the package")
        return self.folder / pure

    def record_outputs(self) -> tuple[str, ...]:
        """Record the files that an execution left in the package folder; returns their paths."""
        fresh = tuple(path for path in list_files(self.folder) if path not in self.records)
        for path in fresh:
            size, digest = hash_file(self.folder / path)
            self.records[path] = FileRecord(path=path, bytes=size, sha256=digest, origin="executed")
        return fresh

    def seal(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, with every file recorded so far; nothing may be added afterwards."""
        files = {path: self.records[path].to_json() for path in sorted(self.records)}
        try:
            (self.folder / MANIFEST).write_text(json_text({**manifest, "files": files}), "utf-8")
        except OSError as error:
            raise _unwritable(self.out, error) from None

    def publish(self) -> Path:
        """Move the sealed package into place; returns the manifest's path."""
        if not (self.folder / MANIFEST).is_file():
            raise DefectError("a package is published before it was sealed")
        try:
            _replace(self.folder, self.out)
        except OSError as error:
            raise _unwritable(self.out, error) from None
        self._folder = None
        return self.out / MANIFEST


def _content(file: TextFile | JsonFile | BytesFile) -> bytes:
    match file:
        case TextFile(text=text):
            return text.encode("utf-8")
        case JsonFile(value=value):
            return json_text(value).encode("utf-8")
        case BytesFile(data=data):
            return data


def _refuse_existing(out: Path, *, force: bool) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise PackageError(f"{out}: exists and is not a folder", next="name a folder that does not exist yet")
    if not out.exists() or not any(out.iterdir()):
        return
    if not force:
        raise PackageError(f"{out}: exists and was kept", next="name another folder, or replace it with --force")
    if not (out / MANIFEST).is_file():
        raise PackageError(
            f"{out}: is not empty and not a package",
            why=f"--force replaces packages only, and this folder has no {MANIFEST}",
            next="name another folder",
        )


def _replace(folder: Path, out: Path) -> None:
    """Move ``folder`` to ``out``; what stood there is set aside first and removed last."""
    if not out.exists():
        folder.rename(out)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    aside.rmdir()
    out.rename(aside)
    try:
        folder.rename(out)
    except OSError:
        aside.rename(out)
        raise
    with suppress(OSError):
        shutil.rmtree(aside)


def _unwritable(path: Path, error: OSError) -> PackageError:
    return PackageError(f"{path}: cannot be written", why=error.strerror or str(error), next="choose another folder")


def record_build(package: Path, executed: Iterable[str]) -> dict[str, Any]:
    """Take the files that a build left under artifacts/ and logs/ into the manifest, atomically; returns it.

    ``executed`` are the ids of the steps that ran; they move from the manifest's generated to its executed list.
    """
    manifest = read_manifest(package)
    files = {path: row for path, row in manifest["files"].items() if not path.startswith(BUILD_FOLDERS)}
    for path in list_files(package):
        if path.startswith(BUILD_FOLDERS) and not (package / path).is_symlink():
            size, digest = hash_file(package / path)
            files[path] = FileRecord(path=path, bytes=size, sha256=digest, origin="executed").to_json()
    done = list(dict.fromkeys((*manifest.get("executed", ()), *executed)))
    manifest |= {
        "executed": done,
        "generated": [step for step in manifest.get("generated", ()) if step not in done],
        "files": dict(sorted(files.items())),
    }
    fresh = package / f".{MANIFEST}.new"
    try:
        fresh.write_text(json_text(manifest), "utf-8")
        fresh.replace(package / MANIFEST)
    except OSError as error:
        raise _unwritable(package / MANIFEST, error) from None
    return manifest

"""Writes packages: to a private folder beside the place, hashed while written, put there in one step; decides nothing.

Nothing half written ever stands under the wanted name: a failure removes the private folder, an existing folder is kept
unless ``force`` was given, and even then only a package that deploykit wrote is replaced, by a finished one.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from deploykit.backend.backend import BytesFile, CopiedFile, JsonFile, PackageFile, TextFile
from deploykit.errors import DefectError, DeploykitError, PackageError
from deploykit.packages.manifests import (
    BUILD_FOLDERS,
    MANIFEST,
    FileRecord,
    hash_file,
    json_text,
    list_files,
    read_manifest,
    sealed,
    sealed_text,
)
from deploykit.packages.replacing import FRESH, OLD, check_place, tidy
from deploykit.packages.witnessed import Look, Witnessed
from deploykit.system.files import copy_hashed, open_regular, regular_size
from deploykit.system.folders import discard, exchange, put_in_place, workspace

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

_WORTH_LINKING = 16 << 20
"""Bytes of a file below which ``link`` copies: what is written anew by every export is small, and costs nothing."""


class PackageWriter:
    """Collects one package in a temporary sibling of ``out`` and publishes it with a manifest.

    Use as a context manager; leaving it without ``seal`` and ``publish`` removes everything that was written. ``link``
    gives large files of the user's a second name instead of copying them; the bytes of the package are the same.
    """

    def __init__(
        self, out: Path, *, force: bool = False, link: bool = False, tell: Callable[[str], None] | None = None
    ) -> None:
        self.out = out
        self.force = force
        self.link = link
        self.records: dict[str, FileRecord] = {}
        self.digest = ""
        self.witnessed = Witnessed()
        self._tell = tell or (lambda _line: None)
        self._work: Path | None = None
        self._seen = ""
        self._held = ExitStack()

    @property
    def folder(self) -> Path:
        """Where the package grows until it is published."""
        return self._workspace / FRESH

    @property
    def _workspace(self) -> Path:
        if self._work is None:
            raise DefectError("the package writer is used outside its context")
        return self._work

    def __enter__(self) -> PackageWriter:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            restored = tidy(self.out, self._tell)
            self._seen = self._check_place(restored)
            self._work = self._held.enter_context(workspace(self.out.parent, self.out.name))
            self.folder.mkdir(mode=0o755)
            self.folder.chmod(0o755)
        except OSError as error:
            raise _unwritable(self.out, error) from None
        return self

    def _check_place(self, restored: bool) -> str:
        try:
            return check_place(self.out, force=self.force)
        except PackageError as error:
            if not restored:
                raise
            why = "an earlier run died while it replaced this package, which was put back"
            raise PackageError(error.what, why=why, next=error.next) from None

    def __exit__(self, *exc_info: object) -> None:
        self._held.close()
        self._work = None

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
        if isinstance(file, CopiedFile):
            is_linked = self.link and regular_size(file.source) >= _WORTH_LINKING
            size, digest = (self._link if is_linked else self._copy)(file.source, path)
        else:
            data = _content(file)
            path.write_bytes(data)
            size, digest = len(data), hashlib.sha256(data).hexdigest()
        executable = isinstance(file, TextFile) and file.executable
        if path.stat().st_nlink == 1:  # the rights of a file with two names are its owner's business
            path.chmod(0o755 if executable else 0o644)
            self.witnessed.note_written(path, size, digest)
        self.records[file.path] = FileRecord(
            path=file.path, bytes=size, sha256=digest, origin="generated", executable=executable
        )

    def _link(self, source: Path, path: Path) -> tuple[int, str]:
        """Give the source a second name. What is hashed is what stands in the package, whatever the source does."""
        before = Look.at(source.stat())
        if before.status.st_mode & 0o7111:
            why = "a linked file has the rights of its source, and no file of a package may run that was not made to"
            raise PackageError(f"--link: {source} may be executed", why=why, next="take that right away, or copy it")
        try:
            os.link(source.resolve(), path)  # a link to a link would break with the package's first move
        except OSError as error:
            raise _unlinkable(source, self.out, error) from None
        self._tell(f"{path.name}: one file with {source}; what is written to that later changes the package")
        size, digest = hash_file(path)
        self.witnessed.note_read(before, source.stat(), size, digest, linked=True)
        return size, digest

    def _copy(self, source: Path, path: Path) -> tuple[int, str]:
        with open_regular(source) as stream, path.open("w+b") as sink:
            before = Look.at(os.fstat(stream.fileno()))
            size, digest = copy_hashed(stream, sink)
            self.witnessed.note_read(before, os.fstat(stream.fileno()), size, digest)
        return size, digest

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
        whole = {**manifest, "files": files}
        try:
            # In one step: a part of a manifest would make strangers' files of all that is in the folder.
            part = self.folder / f"{MANIFEST}.part"
            text, self.digest = sealed(whole)
            part.write_bytes(text.encode())
            part.replace(self.folder / MANIFEST)
        except OSError as error:
            raise _unwritable(self.out, error) from None

    def publish(self) -> Path:
        """Put the sealed package in its place; returns the manifest's path.

        Raises PackageError where something came to stand there since the writer was made; that is kept.
        """
        if not (self.folder / MANIFEST).is_file():
            raise DefectError("a package is published before it was sealed")
        try:
            self._put()
        except OSError as error:
            if os.path.lexists(self.out):
                raise _taken(self.out) from None
            raise _unwritable(self.out, error) from None
        return self.out / MANIFEST

    def _put(self) -> None:
        if not self._seen:
            put_in_place(self.folder, self.out)
            return
        self._expect_seen(self.out)
        old = self._workspace / OLD
        exchange(self.folder, self.out, old)
        try:
            self._expect_seen(old)
        except PackageError:
            # Somebody wrote to it in the moment before: it goes back, the new one is given up.
            exchange(old, self.out, self.folder)
            raise
        discard(old)

    def _expect_seen(self, place: Path) -> None:
        """The package at ``place`` is the one that stood there when this writer was made, or PackageError."""
        try:
            now = check_place(place, force=True)
        except PackageError as error:
            raise PackageError(f"{self.out}: was changed while the package was made", why=error.why) from None
        if now != self._seen:
            raise _taken(self.out)


def _content(file: TextFile | JsonFile | BytesFile) -> bytes:
    match file:
        case TextFile(text=text):
            return text.encode("utf-8")
        case JsonFile(value=value):
            return json_text(value).encode("utf-8")
        case BytesFile(data=data):
            return data


def _unlinkable(source: Path, out: Path, error: OSError) -> PackageError:
    apart = error.errno == errno.EXDEV
    return PackageError(
        f"--link: {source} cannot be linked into {out}",
        why="they lie on different file systems" if apart else error.strerror or str(error),
        next="name a package folder on the same one, or leave out --link" if apart else "leave out --link",
    )


def _taken(out: Path) -> PackageError:
    return PackageError(
        f"{out}: something else came to stand there while the package was made",
        why="it was kept, and the new package was given up",
        next="give each run a folder of its own",
    )


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
            size, digest = hash_file(package / path, follow=False)
            files[path] = FileRecord(path=path, bytes=size, sha256=digest, origin="executed").to_json()
    done = list(dict.fromkeys((*manifest.get("executed", ()), *executed)))
    manifest |= {
        "executed": done,
        "generated": [step for step in manifest.get("generated", ()) if step not in done],
        "files": dict(sorted(files.items())),
    }
    try:
        (package / BUILD_FOLDERS[1]).mkdir(exist_ok=True)
        with workspace(package / BUILD_FOLDERS[1], MANIFEST) as place:
            (place / MANIFEST).write_bytes(sealed_text(manifest).encode())
            (place / MANIFEST).replace(package / MANIFEST)
    except OSError as error:
        raise _unwritable(package / MANIFEST, error) from None
    return read_manifest(package)

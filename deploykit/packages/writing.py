"""Writes packages: into a private folder beside the target, hashed while written, moved there in one step.

The target never holds a partial package: a failure removes the private folder. An existing folder is kept unless
``force`` was given, and even then only a package that deploykit wrote is replaced, by a finished one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Self

from deploykit.backend.backend import BytesFile, CopiedFile, JsonFile, PackageFile, TextFile
from deploykit.errors import DefectError, DeploykitError, PackageError
from deploykit.findings.records import Json, Tell, silent
from deploykit.packages.manifests import (
    BUILD_FOLDERS,
    MANIFEST,
    REPORT_PAGE,
    RUNS,
    HashMemory,
    Look,
    hash_file,
    json_text,
    list_files,
    read_manifest,
    sealed,
)
from deploykit.packages.placing import ELSEWHERE, PlacedFolder
from deploykit.system.files import copy_hashed, open_regular, regular_size, unwritable, with_folder
from deploykit.system.folders import abandoned, holding, workspace

__all__ = ["BUILD", "PackageWriter", "clear_left", "record_build", "record_run", "same_file"]

BUILD = "build"
"""The name of the folder in logs/ in which a build works."""
# bytes; ``link`` copies smaller files: those that every export writes anew are small, and copying them is cheap
_WORTH_LINKING = 16 << 20


class PackageWriter(PlacedFolder):
    """Collects one package in a temporary folder beside ``out`` and publishes it with a manifest.

    Use it as a context manager; leaving it without ``seal`` and ``publish`` removes everything that was written.
    ``link`` makes hard links to the user's large files instead of copies; the package has the same bytes.
    """

    def __init__(self, out: Path, *, force: bool = False, link: bool = False, tell: Tell = silent) -> None:
        super().__init__(out, force=force, tell=tell)
        self.link = link
        # The records of files in the manifest: ``origin`` is generated or executed.
        self.records: dict[str, Json] = {}
        self.digest = ""
        self.witnessed = HashMemory()

    def __enter__(self) -> Self:
        # Files left by a killed build or run are ours, not foreign.
        if self.force and (self.out / MANIFEST).is_file() and not self.out.is_symlink():
            with suppress(PackageError, OSError), holding(self.out) as alone:
                if alone:
                    clear_left(self.out)
        return super().__enter__()

    def add(self, files: Iterable[PackageFile]) -> None:
        """Write files. Raises DefectError for two files with one path, PackageError if writing fails."""
        for file in files:
            try:
                pure = PurePosixPath(file.path)
                if pure.is_absolute() or ".." in pure.parts or not pure.parts or file.path in (MANIFEST, *self.records):
                    raise DefectError(f"{file.path!r} cannot be a file of the package")
                path = with_folder(self.folder / pure)
                if isinstance(file, CopiedFile):
                    is_linked = self.link and regular_size(file.source) >= _WORTH_LINKING
                    if is_linked:
                        size, digest = self._link(file.source, path)
                    else:
                        with open_regular(file.source) as stream, path.open("w+b") as sink:
                            before = Look.at(os.fstat(stream.fileno()))
                            size, digest = copy_hashed(stream, sink)
                            self.witnessed.note_read(before, os.fstat(stream.fileno()), size, digest)
                else:
                    match file:
                        case TextFile(text=text):
                            data = text.encode()
                        case JsonFile(value=value):
                            data = json_text(value).encode()
                        case BytesFile(data=made):
                            data = made
                    path.write_bytes(data)
                    size, digest = len(data), hashlib.sha256(data).hexdigest()
                executable = isinstance(file, TextFile) and file.executable
                if path.stat().st_nlink == 1:  # the permissions of a linked file belong to its owner
                    path.chmod(0o755 if executable else 0o644)
                    self.witnessed.note(path.stat(), size, digest)
                run = {"executable": True} if executable else {}
                self.records[file.path] = {"bytes": size, "sha256": digest, "origin": "generated", **run}
            except DeploykitError:
                raise
            except OSError as error:
                raise unwritable(self.out / file.path, error, ELSEWHERE) from None

    def _link(self, source: Path, path: Path) -> tuple[int, str]:
        """Link the source into the package and return the size and hash of the linked file. Raises PackageError."""
        before = Look.at(source.stat())
        if before.status.st_mode & 0o7111:
            why = "a linked file has the rights of its source, and no file of a package may run that was not made to"
            raise PackageError(f"--link: {source} may be executed", why=why, next="take that right away, or copy it")
        try:
            os.link(source.resolve(), path)  # a link to a link would break when the package is moved
        except OSError as error:
            apart = error.errno == errno.EXDEV
            raise PackageError(
                f"--link: {source} cannot be linked into {self.out}",
                why="they lie on different file systems" if apart else error.strerror or str(error),
                next="name a package folder on the same one, or leave out --link" if apart else "leave out --link",
            ) from None
        self._tell(f"{path.name}: one file with {source}; what is written to that later changes the package")
        size, digest = hash_file(path)
        self.witnessed.note_read(before, source.stat(), size, digest, linked=True)
        return size, digest

    def record_outputs(self) -> None:
        """Record the files that an execution left in the package folder."""
        for path in list_files(self.folder):
            if path not in self.records:
                self.records[path] = _executed(self.folder, path)

    def seal(self, manifest: Json) -> None:
        """Write the manifest with every file recorded so far; nothing may be added afterwards."""
        try:
            # In one step: with a partial manifest, all files in the folder would look foreign.
            part = self.folder / f"{MANIFEST}.part"
            text, self.digest = sealed({**manifest, "files": dict(sorted(self.records.items()))})
            part.write_bytes(text.encode())
            part.replace(self.folder / MANIFEST)
        except OSError as error:
            raise unwritable(self.out, error, ELSEWHERE) from None


def _executed(package: Path, path: str) -> Json:
    """Return the record of a file that an execution left; a link is not followed."""
    size, digest = hash_file(package / path, follow=False)
    return {"bytes": size, "sha256": digest, "origin": "executed"}


def record_build(package: Path, executed: Iterable[str], made: Path) -> Json:
    """Move the files that a build left in artifacts/ and logs/ of ``made`` into the package; returns the manifest.

    ``executed`` are the ids of the steps that ran; they move from the manifest's generated list to its executed list.
    New files are placed before the manifest lists them; while files are replaced, the manifest accepts both states.
    Files that a killed process leaves are also in ``made``, by which ``clear_left`` recognises them.
    """
    manifest = read_manifest(package)
    was = {path: row for path, row in manifest["files"].items() if path.startswith(BUILD_FOLDERS)}
    now = {path: _executed(made, path) for path in _built(made, package)}
    gone = was.keys() - now.keys()
    for path in now.keys() - was.keys():
        same_file(made / path, package / path, made)
    for path in gone:
        with suppress(OSError):  # the script may have put anything at that path
            same_file(package / path, made / path, made)
    others = {path: row for path, row in manifest["files"].items() if path not in was}
    done = list(dict.fromkeys((*manifest.get("executed", ()), *executed)))
    manifest |= {"executed": done, "generated": [step for step in manifest.get("generated", ()) if step not in done]}
    _tell(package, manifest, {**others, **{path: {**row, "before": was.get(path, row)} for path, row in now.items()}})
    for path in now:
        (made / path).replace(package / path)
    _tell(package, manifest, {**others, **now})
    for path in gone:
        (package / path).unlink(missing_ok=True)
    return read_manifest(package)


def same_file(source: Path, place: Path, workspace: Path) -> None:
    """Make a hard link, or a copy if the disk has no links; the place never holds a partial file."""
    with_folder(place)
    try:
        place.hardlink_to(source)
    except OSError:
        part = workspace / ".part"
        shutil.copy2(source, part)
        part.replace(place)


def record_run(package: Path, manifest: Json, entry: Json, texts: Mapping[str, str], page: str) -> None:
    """Add the files of one run, by path, to the package and its manifest; the caller holds the folder.

    ``page`` is the new report.html, "" to keep the old one. A killed process leaves either files that the manifest does
    not list, which ``clear_left`` removes, or the old page, which the manifest also accepts.
    """
    files = dict(manifest["files"])
    for path, text in texts.items():
        _replace(package, path, text)
        files[path] = _executed(package, path)
    if page:
        data, was = page.encode(), _executed(package, REPORT_PAGE)
        files[REPORT_PAGE] = {**was, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "before": was}
    _tell(package, {**manifest, "runs": [*manifest.get("runs", ()), dict(entry)]}, files)
    if page:
        _replace(package, REPORT_PAGE, page)


def clear_left(package: Path) -> None:
    """Remove what killed runs and builds left, and finish what they began; the caller holds the folder.

    The files of such a build are in the package and in the build's own folder. No links are followed and no file
    outside of the folder is touched.
    """
    known = read_manifest(package)["files"]
    for stem in (BUILD, MANIFEST):
        for left in abandoned(package / BUILD_FOLDERS[1], stem):
            for path in _built(left, package):
                made, there = left / path, package / path
                if path in known and hash_file(made)[1] == known[path]["sha256"]:
                    made.replace(there)
                elif path not in known and there.is_file() and hash_file(made) == hash_file(there):
                    there.unlink()
            shutil.rmtree(left, ignore_errors=True)
    for there in (package / RUNS).glob("*"):
        if there.relative_to(package).as_posix() not in known:
            there.unlink(missing_ok=True)


def _built(made: Path, package: Path) -> list[str]:
    """Return the build's files that are regular and reached without links, in both folders."""
    return [
        path
        for path in list_files(made)
        if path.startswith(BUILD_FOLDERS)
        and (made / path).is_file()
        and all((base / path).resolve() == base.resolve() / path for base in (made, package))
    ]


def _tell(package: Path, manifest: Json, files: Json) -> None:
    _replace(package, MANIFEST, sealed({**manifest, "files": dict(sorted(files.items()))})[0])


def _replace(package: Path, path: str, text: str) -> None:
    """Replace one file of a package atomically."""
    try:
        for parent in ((package / path).parent, package / BUILD_FOLDERS[1]):
            parent.mkdir(parents=True, exist_ok=True)
        with workspace(package / BUILD_FOLDERS[1], MANIFEST) as place:
            (place / MANIFEST).write_bytes(text.encode())
            (place / MANIFEST).replace(package / path)
    except OSError as error:
        raise unwritable(package / path, error) from None

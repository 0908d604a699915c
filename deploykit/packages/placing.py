"""Moves a finished folder into place in one step; it replaces only a folder of the same kind that deploykit wrote.

It removes nothing of unknown origin; other files found there are named and kept. A package is verified by its manifest,
a folder of other results by the sealed report in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from msgspec import Struct

from deploykit.errors import DeploykitError, PackageError
from deploykit.findings import listed
from deploykit.findings.records import Json, Names, Tell, silent
from deploykit.packages.manifests import MANIFEST, SIGNATURE, hash_file, list_files, read_manifest, sealed
from deploykit.system.files import read_regular, unwritable
from deploykit.system.folders import GONE, abandoned, discard, exchange, workspace
from deploykit.system.jobs import json_object

__all__ = ["ELSEWHERE", "FRESH", "OLD", "RESULTS", "PlacedFolder", "check_place", "publish_results"]

FRESH, OLD = "new", "old"
"""The folders of a workspace: the one being made, and the one it replaced."""
ELSEWHERE = "choose another folder"
"""Advice for when something cannot be written."""
REPORT = "report.json"
_SUMS = "sha256"
_LARGEST = 64 << 20


class SealedKind(Struct, frozen=True):
    """A kind of folder: the ``file`` that vouches for the others, and a function that reads digest and hashes."""

    noun: str
    file: str
    read: Callable[[Path], tuple[str, Mapping[str, str]]]

    def strangers(self, folder: Path, *, contents: bool = True) -> Names:
        """Return the files that deploykit did not write or that changed since; empty for an intact folder.

        Without ``contents`` only names are checked and no file is read.
        """
        try:
            sums = self.read(folder)[1]
        except PackageError as error:
            return (f"{self.file} ({error.why or error.what})",)
        strange = [SIGNATURE] if (folder / SIGNATURE).exists() else []
        for path in list_files(folder):
            if path == self.file:
                continue
            try:
                same = path in sums and not (contents and hash_file(folder / path, follow=False)[1] != sums[path])
            except DeploykitError:
                same = False
            if not same:
                strange.append(f"{path} (changed)" if path in sums else path)
        return tuple(strange)


def _manifest_sums(package: Path) -> tuple[str, Mapping[str, str]]:
    manifest = read_manifest(package)
    if not isinstance(manifest.get("deploykit"), str):
        raise PackageError("it does not say that deploykit wrote it")
    return str(manifest["digest"]), {path: row["sha256"] for path, row in manifest["files"].items()}


def _report_sums(folder: Path) -> tuple[str, Mapping[str, str]]:
    with suppress(DeploykitError, ValueError, RecursionError):
        data = read_regular(folder / REPORT, limit=_LARGEST, follow=False)
        report = json_object(data)
        if isinstance(report.get(_SUMS), dict) and sealed(report)[0].encode() == data:
            return str(report["digest"]), report[_SUMS]
    raise PackageError("it is not there, or was changed")


PACKAGES = SealedKind("package", MANIFEST, _manifest_sums)
RESULTS = SealedKind("folder of results", REPORT, _report_sums)


def check_place(out: Path, *, force: bool, kind: SealedKind = PACKAGES, contents: bool = True) -> str:
    """Return the digest of the folder at ``out`` that may be replaced, "" for nothing or an empty folder.

    Reading all ``contents`` of a large package takes as long as copying it.

    Raises PackageError for anything else and, without ``force``, also for a folder of this kind.
    """
    try:
        is_other = out.is_symlink() or (out.exists() and not out.is_dir())
    except OSError as error:
        raise unwritable(out, error, ELSEWHERE) from None
    if out.parent.is_dir() and not os.access(out.parent, os.W_OK):
        raise PackageError(f"{out.parent}: cannot be written", next=ELSEWHERE)
    if is_other:
        raise PackageError(f"{out}: exists and is not a folder", next="name a folder that does not exist yet")
    # Quantizing may take hours: without --force, its results may only go to a path where nothing exists.
    if not out.exists() or (not any(out.iterdir()) and (force or kind is PACKAGES)):
        return ""
    if not force:
        raise PackageError(f"{out}: exists and was kept", next="name another folder, or replace it with --force")
    if kind is PACKAGES and not (out / MANIFEST).is_file():
        raise PackageError(
            f"{out}: is not empty and not a package",
            why=f"--force replaces packages only, and this folder has no {MANIFEST}",
            next="name another folder",
        )
    if strange := kind.strangers(out, contents=contents):
        raise PackageError(
            f"{out}: was kept, for not everything in it was written by deploykit",
            why=listed(strange),
            next="move those files away, or name another folder",
        )
    return kind.read(out)[0]


def tidy(out: Path, tell: Tell, kind: SealedKind = PACKAGES) -> bool:
    """Remove what killed runs left beside ``out``. Returns True if a folder they had set aside was restored."""

    def foreign(left: Path) -> Iterator[str]:
        """Yield the paths of files that deploykit did not put there."""
        for entry in sorted(left.iterdir()):
            if entry.name not in (FRESH, OLD, GONE) or entry.is_symlink() or not entry.is_dir():
                yield entry.name
            # A folder still being written is not sealed; one that was set aside always is.
            elif entry.name == OLD or (entry.name == FRESH and (entry / kind.file).exists()):
                yield from (f"{entry.name}/{path}" for path in kind.strangers(entry))

    restored = False
    for left in abandoned(out.parent, out.name):
        old = left / OLD
        if (old / kind.file).is_file() and not os.path.lexists(out):
            old.rename(out)
            restored = True
        if strange := tuple(foreign(left)):
            tell(f"{left}: looks as if a run that died had left it, and is kept: it holds {listed(strange)}")
            continue
        if old.exists():
            discard(old)
        shutil.rmtree(left, ignore_errors=True)
        tell(f"{left.name}: left by a run that died, removed")
    return restored


class PlacedFolder:
    """A context manager for a folder that is filled beside ``out`` and then moved there as a whole.

    Without ``publish`` the folder is removed at the end.
    """

    def __init__(self, out: Path, *, force: bool, kind: SealedKind = PACKAGES, tell: Tell = silent) -> None:
        self.out, self.force, self.kind, self._tell = out, force, kind, tell
        self._work: Path | None = None
        self._seen = ""
        self._held = ExitStack()

    @property
    def folder(self) -> Path:
        """The folder to fill until it is published; valid only inside the context."""
        assert self._work is not None
        return self._work / FRESH

    def __enter__(self) -> Self:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            restored = tidy(self.out, self._tell, self.kind)
            try:
                # Contents are checked when it is replaced.
                self._seen = check_place(self.out, force=self.force, kind=self.kind, contents=False)
            except PackageError as error:
                why = f"an earlier run died while it replaced this {self.kind.noun}, which was put back"
                raise PackageError(error.what, why=why if restored else error.why, next=error.next) from None
            self._work = self._held.enter_context(workspace(self.out.parent, self.out.name, keeps=self._keeps_old))
            self.folder.mkdir(mode=0o755)
            self.folder.chmod(0o755)
        except OSError as error:
            raise unwritable(self.out, error, ELSEWHERE) from None
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        gone = isinstance(error, Exception) and self._work is not None and not self._work.exists()
        self._held.close()
        self._work = None
        if gone:
            # Whatever failed then failed because of that: a tool without its files, a check of missing files.
            why = "the folder beside it that it grew in was removed meanwhile"
            raise PackageError(f"{self.out}: cannot be written", why=why, next=ELSEWHERE) from error

    def publish(self) -> Path:
        """Move the sealed folder into place and return the path of the file that vouches for it.

        Raises PackageError if something else appeared at that place in the meantime; that is kept.
        """
        assert (self.folder / self.kind.file).is_file()
        try:
            if not self._seen:
                # A rename never replaces a folder that is not empty, not even one filled a moment ago.
                self.folder.rename(self.out)
                return self.out / self.kind.file
            old = self.folder.with_name(OLD)
            exchange(self.folder, self.out, old)
            try:
                if check_place(old, force=True, kind=self.kind) != self._seen:
                    raise self._taken()
            except PackageError as error:
                # Somebody wrote to the old folder: restore it and give up the new one.
                exchange(old, self.out, self.folder)
                raise PackageError(
                    error.what.replace(str(old), str(self.out)), why=error.why, next=error.next
                ) from None
            discard(old)
        except OSError as error:
            if self._keeps_old():
                why = f"{error.strerror or error}; the {self.kind.noun} that stood there is kept beside it"
                hint = "make room, and run it again: that puts it back"
                raise PackageError(f"{self.out}: cannot be replaced", why=why, next=hint) from None
            raise self._taken() if os.path.lexists(self.out) else unwritable(self.out, error, ELSEWHERE) from None
        return self.out / self.kind.file

    def _keeps_old(self) -> bool:
        """Whether the replaced folder could not be restored, as on a full disk; the next run does so."""
        return self._work is not None and (self._work / OLD).exists() and not os.path.lexists(self.out)

    def _taken(self) -> PackageError:
        return PackageError(
            f"{self.out}: something else came to stand there while the {self.kind.noun} was made",
            why="it was kept, and the new one was given up",
            next="give each run a folder of its own",
        )


def publish_results(out: Path, fill: Callable[[Path], Json], *, force: bool) -> None:
    """Make the folder ``out``: ``fill`` writes files into an empty folder and returns the content of its report.

    Raises PackageError if something exists that must not be replaced, which is kept, or if writing fails.
    """
    with PlacedFolder(out, force=force, kind=RESULTS) as place:
        try:
            told = dict(fill(place.folder))
            sums = {path: hash_file(place.folder / path)[1] for path in list_files(place.folder)}
            (place.folder / REPORT).write_text(sealed({**told, _SUMS: sums})[0], "utf-8")
        except OSError as error:
            raise unwritable(out, error, ELSEWHERE) from None
        place.publish()

"""Decides what may be removed from the place of a package: only what deploykit wrote, as it wrote it.

It removes nothing that it cannot account for; what else lies there is named and kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from deploykit.errors import DeploykitError, PackageError
from deploykit.packages.manifests import MANIFEST, SIGNATURE, hash_file, list_files, read_manifest
from deploykit.system.folders import GONE, abandoned, discard

__all__ = ["FRESH", "OLD", "check_place", "strangers", "tidy"]

FRESH, OLD = "new", "old"
"""The folders of a workspace: what is being made, and what it replaced."""
_SHOWN = 5


def strangers(package: Path) -> tuple[str, ...]:
    """What in a folder was not written by deploykit, or was changed since, by its path; empty for a whole package."""
    try:
        manifest = read_manifest(package)
    except PackageError as error:
        return (f"{MANIFEST} ({error.why or error.what})",)
    if not isinstance(manifest.get("deploykit"), str):
        return (f"{MANIFEST} (it does not say that deploykit wrote it)",)
    return tuple(_strange(package, manifest["files"]))


def _strange(package: Path, files: dict[str, dict[str, object]]) -> Iterator[str]:
    if (package / SIGNATURE).exists():
        yield SIGNATURE
    for path in list_files(package):
        record = files.get(path)
        if record is None:
            yield path
        elif not _same(package / path, record):
            yield f"{path} (changed)"


def _same(path: Path, record: dict[str, object]) -> bool:
    try:
        return hash_file(path, follow=False) == (record["bytes"], record["sha256"])
    except DeploykitError:
        return False


def check_place(out: Path, *, force: bool) -> str:
    """The digest of the package at ``out`` that may be replaced, "" for nothing or an empty folder there.

    Raises PackageError for anything else, and without ``force`` for a package as well.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise PackageError(f"{out}: exists and is not a folder", next="name a folder that does not exist yet")
    if not out.exists() or not any(out.iterdir()):
        return ""
    if not force:
        raise PackageError(f"{out}: exists and was kept", next="name another folder, or replace it with --force")
    if not (out / MANIFEST).is_file():
        raise PackageError(
            f"{out}: is not empty and not a package",
            why=f"--force replaces packages only, and this folder has no {MANIFEST}",
            next="name another folder",
        )
    strange = strangers(out)
    if strange:
        raise PackageError(
            f"{out}: was kept, for not everything in it was written by deploykit",
            why=_listed(strange),
            next="move those files away, or name another folder",
        )
    return str(read_manifest(out)["digest"])


def _foreign(left: Path) -> Iterator[str]:
    """What in a folder beside the place was not put there by a run of deploykit, by its path."""
    for entry in sorted(left.iterdir()):
        if entry.name not in (FRESH, OLD, GONE) or entry.is_symlink() or not entry.is_dir():
            yield entry.name
        # A package that was still being written has no manifest; one that was set aside always has.
        elif entry.name == OLD or (entry.name == FRESH and (entry / MANIFEST).exists()):
            yield from (f"{entry.name}/{path}" for path in strangers(entry))


def _listed(strange: tuple[str, ...]) -> str:
    more = len(strange) - _SHOWN
    return ", ".join(strange[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def tidy(out: Path, tell: Callable[[str], None]) -> bool:
    """Clear away what runs that died left beside ``out``; True when one had set a package aside, which is put back."""
    restored = False
    for left in abandoned(out.parent, out.name):
        old = left / OLD
        if (old / MANIFEST).is_file() and not out.exists():
            old.rename(out)
            restored = True
        foreign = tuple(_foreign(left))
        if foreign:
            tell(f"{left}: looks as if a run that died had left it, and is kept: it holds {_listed(foreign)}")
            continue
        if old.exists():
            discard(old)
        shutil.rmtree(left, ignore_errors=True)
        tell(f"{left.name}: left by a run that died, removed")
    return restored

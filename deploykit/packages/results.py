"""Puts a folder of results that is no package in its place: whole or not at all, over nothing but another of its kind.

What vouches for the files is a report among them, sealed as a manifest is. What the results are, it does not know.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deploykit.errors import DeploykitError, PackageError
from deploykit.packages.manifests import digest_of, hash_file, list_files, sealed_text
from deploykit.system.files import read_regular
from deploykit.system.folders import GONE, abandoned, discard, exchange, put_in_place, workspace

__all__ = ["REPORT", "check_results_place", "publish_results"]

REPORT = "report.json"
_SUMS = "sha256"
_FRESH, _OLD = "new", "old"
_LARGEST = 64 << 20
_SHOWN = 5


def publish_results(out: Path, fill: Callable[[Path], Mapping[str, Any]], *, force: bool) -> None:
    """Make the folder ``out``: ``fill`` writes files into an empty folder and returns what its report says.

    Raises PackageError where something stands that may not be replaced, which is kept, or nothing can be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear(out)
        before = check_results_place(out, force=force)
        with workspace(out.parent, out.name) as work:
            fresh = work / _FRESH
            fresh.mkdir()
            fresh.chmod(0o755)
            told = dict(fill(fresh))
            sums = {path: hash_file(fresh / path)[1] for path in list_files(fresh)}
            (fresh / REPORT).write_text(sealed_text({**told, _SUMS: sums}), "utf-8")
            # It may have taken hours; what came to stand there meanwhile is somebody's.
            if check_results_place(out, force=force) != before:
                raise PackageError(f"{out}: something else came to stand there, and was kept")
            if before:
                exchange(fresh, out, work / _OLD)
                discard(work / _OLD)
            else:
                put_in_place(fresh, out)
    except OSError as error:
        raise PackageError(f"{out}: cannot be written", why=error.strerror or str(error)) from None


def check_results_place(out: Path, *, force: bool) -> str:
    """The digest of the results at ``out`` that may be replaced, "" for nothing or an empty folder there.

    Raises PackageError for anything else, and without ``force`` for whatever stands there.
    """
    if not os.path.lexists(out):
        return ""
    if not force:
        raise PackageError(f"{out}: exists and was kept", next="name another folder, or replace it with --force")
    if out.is_symlink() or not out.is_dir():
        raise PackageError(f"{out}: exists and is not a folder", next="name a folder that does not exist yet")
    if not any(out.iterdir()):
        return ""
    report = _sealed(out / REPORT)
    strange = tuple(_strangers(out, report))
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise PackageError(
            f"{out}: was kept, for not everything in it was written by deploykit",
            why=", ".join(strange[:_SHOWN]) + more,
            next="move those files away, or name another folder",
        )
    return str(report["digest"])


def _sealed(path: Path) -> Mapping[str, Any]:
    """The report in a file; {} unless it is one, unchanged."""
    try:
        data = read_regular(path, limit=_LARGEST, follow=False)
        report = json.loads(data)
        whole = isinstance(report, dict) and isinstance(report.get(_SUMS), dict)
        return report if whole and sealed_text(report).encode() == data and digest_of(report) else {}
    except (DeploykitError, ValueError, RecursionError):
        return {}


def _strangers(folder: Path, report: Mapping[str, Any]) -> Iterator[str]:
    """What in the folder its report does not know, or knows otherwise."""
    if not report:
        yield f"{REPORT} (it is not there, or was changed)"
    sums = report.get(_SUMS, {})
    for path in list_files(folder):
        if path != REPORT and (path not in sums or not _is_same(folder / path, sums[path])):
            yield path


def _is_same(path: Path, digest: object) -> bool:
    try:
        return hash_file(path, follow=False)[1] == digest
    except DeploykitError:
        return False


def _clear(out: Path) -> None:
    """Remove what runs that died left beside the place; results that one had set aside are put back."""
    for left in abandoned(out.parent, out.name):
        if {entry.name for entry in left.iterdir()} - {_FRESH, _OLD, GONE}:
            continue  # none of ours
        old = left / _OLD
        if (old / REPORT).is_file() and not os.path.lexists(out):
            old.rename(out)
        if not old.exists() or not tuple(_strangers(old, _sealed(old / REPORT))):
            if old.exists():
                discard(old)
            shutil.rmtree(left, ignore_errors=True)

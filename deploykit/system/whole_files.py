"""Writes result files: all or none of them, each at once, nothing replaced unasked. It knows no format."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from deploykit.errors import PackageError

__all__ = ["write_files"]


def write_files(files: Mapping[Path, str], *, force: bool) -> None:
    """Write texts in UTF-8; every file is complete or was not touched. Raises PackageError.

    Files that exist are kept unless ``force``; then nothing at all is written.
    """
    for path in files:
        if path.is_dir():
            raise PackageError(f"{path}: is a folder", next="name a file")
        if path.exists() and not force:
            raise PackageError(f"{path}: exists and was kept", next="name another file, or replace it with --force")
    written = {path: path.with_name(f".{path.name}.{secrets.token_hex(8)}") for path in files}
    try:
        for path, beside in written.items():
            with beside.open("x", encoding="utf-8", newline="\n") as file:
                file.write(files[path])
        for path, beside in written.items():
            beside.replace(path)
    except OSError as error:
        name = error.filename or "the file"
        raise PackageError(f"{name}: cannot be written", why=error.strerror or str(error)) from None
    finally:
        _remove_surely(written.values())


def _remove_surely(paths: Iterable[Path]) -> None:
    """Remove what is still there, also when the one signal that a command takes comes in the middle of it."""
    try:
        _remove(paths)
    except BaseException:
        _remove(paths)
        raise


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)

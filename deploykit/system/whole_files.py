"""Writes result files: all or none of them, each at once, nothing replaced unasked. It knows no format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
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
    written: dict[Path, Path] = {}
    try:
        for path, text in files.items():
            written[path] = _write_beside(path, text)
        for path, temporary in written.items():
            temporary.replace(path)
    except OSError as error:
        name = error.filename or "the file"
        raise PackageError(f"{name}: cannot be written", why=error.strerror or str(error)) from None
    finally:
        for temporary in written.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _write_beside(path: Path, text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Reads the toolchain files of a backend. It looks at no environment on disk."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from deploykit.system.specs import ToolchainSpec
from deploykit.tables.reading import read_toml, structure

__all__ = ["load_toolchains"]


def load_toolchains(folder: Path, *, backend: str, files: Path | None = None) -> tuple[ToolchainSpec, ...]:
    """The toolchains in the files of one folder, sorted by name and version;
    ``files`` is a folder for use in their stages.
    """
    filled = {"backend": backend, "files": "" if files is None else str(files)}
    tables = [{**read_toml(path), **filled} for path in sorted(folder.glob("*.toml"))]
    specs = (structure(ToolchainSpec, table, where=f"{folder.name}/{table.get('name')}") for table in tables)
    return tuple(sorted(specs, key=lambda spec: (spec.name, Version(spec.version))))

"""The folder of one cell as an archive, between machines: packed there, checked and put in its place here."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from deploykit.errors import InputError
from deploykit.fleet.results import CELLS, PACKAGE, CellResult, read_result
from deploykit.fleet.work import write_result
from deploykit.packages.replacing import FRESH, OLD, check_place
from deploykit.system.folders import exchange, put_in_place, workspace

__all__ = ["packed", "unpack"]


def packed(folder: Path, cell: str) -> bytes:
    """The result and the package of one cell; names in the archive are relative to its folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder / CELLS / cell, arcname=".")
    return stream.getvalue()


_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def _is_plain(member: tarfile.TarInfo) -> bool:
    path = PurePosixPath(member.name)
    return (member.isfile() or member.isdir()) and not path.is_absolute() and ".." not in path.parts


def unpack(data: bytes, folder: Path, cell: str) -> CellResult:
    """Put what ``packed`` made in its place in a result folder; InputError for anything else, PackageError where it
    cannot replace what stands there."""
    place = folder / CELLS / cell / PACKAGE
    place.parent.mkdir(parents=True, exist_ok=True)
    with workspace(place.parent, PACKAGE) as room:
        unpacked = room / CELLS / cell
        unpacked.mkdir(parents=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                # No links, no devices, nothing above the folder; "data" asks for that and more, where Python has it.
                if not all(_is_plain(member) for member in archive):
                    raise InputError(f"{cell}: what the worker sent is no package")
                archive.extractall(unpacked, **_SAFELY)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise InputError(f"{cell}: what the worker sent is damaged", why=str(error)) from None
        result = read_result(room, cell)
        if result is None or result.cell != cell:
            raise InputError(f"{cell}: what the worker sent holds no result of it")
        if (unpacked / PACKAGE).is_dir():
            fresh = (unpacked / PACKAGE).rename(room / FRESH)
            if check_place(place, force=True):
                exchange(fresh, place, room / OLD)
            else:
                put_in_place(fresh, place)
    write_result(folder, result)
    return result

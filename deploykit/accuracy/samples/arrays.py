"""Reads .npy and .npz files, headers first and never unpickling, and writes .npz; it knows nothing of models.

A header is checked against the bytes that are really there before anything is decompressed or allocated.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from deploykit.errors import InputError
from deploykit.findings.records import Arrays, Record, Shape
from deploykit.system.files import open_regular, unreadable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ARRAY_SUFFIXES", "ArrayHeader", "read_arrays", "read_headers", "write_arrays"]

ARRAY_SUFFIXES = (".npy", ".npz")
_LARGEST = 4 << 30
"""The most bytes of the arrays of one .npz when unpacked: they are held in memory while its samples are read."""
_SMALL = 256 << 20
_DENSEST = 20
"""How many times larger than the file its arrays may be, above ``_SMALL``: real data packs to a third at best."""
_LONGEST_HEADER = 1 << 16
_MAPPED = 16 << 20
_ZIP = b"PK"


class ArrayHeader(Record):
    """The header of one array; ``size`` is in bytes, ``start`` is the position of the values in the file."""

    shape: Shape
    dtype: np.dtype[Any]
    size: int
    start: int
    column_major: bool


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Shape and type of every array of a .npy (named ``""``) or .npz file, without reading their values.

    Raises InputError for a file that is neither, that holds Python objects, whose headers state another size than
    there is, or whose arrays would unpack to more than 4 GiB or to a great many times its size.
    """
    with _reporting(path), open_regular(path) as stream:
        packed = os.fstat(stream.fileno()).st_size
        if not _is_zip(stream):
            return {"": _header(path, stream, packed)}
        with zipfile.ZipFile(stream) as archive:
            found = dict(_member_headers(path, archive))
    total = sum(header.size for header in found.values())
    most = min(_LARGEST, max(_SMALL, _DENSEST * packed))
    if total > most:
        why = f"its arrays unpack to {total >> 20:,} MiB; at most {most >> 20:,} are read from a file of its size"
        raise InputError(f"{path}: too large", why=why, next="save one file per sample")
    return found


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of one .npy (named ``""``) or .npz file, or those named; raises InputError as ``read_headers`` does.

    A large .npy is mapped, so that only what is looked at is read.
    """
    import numpy as np

    headers = read_headers(path)
    wanted = [name for name in headers if names is None or name in names]
    with _reporting(path), open_regular(path) as stream:
        if not _is_zip(stream):
            head = headers[""]
            if head.size > _MAPPED:
                order: Literal["F", "C"] = "F" if head.column_major else "C"
                return {"": np.memmap(stream, head.dtype, "r", head.start, head.shape, order)}
            return {"": np.lib.format.read_array(stream, allow_pickle=False)}
        with zipfile.ZipFile(stream) as archive:
            found: dict[str, npt.NDArray[np.generic]] = {}
            for name in wanted:
                with archive.open(f"{name}.npy") as member:
                    found[name] = np.lib.format.read_array(member, allow_pickle=False)
            return found


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write a .npz of arrays under any names.

    ``numpy.savez`` takes some of them, such as ``file``, for its own arguments.
    """
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)


def _is_zip(stream: IO[bytes]) -> bool:
    start = stream.read(len(_ZIP))
    stream.seek(0)
    return start == _ZIP


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file makes its readers raise into InputError, without their advice."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, EOFError):
        raise InputError(f"{path}: not a readable NumPy file", why="it is cut off or damaged") from None
    except Exception as error:  # a damaged zip raises what its parts raise
        raise InputError(f"{path}: damaged", why=f"{type(error).__name__}: {error}") from None


def _member_headers(path: Path, archive: zipfile.ZipFile) -> Iterator[tuple[str, ArrayHeader]]:
    seen = set[str]()
    for info in archive.infolist():
        if not info.filename.endswith(".npy"):
            raise InputError(f"{path}: {info.filename!r} in it is no array", next="write it with numpy.savez")
        if info.filename in seen:
            raise InputError(f"{path}: damaged", why=f"it holds {info.filename!r} twice")
        seen.add(info.filename)
        with archive.open(info) as stream:
            yield info.filename.removesuffix(".npy"), _header(path, stream, info.file_size)


def _header(path: Path, stream: IO[bytes], length: int) -> ArrayHeader:
    """The header at the start of a stream of ``length`` bytes in all, compared with the bytes behind it."""
    from numpy.lib import format as npy

    head = BytesIO(stream.read(_LONGEST_HEADER))
    read = npy.read_array_header_1_0 if npy.read_magic(head) == (1, 0) else npy.read_array_header_2_0
    shape, column_major, dtype = read(head)
    if dtype.hasobject:
        why = "such files can run code when they are read, and are not"
        raise InputError(f"{path}: holds Python objects, not numbers", why=why, next="save plain arrays of numbers")
    size = math.prod(shape) * dtype.itemsize
    there = length - head.tell()
    if any(dim < 0 for dim in shape) or size != there:
        why = f"an array of shape {list(shape)} and type {dtype} has {size:,} bytes, there are {there:,}"
        raise InputError(f"{path}: cut off or damaged", why=why)
    return ArrayHeader(shape=shape, dtype=dtype, size=size, start=head.tell(), column_major=column_major)

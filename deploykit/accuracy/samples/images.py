"""Looks at image files without decoding them: format, size, and whether the file is complete."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploykit.errors import InputError
from deploykit.system.files import read_regular

__all__ = ["IMAGE_SUFFIXES", "ImageInfo", "inspect_image"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST = 1 << 30
_MOST_PIXELS = 1 << 28
"""Above it a decoder would need gigabytes; the largest cameras have half as many."""
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """What a header says: the format and the size in pixels."""

    format: str
    width: int
    height: int


def inspect_image(path: Path) -> ImageInfo:
    """The format and size of one image; raises InputError for a file that is none, cut off or damaged.

    PNG: every chunk's checksum and the end chunk (PNG specification, section 5). JPEG: the frame header and the end
    marker (ITU T.81, annex B). BMP: the file size its header states.
    """
    data = read_regular(path, limit=_LARGEST)
    try:
        if data.startswith(_PNG):
            return _png(data)
        if data.startswith(b"\xff\xd8"):
            return _jpeg(data)
        if data.startswith(b"BM"):
            return _bmp(data)
    except (struct.error, IndexError):
        raise InputError(f"{path}: the image is cut off") from None
    except ValueError as error:
        raise InputError(f"{path}: the image is damaged", why=str(error)) from None
    raise InputError(f"{path}: neither PNG nor JPEG nor BMP", why=f"it starts with {data[:8].hex(' ')}")


def _png(data: bytes) -> ImageInfo:
    size, ended = (0, 0), False
    for kind, body in _png_chunks(data):
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        ended = kind == b"IEND"
    if not ended:
        raise ValueError("the end chunk is missing")
    return _info("png", *size)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = len(_PNG)
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        if zlib.crc32(kind + body) != checksum:
            raise ValueError(f"the checksum of chunk {kind!r} is wrong")
        yield kind, body
        if kind == b"IEND":
            return
        position += 12 + length


def _jpeg(data: bytes) -> ImageInfo:
    position = 2
    while True:
        if data[position] != 0xFF:
            raise ValueError("a marker is missing")
        marker = data[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
            continue
        (length,) = struct.unpack_from(">H", data, position + 2)
        if marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, position + 5)
            break
        position += 2 + length
    if b"\xff\xd9" not in data[position:]:
        raise ValueError("the end marker is missing")
    return _info("jpeg", width, height)


def _bmp(data: bytes) -> ImageInfo:
    size, width, height = *struct.unpack_from("<I", data, 2), *struct.unpack_from("<ii", data, 18)
    if size > len(data):
        raise ValueError(f"the header states {size} bytes, there are {len(data)}")
    return _info("bmp", width, abs(height))


def _info(kind: str, width: int, height: int) -> ImageInfo:
    if width <= 0 or height <= 0:
        raise ValueError("the size in the header is not positive")
    if width * height > _MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels are more than are decoded")
    return ImageInfo(format=kind, width=width, height=height)

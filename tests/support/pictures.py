"""Image files made of arrays, without any image library."""

import struct
import zlib

import numpy as np
import numpy.typing as npt


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """RGB, [height, width, 3], as PNG: no filter, one IDAT chunk."""
    height, width, _ = pixels.shape
    return png_of_size(width, height, b"".join(b"\0" + row.tobytes() for row in pixels))


def png_of_size(width: int, height: int, rows: bytes) -> bytes:
    """A PNG whose header says this size, whatever rows it holds."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bmp(pixels: npt.NDArray[np.uint8]) -> bytes:
    """RGB, [height, width, 3], as BMP of 24 bits: rows from the bottom, BGR, padded to four bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(row[:, ::-1].tobytes() + bytes(-3 * width % 4) for row in pixels[::-1])
    body = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 2835, 2835, 0, 0) + rows
    return b"BM" + struct.pack("<IHHI", 14 + len(body), 0, 0, 54) + body

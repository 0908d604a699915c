"""What is taken for a picture, and that a PNG shows what went in."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from deploykit.report.sample_pictures import picture_in, png
from tables import each_row

RAMP = np.add.outer(np.arange(40.0), np.arange(60.0))  # 0 to 98, smooth
PHOTO = np.stack([RAMP, RAMP.max() - RAMP, RAMP / 2])  # (3, 40, 60)


@pytest.mark.parametrize("scale", [1.0, 1 / 255, 0.01], ids=["bytes", "parts", "small"])
def test_values_of_a_known_range_come_back_as_they_were(scale: float) -> None:
    found = picture_in({"id": np.arange(4), "image": (PHOTO * scale).astype(np.float32)[None]})
    assert found is not None
    assert (found.input, found.size, found.is_stretched) == ("image", (60, 40), False)
    wanted = PHOTO.transpose(1, 2, 0) * scale * (1 if scale == 1.0 else 255)
    assert np.abs(found.pixels - wanted).max() <= 0.51


def test_normalised_values_are_spread_and_said_to_be() -> None:
    found = picture_in({"image": ((PHOTO - 60) / 30).astype(np.float32)[None]})
    assert found is not None and found.is_stretched
    assert found.pixels.min() == 0 and found.pixels.max() == 255


def test_channels_may_stand_last() -> None:
    found = picture_in({"image": PHOTO.transpose(1, 2, 0)[None]})
    assert found is not None and found.size == (60, 40)


@each_row(
    "values",
    [
        np.random.default_rng(0).uniform(size=(1, 3, 64, 64)),
        np.zeros((1, 3, 64, 64)),
        PHOTO[None, :, :16, :16],
        PHOTO,
        np.concatenate([PHOTO, PHOTO])[None],
        np.full((1, 3, 64, 64), np.nan),
        np.stack([PHOTO, PHOTO]),
    ],
    ids=["noise", "one value", "tiny", "no batch", "six channels", "nan", "two pictures"],
)
def test_what_is_no_picture_is_not_taken_for_one(values: np.ndarray) -> None:
    assert picture_in({"image": values}) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_pixels_made_smaller_by_whole_factors(channels: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 70, channels), np.uint8)
    for longest, factor in ((70, 1), (69, 2), (30, 3)):
        data = png(pixels, longest=longest)
        height, width = 50 // factor, 70 // factor
        cut = pixels[: height * factor, : width * factor].astype(float)
        wanted = np.rint(cut.reshape(height, factor, width, factor, channels).mean(axis=(1, 3)))
        assert np.array_equal(read_png(data), wanted)


def read_png(data: bytes) -> np.ndarray:
    """A reader of its own, by the specification, for filter 2 alone; it checks every checksum."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, head, body = 8, b"", b""
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        chunk = data[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", data, place + 8 + length)[0] == zlib.crc32(kind + chunk)
        head, body = (chunk, body) if kind == b"IHDR" else (head, body + (chunk if kind == b"IDAT" else b""))
        place += 12 + length
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", head)
    channels = {0: 1, 2: 3}[color]
    assert (depth, rest) == (8, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + width * channels)
    assert set(rows[:, 0]) == {2}
    return np.cumsum(rows[:, 1:].astype(int), axis=0).astype(np.uint8).reshape(height, width, channels)

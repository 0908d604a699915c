"""What is taken for a picture, and that a PNG shows what went in."""

from __future__ import annotations

import io

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
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (50, 70, channels), np.uint8)
    for longest, factor in ((70, 1), (69, 2), (30, 3)):
        data = png(pixels, longest=longest)
        height, width = 50 // factor, 70 // factor
        cut = pixels[: height * factor, : width * factor].astype(float)
        wanted = np.rint(cut.reshape(height, factor, width, factor, channels).mean(axis=(1, 3)))
        read = np.asarray(image.open(io.BytesIO(data))).reshape(wanted.shape)
        assert np.array_equal(read, wanted)

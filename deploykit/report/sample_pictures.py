"""Which input of a sample is a picture, and that picture as a small PNG for a page. It reads no files.

What a network takes is seldom what a camera gave: values are brought back to 0..255 by their range, for eyes only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.system.aliases import Numbers

__all__ = ["Picture", "picture_in", "png"]

_Pixels: TypeAlias = Numbers

_LEAST_SIDE = 32
_LIKENESS = 0.5
"""Correlation of neighbouring pixels from which an array is taken for a picture; of noise it is about 0."""
_CHANNELS = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """``pixels`` are (height, width, channels) of uint8; ``is_stretched`` where each channel was spread to be seen."""

    input: str
    pixels: npt.NDArray[np.uint8]
    is_stretched: bool

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.pixels.shape[1], self.pixels.shape[0]


def picture_in(feed: Mapping[str, _Pixels]) -> Picture | None:
    """The first input that is one picture: (1, 1|3, H, W) or (1, H, W, 1|3) whose neighbouring pixels are alike."""
    for name, given in feed.items():
        if given.ndim != 4 or given.shape[0] != 1 or not np.issubdtype(given.dtype, np.number):
            continue
        channels_first, channels_last = given.shape[1] in _CHANNELS, given.shape[3] in _CHANNELS
        values = (given[0].transpose(1, 2, 0) if channels_first else given[0]).astype(np.float64)
        grey = values.mean(axis=2)
        if channels_first == channels_last or min(grey.shape) < _LEAST_SIDE or not np.isfinite(grey).all():
            continue
        if min(_likeness(grey[:, 1:], grey[:, :-1]), _likeness(grey[1:], grey[:-1])) < _LIKENESS:
            continue
        # 0..255 as they are, 0..1 made brighter, anything else spread from its least to its largest, per channel.
        low, high = float(values.min()), float(values.max())
        is_stretched = low < 0 or high > 255
        if is_stretched:
            least, most = values.min(axis=(0, 1)), values.max(axis=(0, 1))
            values = (values - least) / np.maximum(most - least, 1e-12) * 255
        elif high <= 1:
            values = values * 255
        return Picture(input=name, pixels=np.rint(values).astype(np.uint8), is_stretched=is_stretched)
    return None


def _likeness(one: _Pixels, two: _Pixels) -> float:
    spread = float(one.std() * two.std())
    return float(((one - one.mean()) * (two - two.mean())).mean()) / spread if spread > 0 else 0.0


def png(pixels: npt.NDArray[np.uint8], *, longest: int) -> bytes:
    """A PNG (ISO/IEC 15948) of (height, width, 1|3), made smaller by whole factors: no side exceeds ``longest``."""
    factor = -(-max(pixels.shape[:2]) // longest)
    height, width = (side // factor for side in pixels.shape[:2])
    blocks = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    small = np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)
    rows = np.zeros((height, 1 + width * small.shape[2]), np.uint8)
    # Each row as its difference from the one above (filter 2): neighbours are alike, which packs well.
    above = np.vstack([np.zeros((1, *small.shape[1:]), np.uint8), small[:-1]])
    rows[:, 0] = 2
    rows[:, 1:] = (small - above).reshape(height, -1)
    color = 0 if small.shape[2] == 1 else 2
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
        for kind, body in parts
    )

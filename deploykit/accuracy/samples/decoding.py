"""Decodes an image and makes the input of its recipe. Pillow decodes, and is imported when the first image is.

This file is copied beside a quantizer's script and runs there as well, in the quantizer's own environment: the standard
library, NumPy and Pillow, nothing of deploykit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deploykit.findings.records import Json

__all__ = ["decoded"]

MOST_PIXELS = 1 << 26
"""67 megapixels: decoded and converted, a larger one takes half a gigabyte."""
_FORMATS = ("PNG", "JPEG", "BMP")


def decoded(path: Path, recipe: Json) -> Any:
    """One image as float32, [1, 3, height, width] or [1, height, width, 3]: resized, then (pixel * scale - mean) / std.

    ``recipe`` has the keys of ``ImageRecipe``. Raises ImportError without Pillow, ValueError for an image above the
    limit, and whatever Pillow says of a damaged one.
    """
    from PIL import Image

    with Image.open(path, formats=_FORMATS) as opened:
        if opened.size[0] * opened.size[1] > MOST_PIXELS:
            raise ValueError(f"{opened.size[0]} x {opened.size[1]} pixels are more than are decoded")
        placed = _placed(Image, opened.convert("RGB"), recipe)
    pixels = np.asarray(placed, np.float32)
    if recipe.get("channels", "RGB") == "BGR":
        pixels = pixels[..., ::-1]
    pixels = pixels * np.float32(recipe.get("scale", 1.0))
    mean, std = (np.asarray(recipe.get(name, [one] * 3), np.float32) for name, one in (("mean", 0), ("std", 1)))
    pixels = (pixels - mean) / std
    ordered = pixels.transpose(2, 0, 1)[None] if recipe.get("layout", "NCHW") == "NCHW" else pixels[None]
    return np.ascontiguousarray(ordered)


def _placed(library: Any, image: Any, recipe: Json) -> Any:
    """Stretch, letterbox (keep the proportions, fill the rest) or crop the centre."""
    width, height = int(recipe["width"]), int(recipe["height"])
    mode, bilinear = recipe.get("resize", "stretch"), library.Resampling.BILINEAR
    if mode == "stretch":
        return image.resize((width, height), bilinear)
    columns, rows = image.size
    factor = (min if mode == "letterbox" else max)(width / columns, height / rows)
    scaled = image.resize((max(1, round(columns * factor)), max(1, round(rows * factor))), bilinear)
    canvas = library.new("RGB", (width, height), (int(recipe.get("fill", 114)),) * 3)
    canvas.paste(scaled, ((width - scaled.size[0]) // 2, (height - scaled.size[1]) // 2))
    return canvas

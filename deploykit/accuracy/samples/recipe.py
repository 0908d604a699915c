"""How an image becomes an input tensor: the recipe ``calibration.toml`` beside the images; it decodes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deploykit.errors import InputError, UsageError
from deploykit.tables.reading import read_toml, structure

__all__ = ["RECIPE_FILE", "ImageRecipe", "read_recipe"]

RECIPE_FILE = "calibration.toml"
_EXAMPLE = """schema = 1
width = 640
height = 640
resize = "letterbox"      # stretch, letterbox or crop
scale = 0.00392156862745098   # 1/255, applied before mean and std
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """Decode, resize to ``width`` by ``height``, then (pixel * ``scale`` - ``mean``) / ``std`` per channel.

    ``input`` names the model's input, "" for the only one. ``fill`` is the grey level (0..255) around a letterbox.
    """

    schema: int
    width: int
    height: int
    resize: Literal["stretch", "letterbox", "crop"] = "stretch"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    channels: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    fill: int = 114
    input: str = ""

    def __post_init__(self) -> None:
        if self.width <= 0 or self.height <= 0:
            raise ValueError("width and height are in pixels and positive")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise ValueError("mean and std have three values each, no std is 0")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, batch included."""
        planes = (3, self.height, self.width)
        return (1, *planes) if self.layout == "NCHW" else (1, self.height, self.width, 3)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the recipe of a package."""
        names = [name for name in self.__slots__ if name != "schema"]
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in names}


def read_recipe(folder: Path) -> ImageRecipe:
    """The recipe of a folder of images; raises UsageError when it has none, because guessing one gives wrong ranges."""
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder}: images need a recipe that says how they become tensors",
            why="the same image scaled to 0..1 or to 0..255 gives other ranges, so none is guessed",
            next=f"write {path} with for instance: {' | '.join(_EXAMPLE.splitlines())}",
        )
    recipe = structure(ImageRecipe, read_toml(path), where=str(path))
    if recipe.schema != 1:
        raise InputError(f"{path}: schema: {recipe.schema} is not known", next="schema 1 is read")
    return recipe

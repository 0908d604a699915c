"""Images as samples: which input they feed, and what it is fed; their pixels need Pillow (the extra ``images``)."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploykit.accuracy.samples.images import inspect_image
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.accuracy.samples.recipe import ImageRecipe
from deploykit.errors import InputError

__all__ = ["WANTED", "can_decode", "fed_by_images", "images_misfit", "read_image"]

WANTED = "pip install 'deploykit[images]'"
"""What makes images readable here."""


def can_decode() -> bool:
    """Whether Pillow is installed; it is not imported for the answer."""
    return find_spec("PIL") is not None


def fed_by_images(
    recipe: ImageRecipe, inputs: tuple[InputSpec, ...], *, optional: Collection[str] = frozenset()
) -> InputSpec | None:
    """The input that the images of a recipe feed: the one it names, else the only one that nothing else gives."""
    open_ones = [spec for spec in inputs if spec.name not in optional]
    named = [spec for spec in inputs if spec.name == recipe.input] if recipe.input else open_ones
    return named[0] if len(named) == 1 and set(open_ones) <= set(named) else None


def images_misfit(
    recipe: ImageRecipe, inputs: tuple[InputSpec, ...], *, optional: Collection[str] = frozenset()
) -> str:
    """Why images of this recipe cannot be fed to these inputs, of which some are given otherwise; "" where they can."""
    fed = fed_by_images(recipe, inputs, optional=optional)
    if fed is None:
        names = ", ".join(spec.name for spec in inputs)
        return f"images feed one input, the model has {names}; the recipe names {recipe.input or 'none'}"
    return "" if fed.fits(recipe.shape) else f"the recipe makes {list(recipe.shape)}, the model wants {fed}"


def read_image(path: Path, recipe: ImageRecipe, spec: InputSpec) -> Any:
    """What the input is fed for one image, of the input's type; raises InputError with the file."""
    from deploykit.accuracy.samples.decoding import decoded

    inspect_image(path)
    try:
        pixels = decoded(path, recipe.to_json())
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders say what they like of a damaged file
        why = str(error) or type(error).__name__
        raise InputError(f"{path}: the image cannot be decoded", why=why) from None
    typed = pixels.astype(spec.numpy_type)
    if not spec.is_float and (typed.astype(pixels.dtype) != pixels).any():
        raise InputError(
            f"{path}: the recipe makes fractions, the input is {spec}",
            next="leave scale 1, mean 0 and std 1 in calibration.toml: the model takes pixels as they are",
        )
    return typed

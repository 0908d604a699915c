"""Images and sounds as samples: whether a file is complete, how it becomes a tensor, and which input it feeds.

Headers are read before anything is decoded; pixels need Pillow (the extra ``images``). A recipe must state what no
model states: the scale of the values that the model was trained on.
"""

from __future__ import annotations

import wave
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.errors import InputError, UsageError
from deploykit.findings.records import Published, Record, Shape, replace
from deploykit.system.files import open_regular, read_regular
from deploykit.tables.reading import read_toml, structure

__all__ = [
    "IMAGE_SUFFIXES",
    "RECIPE_FILE",
    "SOUND_SUFFIX",
    "WANTED",
    "ImageRecipe",
    "SoundRecipe",
    "can_decode",
    "cut_sound",
    "fed_by_images",
    "fit_recipe",
    "images_misfit",
    "inspect_image",
    "read_image",
    "read_recipe",
    "read_sound",
    "read_sound_recipe",
    "sound_length",
    "sound_shape",
]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
RECIPE_FILE = "calibration.toml"
WANTED = "pip install 'deploykit[images]'"
"""The command after which images can be read here."""
# How a file of each format ends, by its first bytes (PNG specification, section 5; ITU T.81, annex B).
_FORMATS = {b"\x89PNG\r\n\x1a\n": b"IEND", b"\xff\xd8": b"\xff\xd9", b"BM": b""}
_LARGEST = 1 << 30


def inspect_image(path: Path) -> None:
    """Raise InputError for a file that is no image or was cut off; damage inside the image is found by the decoder."""
    data = read_regular(path, limit=_LARGEST)
    end = next((end for start, end in _FORMATS.items() if data.startswith(start)), None)
    if end is None:
        raise InputError(f"{path}: neither PNG nor JPEG nor BMP", why=f"it starts with {data[:8].hex(' ')}")
    if end not in data[len(data) // 2 :]:  # the first half may hold a small picture of its own
        raise InputError(f"{path}: the image is cut off")


class ImageRecipe(Published):
    """Decode, resize to ``width`` by ``height``, then (pixel * ``scale`` - ``mean``) / ``std`` per channel.

    Size and layout may be left out (0 and ""), where the model's input says them.

    ``input`` names the model's input, "" for the only one. ``fill`` is the grey level (0..255) around a letterbox.
    """

    WITHOUT = ("schema",)

    schema: int
    width: int = 0
    height: int = 0
    resize: Literal["stretch", "letterbox", "crop"] = "stretch"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    channels: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC", ""] = ""
    fill: int = 114
    input: str = ""

    def __post_init__(self) -> None:
        if self.width < 0 or self.height < 0 or bool(self.width) != bool(self.height):
            raise ValueError("width and height are in pixels and positive")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise ValueError("mean and std have three values each, no std is 0")

    @property
    def shape(self) -> Shape:
        """The shape of one sample, batch included."""
        planes = (3, self.height, self.width)
        return (1, self.height, self.width, 3) if self.layout == "NHWC" else (1, *planes)


def read_recipe(folder: Path, inputs: tuple[InputSpec, ...] = ()) -> ImageRecipe:
    """The recipe of a folder of images; raises UsageError when it has none, because guessing one gives wrong ranges.

    The error suggests one line for a shell, with the size and the layout only where no input has them.
    """
    path = folder / RECIPE_FILE
    if not path.is_file():
        known = fit_recipe(ImageRecipe(schema=1), inputs)
        size = [] if known.width and inputs else ["width = 224", "height = 224", 'layout = "NCHW"']
        line = "\\n".join(["schema = 1", *size, "scale = 0.00392156862745098", "mean = [0, 0, 0]", "std = [1, 1, 1]"])
        raise UsageError(
            f"{folder}: images need a recipe that says how they become tensors",
            why="the same image scaled to 0..1 or to 0..255 gives other ranges, so none is guessed",
            next=f"printf '{line}\\n' > {path}, with the scale (here 1/255), mean and std of the training",
        )
    recipe = structure(ImageRecipe, read_toml(path), where=str(path))
    if recipe.schema != 1:
        raise InputError(f"{path}: schema: {recipe.schema} is not known", next="schema 1 is read")
    return recipe


def fit_recipe(recipe: ImageRecipe, inputs: tuple[InputSpec, ...]) -> ImageRecipe:
    """The recipe completed by the model's only input of pictures: its size, and where the colours stand."""
    named = [spec for spec in inputs if recipe.input in ("", spec.name) and len(spec.shape) == 4]
    shapes = [spec.shape for spec in named if 3 in (spec.shape[1], spec.shape[3])]
    shape = shapes[0] if len(shapes) == 1 else (None, 3, None, None)
    layout = recipe.layout or ("NCHW" if shape[1] == 3 else "NHWC")
    layout = "NHWC" if any(spec.given for spec in named) else layout
    height, width = shape[2:] if layout == "NCHW" else shape[1:3]
    size = (recipe.width, recipe.height) if recipe.width else (width or 0, height or 0)
    return replace(recipe, layout=layout, width=size[0], height=size[1])


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
    if not recipe.width:
        return "neither the recipe nor the model says how large the pictures are"
    return "" if fed.fits(recipe.shape) else f"the recipe makes {list(recipe.shape)}, the model wants {fed}"


def read_image(path: Path, recipe: ImageRecipe, spec: InputSpec) -> Any:
    """The array that the input is fed for one image, of the input's type; raises InputError with the file."""
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


SOUND_SUFFIX = ".wav"
_WIDEST, _FASTEST = 4, 1 << 20  # bytes of one value and values a second; more is no sound that anybody records


class SoundRecipe(Record):
    """(value * ``scale`` - ``mean``) / ``std`` of values from -1 to 1. ``rate`` is what the model wants, 0 for any."""

    scale: float
    mean: float = 0.0
    std: float = 1.0
    rate: int = 0
    schema: int = 1

    def __post_init__(self) -> None:
        if not self.std or not self.scale:
            raise ValueError("scale and std are not 0")


def read_sound_recipe(folder: Path) -> SoundRecipe:
    """The recipe of a folder of sounds; raises UsageError when it has none, because guessing one gives wrong ranges."""
    path = folder / RECIPE_FILE
    if path.is_file():
        return structure(SoundRecipe, read_toml(path), where=str(path))
    raise UsageError(
        f"{folder}: sounds need a recipe that says how large their values are",
        why="some models want -1 to 1, others 16-bit steps, and no graph says which",
        next=f"echo 'scale = 1.0' > {path} (32768.0 for 16-bit steps; mean, std and rate too where they are wanted)",
    )


def sound_length(path: Path) -> int:
    """The number of values of one channel, by the header; raises InputError where the header is wrong."""
    with _opened(path) as (sound, _):
        return int(sound.getnframes())


def read_sound(path: Path, recipe: SoundRecipe) -> Any:
    """All values as float32 of one axis, the mean over channels; raises InputError."""
    import numpy as np

    with _opened(path) as (sound, width):
        if recipe.rate not in (0, sound.getframerate()):
            asked = f"{sound.getframerate()} values a second, the recipe wants {recipe.rate}"
            raise InputError(f"{path}: {asked}", next="convert it to that rate")
        content, channels = sound.readframes(sound.getnframes()), sound.getnchannels()
    if width == 1:  # the one width that is stored without a sign
        values = np.frombuffer(content, np.uint8).astype(np.float32) - 128
    else:  # to the upper bytes of 32 bits, so that 3 bytes are no case of their own
        padded = np.zeros((len(content) // width, _WIDEST), np.uint8)
        padded[:, _WIDEST - width :] = np.frombuffer(content, np.uint8).reshape(-1, width)
        values = (padded.view("<i4")[:, 0] / 2.0 ** (8 * (_WIDEST - width))).astype(np.float32)
    mixed = values.reshape(-1, channels).mean(axis=1) / np.float32(2 ** (8 * width - 1))
    return ((mixed * recipe.scale - recipe.mean) / recipe.std).astype(np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[wave.Wave_read, int]]:
    """An open sound and the bytes of one value. What the reader says of a damaged file becomes InputError."""
    with open_regular(path) as stream:
        try:
            sound = wave.open(stream, "rb")  # noqa: SIM115 - it closes nothing that it did not open
        except (wave.Error, EOFError, ValueError, RuntimeError) as error:
            why = str(error) or "it is cut off"
            next_ = "save it as PCM of 8, 16, 24 or 32 bits, or the values as .npz"
            raise InputError(f"{path}: not a sound that is read here", why=why, next=next_) from None
        channels, width, rate, frames = sound.getparams()[:4]
        there = path.stat().st_size
        if not (width <= _WIDEST and 0 < rate <= _FASTEST and 0 < frames * channels * width <= min(there, _LARGEST)):
            why = f"its header states {frames:,} frames of {channels} times {width} bytes at {rate:,} Hz"
            why += f", the file has {there:,} bytes"
            raise InputError(f"{path}: cut off or damaged", why=why)
        yield sound, width


def sound_shape(spec: InputSpec, length: int) -> Shape | None:
    """The shape that an input takes of a sound of ``length`` values; None where no axis, or several, may be time.

    Its one long axis is time, else the last open one.
    """
    long = [axis for axis, dim in enumerate(spec.shape) if dim is not None and dim > 1]
    still_open = [axis for axis, dim in enumerate(spec.shape) if dim is None]
    if not spec.is_float or len(long) > 1 or not (long or still_open):
        return None
    time = long[0] if long else still_open[-1]
    return tuple((dim or length) if axis == time else 1 for axis, dim in enumerate(spec.shape))


def cut_sound(values: Any, shape: Sequence[int], index: int) -> Any:
    """The part of a sound at ``index``, filled with zeros behind its end."""
    import numpy as np

    size = int(np.prod(shape))
    part = values[index * size : (index + 1) * size]
    return np.pad(part, (0, size - part.size)).reshape(shape)

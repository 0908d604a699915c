"""Sound files (.wav) as samples: read, mixed to one channel, scaled by a recipe and cut to what an input takes.

What no model says is asked for: how large the values are that it was trained on.
"""

from __future__ import annotations

import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import InputError, UsageError
from deploykit.system.files import open_regular
from deploykit.tables.reading import read_toml, structure

if TYPE_CHECKING:
    from deploykit.accuracy.samples.inputs import InputSpec

__all__ = ["SOUND_SUFFIX", "SoundRecipe", "cut_sound", "read_sound", "read_sound_recipe", "sound_length", "sound_shape"]

SOUND_SUFFIX = ".wav"
_WIDEST = 4  # bytes of one value; more is no sound that anybody records
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundRecipe:
    """(value * ``scale`` - ``mean``) / ``std`` of values from -1 to 1. ``rate`` is what the model wants, 0 for any."""

    scale: float
    mean: float = 0.0
    std: float = 1.0
    rate: int = 0
    schema: int = 1

    def __post_init__(self) -> None:
        if not self.std or not self.scale:
            raise ValueError("scale and std are not 0")


def read_sound_recipe(folder: Path, name: str) -> SoundRecipe:
    """The recipe of a folder of sounds; raises UsageError when it has none, because guessing one gives wrong ranges."""
    path = folder / name
    if path.is_file():
        return structure(SoundRecipe, read_toml(path), where=str(path))
    raise UsageError(
        f"{folder}: sounds need a recipe that says how large their values are",
        why="some models want -1 to 1, others 16-bit steps, and no graph says which",
        next=f"echo 'scale = 1.0' > {path} (32768.0 for 16-bit steps; mean, std and rate too where they are wanted)",
    )


def sound_length(path: Path) -> int:
    """How many values one channel has, by the header, which must be right; raises InputError."""
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
        channels, width, frames = sound.getnchannels(), sound.getsampwidth(), sound.getnframes()
        there = path.stat().st_size
        if not (1 <= width <= _WIDEST and channels and 0 < frames * channels * width <= min(there, _LARGEST)):
            why = f"its header states {frames:,} frames of {channels} times {width} bytes, the file has {there:,}"
            raise InputError(f"{path}: cut off or damaged", why=why)
        yield sound, width


def sound_shape(spec: InputSpec, length: int) -> tuple[int, ...] | None:
    """What an input takes of a sound: its one long axis is time, else the last open one; None where several are."""
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

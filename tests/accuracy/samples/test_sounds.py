"""A folder of .wav as calibration data: what a model takes of it, and what is said where that cannot be told."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from deploykit.accuracy.samples.calibration import load_calibration, places_of, read_places
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.errors import DeploykitError, InputError, UsageError
from tables import each_row

WAVE = np.sin(np.linspace(0, 60, 1000))


def save(path: Path, values: np.ndarray = WAVE, *, width: int = 2, channels: int = 1, rate: int = 16000) -> None:
    steps = np.round(values * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    stored = (steps + (128 if width == 1 else 0)).astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(np.repeat(stored.reshape(-1, 1, width), channels, axis=1).tobytes())


def read(folder: Path, shape: tuple[int | None, ...], recipe: str = "scale = 1.0\n") -> list[np.ndarray]:
    (folder / "calibration.toml").write_text(recipe)
    spec = InputSpec(name="x", dtype="float32", shape=shape)
    return [feed["x"] for feed in read_places(places_of(load_calibration(folder, (spec,)), (spec,)))]


@each_row(("width", "channels", "off"), [(1, 1, 2e-2), (2, 2, 1e-4), (3, 1, 1e-6), (4, 2, 1e-6)])
def test_every_width_is_read_between_minus_one_and_one(tmp_path: Path, width: int, channels: int, off: float) -> None:
    save(tmp_path / "a.wav", width=width, channels=channels)
    (found,) = read(tmp_path, (1, None))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], WAVE, atol=off)


@each_row(
    ("shape", "shapes"),
    [
        ((1, 400), [(1, 400)] * 3),
        ((None, 1, 1000), [(1, 1, 1000)]),
        ((None, 512, 1), [(1, 512, 1)] * 2),
        ((None, None), [(1, 1000)]),
        ((2000,), [(2000,)]),
    ],
)
def test_it_is_cut_to_what_the_input_takes(
    tmp_path: Path, shape: tuple[int | None, ...], shapes: list[tuple[int, ...]]
) -> None:
    save(tmp_path / "a.wav")
    found = read(tmp_path, shape)
    assert [part.shape for part in found] == shapes
    together = np.concatenate([part.ravel() for part in found])
    np.testing.assert_allclose(together[:1000], WAVE, atol=1e-4)
    assert not together[1000:].any(), "silence behind its end"


def test_the_recipe_scales(tmp_path: Path) -> None:
    save(tmp_path / "a.wav")
    (found,) = read(tmp_path, (1, None), "scale = 32768.0\nmean = 8.0\nstd = 2.0\n")
    np.testing.assert_allclose(found[0], (WAVE * 32768 - 8) / 2, atol=2)


def test_what_cannot_be_told_is_asked_for_in_one_line(tmp_path: Path) -> None:
    save(tmp_path / "a.wav")
    with pytest.raises(UsageError) as caught:
        load_calibration(tmp_path)
    assert caught.value.next.startswith("echo 'scale = 1.0' > ") and "\n" not in caught.value.next


@each_row(
    ("content", "shape", "recipe", "says"),
    [
        (b"RIFF", (1, 9), "scale = 1.0", "not a sound"),
        (None, (1, 9, 9), "scale = 1.0", "a sound has one axis"),
        (None, (1, 9), "scale = 1.0\nrate = 8000", "the recipe wants 8000"),
        (None, (1, 9), "scale = 0.0", "not 0"),
        (None, (1, 9), "loudness = 1.0", "scale"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, content: bytes | None, shape: tuple[int, ...], recipe: str, says: str
) -> None:
    save(tmp_path / "a.wav")
    if content is not None:
        (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DeploykitError, match=says):
        read(tmp_path, shape, recipe)


def test_a_sound_that_is_cut_off_and_two_kinds_in_one_folder_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:900])
    with pytest.raises(InputError, match="cut off"):
        read(tmp_path, (1, 400))
    np.save(tmp_path / "b.npy", WAVE)
    with pytest.raises(UsageError, match="holds arrays and sounds"):
        load_calibration(tmp_path)

"""Pictures, sounds and recorded inputs as samples."""

import hashlib
import io
import json
import wave
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from deploykit.accuracy.samples import gathering, images
from deploykit.accuracy.samples.arrays import write_arrays
from deploykit.accuracy.samples.calibration import (
    load_calibration,
    parse_declarations,
    places_of,
    read_places,
    read_samples,
)
from deploykit.accuracy.samples.decoding import MOST_PIXELS
from deploykit.accuracy.samples.gathering import (
    InputSource,
    Samples,
    gather,
    read_expected,
    read_recorded,
    record,
    record_expected,
)
from deploykit.accuracy.samples.images import ImageRecipe, fed_by_images, fit_recipe, images_misfit
from deploykit.accuracy.samples.inputs import InputSpec, Label, input_specs
from deploykit.errors import DeploykitError, InputError, UsageError
from deploykit.model.collect import facts_of
from pictures import bmp, png, png_of_size
from sample_models.tiny_graphs import TinyGraph
from tables import each_row
from told import check_file

PIXELS: npt.NDArray[np.uint8] = np.random.default_rng(4).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def _model(*shape: int, dtype: str = "float32", sizes: bool = False) -> onnx.ModelProto:
    graph = TinyGraph()
    image = graph.input("image", shape, dtype)
    graph.op("Identity", [graph.op("Cast", [image], "cast", to=onnx.TensorProto.FLOAT)], "y")
    outputs = ["y"]
    if sizes:
        graph.op("Identity", [graph.input("sizes", (1, 2))], "z")
        outputs.append("z")
    return graph.model(*outputs)


def _folder(place: Path, images: dict[str, bytes], **recipe: Any) -> Path:
    for name, data in images.items():
        (place / name).write_bytes(data)
    told = {"schema": 1, "width": 8, "height": 6, **recipe}
    lines = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in told.items()]
    (place / "calibration.toml").write_text("\n".join(lines) + "\n")
    return place


def _read(model: onnx.ModelProto, folder: Path) -> list[dict[str, Any]]:
    return list(read_samples(folder, facts_of(model)))


def _gathered(model: onnx.ModelProto, folder: Path, *inputs: str) -> Samples:
    facts = facts_of(model)
    return gather(model, facts, calibration=folder, declared=parse_declarations(inputs, input_specs(facts)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_pixels_become_what_the_recipe_says(layout: str, channels: str, tmp_path: Path) -> None:
    shape = (1, 3, 6, 8) if layout == "NCHW" else (1, 6, 8, 3)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    said = {"scale": 1 / 255, "mean": mean, "std": std, "layout": layout, "channels": channels}
    pictures = {"a.png": png(PIXELS), "b.bmp": bmp(PIXELS), "c.JPG": png(PIXELS), "d.jpeg": png(PIXELS)}
    folder = _folder(tmp_path, pictures, **said)
    expected = (PIXELS[..., :: 1 if channels == "RGB" else -1] / 255 - mean) / std
    expected = expected.transpose(2, 0, 1)[None] if layout == "NCHW" else expected[None]
    samples = _read(_model(*shape), folder)
    assert len(samples) == len(pictures)
    for sample in samples:
        assert sample["image"].dtype == np.float32
        np.testing.assert_allclose(sample["image"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 3, 6, 8), (1, 6, 8, 3)])
def test_size_and_layout_are_read_from_the_model(shape: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(PIXELS))
    (tmp_path / "calibration.toml").write_text("schema = 1\nscale = 0.5\n")
    (sample,) = _read(_model(*shape), tmp_path)
    wanted = PIXELS.transpose(2, 0, 1) if shape[1] == 3 else PIXELS
    assert np.array_equal(sample["image"][0], wanted * np.float32(0.5))
    with pytest.raises(InputError, match="neither the recipe nor the model says how large"):
        _read(_model(1, 3, 7), tmp_path)


def _recipe(question: str) -> list[str]:
    """A recipe, and the inputs of a model by name, type and shape; those that are declared end in ``!``."""
    recipe, said = question.split("; ")
    specs, optional = [], set()
    for name, dtype, shape in (words.split(" ") for words in said.split(", ")):
        sizes = tuple(None if dim == "?" else int(dim) for dim in shape.split("x"))
        specs.append(
            InputSpec(name=name.rstrip("!"), dtype=dtype, shape=sizes, given=sizes if name == "turned" else ())
        )
        optional |= {name.rstrip("!")} if name.endswith("!") else set()
    fields: dict[str, Any] = dict(words.split("=") for words in recipe.split(" ") if "=" in words)
    fields |= {name: int(value) for name, value in fields.items() if value.isdigit()}
    found = fit_recipe(ImageRecipe(schema=1, **fields), tuple(specs))
    misfit = images_misfit(found, tuple(specs), optional=optional)
    fed = fed_by_images(found, tuple(specs), optional=optional)
    return [
        f"{found.layout} {found.width} by {found.height}: {list(found.shape)} for {fed}",
        *([misfit] if misfit else []),
    ]


def test_what_a_recipe_leaves_out_the_input_says() -> None:
    check_file(Path(__file__).with_name("recipes.told"), _recipe)


def test_classes_of_samples_are_read_from_a_table_or_from_folders(tmp_path: Path) -> None:
    """One class is none; a file at the top has no folder; a table counts before folders, row by row."""

    def labels() -> dict[str, str]:
        return {path.name: label for path, label in load_calibration(tmp_path).labels.items()}

    for name in ("a/one.npy", "a/two.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.ones(1))
    assert labels() == {}
    (tmp_path / "b" / "c").mkdir(parents=True)
    np.save(tmp_path / "b/c/three.npy", np.ones(1))
    assert labels() == {"one.npy": "a", "two.npy": "a", "three.npy": "b/c"}
    np.save(tmp_path / "four.npy", np.ones(1))
    assert labels() == {}
    table = "\ufefffile,class\n a/one.npy , cat ,more\nfour.npy,dog\nabsent.npy,dog\nb/c/three.npy\n"
    (tmp_path / "labels.csv").write_text(table, "utf-8")
    (tmp_path / ".hidden.npy").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no sample")
    found = load_calibration(tmp_path)
    assert (found.kind, found.origin, found.unused) == ("arrays", tmp_path.name, ("notes.txt",))
    assert [path.name for path in found.files] == ["one.npy", "two.npy", "three.npy", "four.npy"]
    assert labels() == {"one.npy": "cat", "four.npy": "dog"}
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a table of labels"):
        labels()


def test_a_letterbox_keeps_the_proportions_and_is_grey_around(tmp_path: Path) -> None:
    folder = _folder(tmp_path, {"a.png": png(PIXELS)}, width=8, height=10, resize="letterbox", fill=7)
    (sample,) = _read(_model(1, 3, 10, 8), folder)
    assert (sample["image"][:, :, :2] == 7).all() and (sample["image"][:, :, 8:] == 7).all()
    assert np.array_equal(sample["image"][0, :, 2:8], PIXELS.transpose(2, 0, 1))


def test_bytes_are_fed_where_the_model_takes_bytes(tmp_path: Path) -> None:
    (sample,) = _read(_model(1, 3, 6, 8, dtype="uint8"), _folder(tmp_path, {"a.png": png(PIXELS)}))
    assert sample["image"].dtype == np.uint8
    assert np.array_equal(sample["image"][0], PIXELS.transpose(2, 0, 1))
    with pytest.raises(InputError, match="fractions"):
        _read(_model(1, 3, 6, 8, dtype="uint8"), _folder(tmp_path, {}, scale=0.5))  # every second value is whole


@each_row(
    ("data", "said"),
    (png_of_size(8, 6, b"\0" * 10), "cannot be decoded"),
    (png_of_size(8200, 8200, b"\0" * 10), "more than are decoded"),
    (png(PIXELS)[:40], "cut off"),
    (png(PIXELS) + bytes(999), "cut off"),  # a small picture in front, and the end of the large one is missing
    (b"GIF89a" + bytes(20), "neither PNG"),
)
def test_an_image_that_cannot_be_read_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    assert MOST_PIXELS < 8200 * 8200
    with pytest.raises(InputError, match=r"a\.png") as caught:
        _read(_model(1, 3, 6, 8), _folder(tmp_path, {"a.png": data}))
    assert said in str(caught.value)


def test_without_pillow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _name: None)
    model, folder = _model(1, 3, 6, 8), _folder(tmp_path, {"a.png": png(PIXELS)})
    with pytest.raises(UsageError, match="Pillow"):
        _read(model, folder)
    made = _gathered(model, folder)
    assert made.label is Label.ARBITRARY
    assert "not decoded here (pip install 'deploykit[images]')" in made.described_for_humans


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


@each_row(("width", "channels", "off"), (1, 1, 2e-2), (2, 2, 1e-4), (3, 1, 1e-6), (4, 2, 1e-6))
def test_every_width_is_read_between_minus_one_and_one(tmp_path: Path, width: int, channels: int, off: float) -> None:
    save(tmp_path / "a.wav", width=width, channels=channels)
    (found,) = read(tmp_path, (1, None))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], WAVE, atol=off)


@each_row(
    ("shape", "shapes"),
    ((1, 400), [(1, 400)] * 3),
    ((2, 1), [(2, 1)] * 500),
    ((None, 1, 1000), [(1, 1, 1000)]),
    ((None, 512, 1), [(1, 512, 1)] * 2),
    ((None, None), [(1, 1000)]),
    ((2000,), [(2000,)]),
)
def test_it_is_cut_to_the_input(tmp_path: Path, shape: tuple[int | None, ...], shapes: list[tuple[int, ...]]) -> None:
    save(tmp_path / "a.wav")
    found = read(tmp_path, shape)
    assert [part.shape for part in found] == shapes
    together = np.concatenate([part.ravel() for part in found])
    np.testing.assert_allclose(together[:1000], WAVE, atol=1e-4)
    assert not together[1000:].any(), "silence behind its end"


@each_row(
    ("shape", "recipe", "says"),
    ((1, 9, 9), "scale = 1.0", "a sound has one axis"),
    ((1, 9), "scale = 1.0\nrate = 8000", "the recipe wants 8000"),
    ((1, 9), "loudness = 1.0", "scale"),
)
def test_what_does_not_fit_is_named(tmp_path: Path, shape: tuple[int, ...], recipe: str, says: str) -> None:
    save(tmp_path / "a.wav")
    with pytest.raises(DeploykitError, match=says):
        read(tmp_path, shape, recipe)


def test_a_sound_that_is_cut_off_and_two_kinds_in_one_folder_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:900])
    with pytest.raises(InputError, match="cut off"):
        read(tmp_path, (1, 400))
    save(tmp_path / "a.wav", width=1, rate=4_000_000_000)
    with pytest.raises(InputError, match="4,000,000,000 Hz"):
        read(tmp_path, (1, 400))
    np.save(tmp_path / "b.npy", WAVE)
    with pytest.raises(UsageError, match="holds arrays and sounds"):
        load_calibration(tmp_path)


SPECS = (InputSpec(name="a/b", dtype="float32", shape=(1, 3)), InputSpec(name="ids", dtype="int64", shape=(1, 2)))


def _samples(count: int, label: Label = Label.GIVEN, ids: Label = Label.GIVEN) -> Samples:
    feeds = tuple({"a/b": np.full((1, 3), n, np.float32), "ids": np.array([[n, -n]])} for n in range(count))
    sources = {"a/b": InputSource(label=label, why="a"), "ids": InputSource(label=ids, why="b")}
    return Samples(feeds=feeds, of_inputs=sources, available=count)


def test_fewer_where_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = 3 * 4 + 2 * 8
    monkeypatch.setattr(gathering, "_MOST_BYTES", 3 * one)
    (tmp_path / "s.npz").write_bytes(record(_samples(50))[1] or b"")
    assert [int(feed["a/b"][0, 0]) for feed in read_recorded(tmp_path / "s.npz", SPECS)] == [0, 24, 49]
    monkeypatch.setattr(gathering, "_MOST_BYTES", one - 1)
    none, data = record(_samples(50))
    assert data is None and "one sample has" in none["why_not"] and len(none["sha256"]) == 8


def test_what_is_kept_of_samples() -> None:
    """Given and declared inputs, the same bytes in each run; of private ones the hashes, of made ones nothing."""
    (kept, data), private = record(_samples(5)), record(_samples(5), keep=False)
    inputs = {"a/b": {"label": "given", "why": "a"}, "ids": {"label": "given", "why": "b"}}
    about = {"label": "given", "count": 5, "inputs": inputs}
    assert data is not None
    assert hashlib.sha256(data).hexdigest() == "d69133cc284d43cff92e72e996537d42878ab4ee118d3a678ed362f15f2e29f6"
    hashes = hashlib.sha256(json.dumps(kept["sha256"]).encode()).hexdigest()
    assert hashes == "5ea61dd8f4f426c12e19f2413b27fcd35cf2d0d5932b1c99170fa41d0f5566ed"
    assert kept == {**about, "recorded": 5, "why_not": "", "sha256": kept["sha256"]}
    why = "samples are private: only their hashes are kept"
    assert private == ({**about, "recorded": 0, "why_not": why, "sha256": kept["sha256"]}, None)
    made, data = record(_samples(5, Label.DERIVED, Label.ARBITRARY))
    why = "nothing was given or declared; derived samples are made again when they are needed"
    assert (data, made["sha256"], made["why_not"]) == (None, [], why)
    some, data = record(_samples(20, Label.DERIVED, Label.DECLARED))
    assert data is not None and len(some["sha256"]) == 8
    assert ZipFile(io.BytesIO(data)).namelist() == [f"{number}:ids.npy" for number in range(8)]


def test_what_was_computed_of_samples_is_found_by_their_values(tmp_path: Path) -> None:
    feeds, path = _samples(3).feeds, tmp_path / "expected.npz"
    sides = {side: [{"y:0": np.asarray([n + at])} for n in range(3)] for at, side in enumerate(("float", "emulated"))}
    assert record_expected(feeds, sides, Label.DERIVED) is None
    path.write_bytes(record_expected(feeds, sides, Label.GIVEN) or b"")
    found = read_expected(path, [feeds[2], feeds[0]])
    assert {side: [{name: v.tolist() for name, v in one.items()} for one in rows] for side, rows in found.items()} == {
        "emulated": [{"y:0": [3]}, {"y:0": [1]}],
        "float": [{"y:0": [2]}, {"y:0": [0]}],
    }
    assert read_expected(path, [feeds[0], _samples(4).feeds[3]]) == read_expected(path, []) == {}
    write_arrays(path, {"0:float:y": np.ones(1), "more": np.ones(1), "1:sha256": np.ones(1, np.uint8)})
    assert read_expected(path, feeds) == {}
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot be read"):
        read_expected(path, feeds)


def test_samples_of_another_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.npz").write_bytes(record(_samples(3))[1] or b"")
    with pytest.raises(InputError, match="does not fit"):
        read_recorded(tmp_path / "s.npz", (InputSpec(name="ids", dtype="int64", shape=(1, 5)),))
    feed = _samples(1).feeds[0]
    write_arrays(tmp_path / "t.npz", {"0:ids": feed["ids"], "1:ids": feed["ids"], "1:a/b": feed["a/b"]})
    with pytest.raises(InputError, match="or not the same inputs in each"):
        read_recorded(tmp_path / "t.npz", SPECS)
    with pytest.raises(InputError, match="no sample for this model"):
        read_recorded(tmp_path / "s.npz", (InputSpec(name="other", dtype="int64", shape=(1, 5)),))

"""Images as samples: the pixels are those of the file, treated as the recipe says; what cannot be read is named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from deploykit.accuracy.samples import images, read_samples
from deploykit.accuracy.samples.calibration import parse_declarations
from deploykit.accuracy.samples.decoding import MOST_PIXELS
from deploykit.accuracy.samples.gathering import Samples, gather
from deploykit.accuracy.samples.inputs import Label, input_specs
from deploykit.errors import InputError, UsageError
from deploykit.model.collect import facts_of
from pictures import bmp, png, png_of_size
from sample_models.tiny_graphs import TinyGraph

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
    folder = _folder(tmp_path, {"a.png": png(PIXELS), "b.bmp": bmp(PIXELS)}, **said)
    expected = (PIXELS[..., :: 1 if channels == "RGB" else -1] / 255 - mean) / std
    expected = expected.transpose(2, 0, 1)[None] if layout == "NCHW" else expected[None]
    for sample in _read(_model(*shape), folder):
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


def test_a_letterbox_keeps_the_proportions_and_is_grey_around(tmp_path: Path) -> None:
    folder = _folder(tmp_path, {"a.png": png(PIXELS)}, width=8, height=10, resize="letterbox", fill=7)
    (sample,) = _read(_model(1, 3, 10, 8), folder)
    assert (sample["image"][:, :, :2] == 7).all()
    assert (sample["image"][:, :, 8:] == 7).all()
    assert np.array_equal(sample["image"][0, :, 2:8], PIXELS.transpose(2, 0, 1))


def test_bytes_are_fed_where_the_model_takes_bytes(tmp_path: Path) -> None:
    (sample,) = _read(_model(1, 3, 6, 8, dtype="uint8"), _folder(tmp_path, {"a.png": png(PIXELS)}))
    assert sample["image"].dtype == np.uint8
    assert np.array_equal(sample["image"][0], PIXELS.transpose(2, 0, 1))
    with pytest.raises(InputError, match="fractions"):
        _read(_model(1, 3, 6, 8, dtype="uint8"), _folder(tmp_path, {}, scale=1 / 255))


def test_images_are_given_samples_beside_what_is_declared(tmp_path: Path) -> None:
    model = _model(1, 3, 6, 8, sizes=True)
    folder = _folder(tmp_path, {f"{number}.png": png(PIXELS) for number in range(3)}, input="image")
    made = _gathered(model, folder, "sizes=8")
    assert (made.label, made.count) == (Label.DECLARED, 3)
    assert made.of_inputs["image"].label is Label.GIVEN
    with pytest.raises(InputError, match="images feed one input"):
        _gathered(model, folder)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (png_of_size(8, 6, b"\0" * 10), "cannot be decoded"),
        (png_of_size(8200, 8200, b"\0" * 10), "more than are decoded"),
        (png(PIXELS)[:40], "cut off"),
        (b"GIF89a" + bytes(20), "neither PNG"),
    ],
)
def test_an_image_that_cannot_be_read_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    assert MOST_PIXELS < 8200 * 8200
    with pytest.raises(InputError, match=r"a\.png") as caught:
        _read(_model(1, 3, 6, 8), _folder(tmp_path, {"a.png": data}))
    assert said in str(caught.value)


def test_only_the_formats_that_were_looked_at_are_decoded(tmp_path: Path) -> None:
    """A file that begins as one kind is not handed to the decoder of another."""
    image = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.fromarray(PIXELS).save(made, "TIFF")
    with pytest.raises(InputError, match="neither PNG"):
        _read(_model(1, 3, 6, 8), _folder(tmp_path, {"a.png": made.getvalue()}))


def test_without_pillow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _name: None)
    model, folder = _model(1, 3, 6, 8), _folder(tmp_path, {"a.png": png(PIXELS)})
    with pytest.raises(UsageError, match="Pillow"):
        _read(model, folder)
    made = _gathered(model, folder)
    assert made.label is Label.ARBITRARY
    assert "not decoded here (pip install 'deploykit[images]')" in made.described_for_humans

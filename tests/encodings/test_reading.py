import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.encodings.formats.aimet import read_encodings, write_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.place import fit
from deploykit.encodings.values import Affine, Encoding, Float, Float8, Lpbq
from deploykit.errors import InputError
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
FILES = sorted(AIMET.rglob("*.encodings"))


def ids(path: Path) -> str:
    return path.relative_to(AIMET).as_posix()


def affine(entry: Encoding | None) -> Affine:
    assert entry is not None and isinstance(entry.value, Affine)
    return entry.value


def normal(value: Any) -> Any:
    """JSON with -0.0 as 0.0, and a zero point of 0 left out as AIMET does wherever it did not force a signedness."""
    if isinstance(value, dict):
        return {k: normal(v) for k, v in value.items() if not (k == "y_zero_point" and v == 0)}
    if isinstance(value, list):
        return [normal(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


def test_the_fixtures_are_there() -> None:
    assert len(FILES) == 103


@each_row("path", FILES, ids=ids)
def test_every_fixture_reads_and_writes_back_what_aimet_wrote(path: Path) -> None:
    encodings = read_encodings(path)
    text = path.read_text()
    assert encodings.version == json.loads(text)["version"]
    written = write_encodings(encodings, encodings.version)
    assert normal(json.loads(written)) == normal(json.loads(text))
    # Down to the byte, apart from the two spellings of zero.
    if "-0.0" not in text and "actsigned" not in path.name:
        assert written == text


def test_061_per_tensor_as_in_the_file() -> None:
    encodings = read_encodings(AIMET / "cnn_bnfold/w8a8.v0.6.1.encodings")
    value = affine(encodings.get("input"))
    assert (value.bits, value.signed, value.symmetric, value.granularity) == (8, False, False, "per-tensor")
    assert (float(value.scale), float(value.zero_point)) == (0.030031533911824226, 112.0)
    assert (float(value.minimum), float(value.maximum)) == (-3.3635317981243134, 4.294509349390864)
    assert encodings.entries["input"].is_param is False
    assert encodings.producer is not None and encodings.producer["version"] == "2.42.0"
    assert encodings.quantizer_args is not None and encodings.quantizer_args["param_bitwidth"] == 8


def test_061_string_booleans_say_signed() -> None:
    value = affine(read_encodings(AIMET / "cnn_bnfold/w8a8.v0.6.1.encodings").get("conv1.weight"))
    assert (value.signed, value.symmetric, value.placed, value.granularity) == (True, True, False, "per-channel")
    assert value.scale.shape == (16,) and value.scale[0] == 0.0022548772394657135
    assert not value.zero_point.any()


def test_061_float_entries() -> None:
    encodings = read_encodings(AIMET / "detr/w8a8-fp16mix-explicit.v0.6.1.encodings")
    entry = encodings.get("/decoder/Div_output_0")
    assert entry is not None and entry.value == Float(dtype="float16")
    assert len(encodings.floats) == 10


def test_100_fractional_offsets_come_back_from_the_shift() -> None:
    value = affine(read_encodings(AIMET / "mlp/bq-w2a16-zpshift.v1.0.0.encodings").get("fc1.weight"))
    assert (value.bits, value.granularity, value.block_size) == (2, "per-block", 16)
    assert (value.zero_point == -0.5).all()
    older = affine(read_encodings(AIMET / "mlp/bq-w2a16-zpshift.v0.6.1.encodings").get("fc1.weight"))
    assert (older.zero_point == -0.5).all()


def test_100_lpbq() -> None:
    entry = read_encodings(AIMET / "mlp/lpbq-w4a16.v1.0.0.encodings").get("fc1.weight")
    assert entry is not None and isinstance(entry.value, Lpbq)
    assert (entry.value.bits, entry.value.decompressed_bits, entry.value.block_size) == (4, 8, 16)
    assert entry.value.channel_scale.shape == (48,) and entry.value.block_scale.shape == (192,)
    assert entry.value.block_scale.max() == 16 and not entry.value.placed


def test_200_left_out_zero_points_are_zero() -> None:
    value = affine(read_encodings(AIMET / "cnn/w8a8.v2.0.0.encodings").get("/Flatten_output_0"))
    assert (float(value.zero_point), value.symmetric, value.dtype) == (0.0, None, "uint8")


def test_200_block_axis_and_channel_axis() -> None:
    encodings = read_encodings(AIMET / "mlp/bq-w4a16.v2.0.0.encodings")
    value = affine(encodings.get("onnx::MatMul_57"))
    assert (value.axis, value.block_axis, value.block_size, value.scale.shape) == (1, 0, 16, (4, 128))
    conv = affine(encodings.get("lm_head.weight"))
    assert (conv.axis, conv.block_axis, conv.scale.shape) == (0, 1, (20, 2, 1, 1))
    assert all(entry.is_param is None for entry in encodings)


def test_200_negative_axes_of_older_releases() -> None:
    path = AIMET / "mlp/aimet-2.31.0/w8a8.v2.0.0.encodings"
    raw = {e["name"]: e.get("axis") for e in json.loads(path.read_text())["encodings"]}
    assert raw["onnx::MatMul_58"] == -1
    assert affine(read_encodings(path).get("onnx::MatMul_58")).axis == -1
    settled = affine(fit(read_encodings(path).entries["onnx::MatMul_58"], (128, 64), "w"))
    older = affine(read_encodings(AIMET / "mlp/aimet-2.31.0/w8a8.v1.0.0.encodings").get("onnx::MatMul_58"))
    assert settled.axis == 1
    assert np.array_equal(settled.scale, older.scale)


def test_200_negative_block_axes(tmp_path: Path) -> None:
    """Of a blockwise array the rank is known, so the axis is settled without the model."""
    for name in ("bq-w4a16", "lpbq-w4a16"):
        path = AIMET / f"mlp/{name}.v2.0.0.encodings"
        document = json.loads(path.read_text())
        for entry in document["encodings"]:
            if "block_size" in entry:
                entry["axis"] -= 4 if entry["name"] == "lm_head.weight" else 2
        negative = tmp_path / f"{name}.encodings"
        negative.write_text(json.dumps(document))
        assert write_encodings(read_encodings(negative), "2.0.0") == path.read_text()


def test_200_float8() -> None:
    entry = read_encodings(AIMET / "mlp/wfp8a8.v2.0.0.encodings").get("onnx::MatMul_57")
    assert entry is not None and isinstance(entry.value, Float8)
    assert (entry.value.dtype, entry.value.axis, entry.value.scale.shape) == ("float8e4m3fn", 1, (128,))


def test_200_scales_beyond_any_float16() -> None:
    value = affine(read_encodings(AIMET / "detr/w8a8.v2.0.0.encodings").get("onnx::Add_4934"))
    assert 3.9e27 < float(value.scale) < 4e27


def test_210_lpbq_as_a_scale_of_scales() -> None:
    newer = read_encodings(AIMET.parent / "aimet_derived/mlp-lpbq-w4a16.v2.1.0.encodings")
    older = read_encodings(AIMET / "mlp/lpbq-w4a16.v2.0.0.encodings")
    assert newer.version == "2.1.0" and sum(isinstance(entry.value, Lpbq) for entry in newer) == 5
    assert not diff(newer, older)
    for name, entry in newer.entries.items():
        if isinstance(entry.value, Lpbq):
            other = older.entries[name].value
            assert isinstance(other, Lpbq)
            assert (entry.value.axis, entry.value.block_axis) == (other.axis, other.block_axis)


WRONG_210 = {
    "channels": ("x_scale", [1.0, 2.0], "'x_scale' has 2 items"),
    "zero point": ("x_zero_point", 1, "'x_zero_point' must be left out or 0"),
    "axis": ("axis", 0, "'x_scale'"),
    "far axis": ("axis", 5, "axis 5 is out of range"),
    "unknown key": ("y", 1, "such an entry: `y`"),
    "flat": ("x", [1, 2], "must be nested"),
}


@each_row(("key", "value", "words"), WRONG_210.values(), ids=WRONG_210.keys())
def test_wrong_210_scales_are_refused(key: str, value: Any, words: str, tmp_path: Path) -> None:
    document = json.loads((AIMET.parent / "aimet_derived/mlp-lpbq-w4a16.v2.1.0.encodings").read_text())
    entry = next(entry for entry in document["encodings"] if entry["name"] == "onnx::MatMul_57")
    entry["y_scale"][key] = value
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_encodings(path)
    assert words in str(caught.value) and "'onnx::MatMul_57'" in str(caught.value)


def test_062_of_aimet_torch_is_061(tmp_path: Path) -> None:
    text = (AIMET / "cnn/w8a8.v0.6.1.encodings").read_text()
    path = tmp_path / "w.encodings"
    path.write_text(text.replace('"version": "0.6.1"', '"version": "0.6.2"'))
    encodings = read_encodings(path)
    assert encodings.version == "0.6.2" and len(encodings) == 18
    assert '"version": "0.6.2"' in write_encodings(encodings, "0.6.2")


def test_unknown_top_level_keys_are_kept(tmp_path: Path) -> None:
    document = json.loads((AIMET / "cnn/w8a8.v1.0.0.encodings").read_text())
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps(document | {"excluded_layers": ["a"], "note": {"b": 1}}))
    encodings = read_encodings(path)
    assert encodings.extra == {"excluded_layers": ["a"], "note": {"b": 1}}
    assert json.loads(write_encodings(encodings, "1.0.0"))["excluded_layers"] == ["a"]


def test_sections_tell_parameters_apart() -> None:
    encodings = read_encodings(AIMET / "vit/w8a8.v1.0.0.encodings")
    params = json.loads((AIMET / "vit/w8a8.v1.0.0.encodings").read_text())["param_encodings"]
    assert {e.name for e in encodings if e.is_param} == {e["name"] for e in params}

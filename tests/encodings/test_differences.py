from pathlib import Path

import numpy as np

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.differences import (
    EntryChange,
    compare_values,
    describe_encodings,
    to_signed,
    to_unsigned,
)
from deploykit.encodings.values import Affine, Float, Float8

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def grid(scale: float = 0.5, zero_point: float = 0.0, *, bits: int = 8, signed: bool = False) -> Affine:
    return Affine(bits=bits, signed=signed, scale=np.asarray(scale), zero_point=np.asarray(zero_point))


def channels(*scales: float, axis: int | None = 0, placed: bool = True) -> Affine:
    return Affine(
        bits=8, signed=True, scale=np.array(scales), zero_point=np.zeros(len(scales)), axis=axis, placed=placed
    )


def test_every_property_is_named_and_the_worst_of_many_scales_is_shown() -> None:
    assert compare_values(grid(), grid()) == () == compare_values(Float(dtype="float16"), Float(dtype="float16"))
    assert compare_values(grid(0.5), grid(0.25)) == (EntryChange(field="scale", first=0.5, second=0.25),)
    assert [c.field for c in compare_values(grid(), grid(bits=16, zero_point=3))] == ["dtype", "zero_point"]
    assert [c.field for c in compare_values(channels(1, 2), channels(1, 2, axis=1))] == ["axis"]
    assert [c.field for c in compare_values(channels(1, 2), channels(1, 2, 3))] == ["scale shape", "zero_point shape"]
    (change,) = compare_values(grid(), Float(dtype="float16"))
    assert str(change) == "type: uint8 per-tensor -> float16 per-tensor"
    eights = (Float8(dtype=f"float8{kind}", scale=np.asarray(1.0)) for kind in ("e5m2", "e4m3fn"))
    assert [c.field for c in compare_values(*eights)] == ["dtype"]
    (change,) = compare_values(channels(1, 2, 3), channels(1, 2.5, 5))
    assert change.field == "scale (2 of 3 differ; the most at 2)" and (change.first, change.second) == (3.0, 5.0)
    # Lists without an axis compare where their order is certain; tolerance is relative and for scales only.
    assert not compare_values(channels(1, 2, axis=None, placed=False), channels(1, 2))
    assert not compare_values(grid(1e-9), grid(1.0000001e-9), tolerance=1e-6)
    assert compare_values(grid(1e-9), grid(1.1e-9), tolerance=1e-6)
    assert compare_values(grid(zero_point=100), grid(zero_point=101), tolerance=0.5)


def test_the_description_counts_everything() -> None:
    found = describe_encodings(read_encodings(AIMET / "mlp/lpbq-w4a16.v1.0.0.encodings"), arrays=True)
    assert found["version"] == "1.0.0" and (found["counts"]["tensors"], found["counts"]["parameters"]) == (14, 5)
    assert found["counts"]["dtypes"] == {"int4": 5, "uint16": 9} and found["counts"]["kinds"]["lpbq"] == 5
    rows = {row["name"]: row for row in found["tensors"]}
    assert rows["fc1.weight"]["decompressed_bitwidth"] == 8 and rows["fc1.weight"]["block_scale"] == [6.0, 16.0]
    assert rows["logits"]["bitwidth"] == 16 and rows["logits"]["zero_point"] == [28436.0, 28436.0]
    floats = describe_encodings(read_encodings(AIMET / "mlp/wfp8a8.v2.0.0.encodings"), arrays=True)
    assert len({row["name"]: row for row in floats["tensors"]}["fc1.weight"]["values"]["scale"]) == 48
    halves = describe_encodings(read_encodings(AIMET / "detr/fp16.v1.0.0.encodings"))["tensors"][0]
    assert (halves["name"], halves["kind"], halves["bitwidth"], halves["is_param"]) == ("images", "float", 16, False)


def test_the_same_grid_in_other_words() -> None:
    signed = grid(signed=True)
    unsigned = to_unsigned(signed)
    assert (unsigned.dtype, float(unsigned.zero_point)) == ("uint8", 128.0)
    assert np.array_equal(signed.minimum, unsigned.minimum) and np.array_equal(signed.maximum, unsigned.maximum)
    assert compare_values(signed, unsigned)
    assert not compare_values(signed, unsigned, grid_only=True)
    assert not compare_values(to_signed(unsigned), signed)
    assert to_signed(signed) is signed and to_unsigned(unsigned) is unsigned

"""Every way in which an encodings file can be wrong: one InputError that names the file and the entry."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.place import fit
from deploykit.errors import InputError
from tables import each_row

ITEM = {
    "bitwidth": 8,
    "dtype": "int",
    "is_symmetric": "False",
    "max": 15.5,
    "min": -10.0,
    "offset": -100.0,
    "scale": 0.1,
}
ITEM["max"] = (255 - 100) * 0.1
ITEM_OF_GRID = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "scale": 0.1}
WEIGHT = {"bitwidth": 8, "dtype": "int", "is_symmetric": "True", "offset": -128.0, "scale": 0.5}

V061: dict[str, Any] = {
    "version": "0.6.1",
    "activation_encodings": {"act": [ITEM]},
    "param_encodings": {"w": [WEIGHT, WEIGHT]},
}
V100: dict[str, Any] = {
    "version": "1.0.0",
    "activation_encodings": [
        {
            "bw": 8,
            "dtype": "INT",
            "enc_type": "PER_TENSOR",
            "is_sym": False,
            "name": "act",
            "offset": [-100],
            "scale": [0.1],
        }
    ],
    "param_encodings": [
        {
            "bw": 8,
            "compressed_bw": 4,
            "block_size": 16,
            "dtype": "INT",
            "enc_type": "LPBQ",
            "is_sym": True,
            "name": "w",
            "offset": [-128, -128],
            "per_block_int_scale": [1, 16, 2, 16],
            "scale": [0.5, 0.25],
        }
    ],
}
V200: dict[str, Any] = {
    "version": "2.0.0",
    "encodings": [
        {"name": "act", "output_dtype": "uint8", "y_scale": 0.1, "y_zero_point": 100},
        {"name": "w", "output_dtype": "int8", "y_scale": [0.5, 0.25], "axis": 0},
        {"name": "b", "output_dtype": "int4", "y_scale": [[0.5], [0.25]], "axis": 1, "block_size": 16},
        {
            "name": "l",
            "output_dtype": "int4",
            "per_block_int_scale": [[1, 2], [3, 16]],
            "per_channel_float_scale": [[0.5], [0.5]],
            "axis": 1,
            "block_size": 16,
        },
    ],
}


def put(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``base`` with the value at a dotted path replaced; REMOVE takes the key away."""
    document: dict[str, Any] = json.loads(json.dumps(base))  # unlike a deep copy, shares no item between two places
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    target: Any = document
    for step in parents:
        target = target[step]
    if value is REMOVE:
        del target[last]
    else:
        target[last] = value
    return document


REMOVE = object()

A = "activation_encodings.0"
P = "param_encodings.0"

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    # 0.6.1
    "061 nan scale": (put(V061, "activation_encodings.act.0.scale", float("nan")), "'act': the scale is nan"),
    "061 zero scale": (put(V061, "param_encodings.w.1.scale", 0), "scale is 0 at item 1"),
    "061 boolean symmetry": (
        put(V061, "activation_encodings.act.0.is_symmetric", True),
        "'act'[0].is_symmetric: Expected a string, got true or false",
    ),
    "061 absurd width": (
        put(V061, "activation_encodings.act.0.bitwidth", 4096),
        "'act'[0].bitwidth: Expected a whole number <= 32",
    ),
    "061 float width": (
        put(V061, "activation_encodings.act.0.bitwidth", 8.0),
        "'act'[0].bitwidth: Expected a whole number, got a number",
    ),
    "061 no scale": (put(V061, "activation_encodings.act.0.scale", REMOVE), "'act'[0]: missing is `scale`"),
    "061 offset off the grid": (
        put(V061, "activation_encodings.act.0.offset", 5.0),
        "does not lie on the grid of uint8",
    ),
    "061 null entry": (put(V061, "activation_encodings.act", None), "'act'"),
    "061 null item": (put(V061, "activation_encodings.act.0", None), "'act'[0]: Expected an object, got `null`"),
    "061 empty list": (put(V061, "activation_encodings.act", []), "'act': Expected a list of length >= 1"),
    "061 mixed widths": (put(V061, "param_encodings.w.1.bitwidth", 4), "differs between the items"),
    "061 mixed kinds": (put(V061, "param_encodings.w.1", {"bitwidth": 16, "dtype": "float"}), "'w'"),
    "061 unknown key": (
        put(V061, "activation_encodings.act.0.zero", 1),
        "'act'[0]: not a key of such an entry: `zero`",
    ),
    "061 min contradicts": (put(V061, "activation_encodings.act.0.min", -20.0), "'min' is -20"),
    "061 max is text": (
        put(V061, "activation_encodings.act.0.max", "15.5"),
        "'act'[0].max: Expected a number, got a string",
    ),
    "061 float32": (
        put(V061, "activation_encodings.act", [{"bitwidth": 32, "dtype": "float"}]),
        "'act'[0].bitwidth: Invalid enum value 32",
    ),
    "061 float with scale": (
        put(V061, "activation_encodings.act", [{"bitwidth": 16, "dtype": "float", "scale": 1.0}]),
        "'act'[0]: not a key of such an entry: `scale`",
    ),
    "061 two floats": (put(V061, "activation_encodings.act", [{"bitwidth": 16, "dtype": "float"}] * 2), "one item"),
    "061 name twice": (put(V061, "param_encodings.act", [WEIGHT]), "'act' has two entries"),
    "061 empty name": (put(V061, "param_encodings", {"": [WEIGHT]}), "without a tensor name"),
    "061 half a character": (put(V061, "param_encodings", {"\ud800": [WEIGHT]}), "half a character"),
    "061 section missing": (put(V061, "param_encodings", REMOVE), "'param_encodings' is missing"),
    "061 claims 1.0.0": (V061 | {"version": "1.0.0"}, "says version 1.0.0, but is laid out as version 0.6.1"),
    "061 with 2.0.0's section": (V061 | {"encodings": {}}, "'encodings' is a section of another version"),
    # 1.0.0
    "100 nan scale": (put(V100, f"{A}.scale", [float("nan")]), "'act': the scale is nan"),
    "100 lengths differ": (put(V100, f"{A}.offset", [-100, -100]), "'offset' has 2 items, but 'scale' has 1"),
    "100 two scales per tensor": (
        put(V100, f"{A}.scale", [0.1, 0.1]),
        "'act': 'offset' has 1 items, but 'scale' has 2",
    ),
    "100 scale is a number": (put(V100, f"{A}.scale", 0.1), "'act'.scale: Expected a list, got a number"),
    "100 null scale": (put(V100, f"{A}.scale", [None]), "'act'.scale[0]: Expected a number, got `null`"),
    "100 fractional offset": (put(V100, f"{A}.offset", [-100.5]), "holds a fraction"),
    "100 shift beyond a step": (put(V100, f"{A}.zero_point_shift", [1.0]), "'zero_point_shift'"),
    "100 float8": (put(V100, A, {"bw": 8, "dtype": "FLOAT", "enc_type": "PER_TENSOR", "name": "act"}), "must be 16"),
    "100 block without size": (
        put(V100, f"{A}.enc_type", "PER_BLOCK"),
        "'act': missing is `block_size`",
    ),
    "100 block size on a channel": (
        put(V100, f"{A}.block_size", 16),
        "'act': not a key of such an entry: `block_size`",
    ),
    "100 lpbq asymmetric": (put(V100, f"{P}.is_sym", False), "always symmetric"),
    "100 lpbq offset": (put(V100, f"{P}.offset", [-128, -127]), "'offset' must be 2 times -128"),
    "100 lpbq fractional block": (put(V100, f"{P}.per_block_int_scale", [1, 1.5, 2, 3]), "1.5 is not a whole number"),
    "100 lpbq uneven": (put(V100, f"{P}.per_block_int_scale", [1, 2, 3]), "not a multiple of the 2 channels"),
    "100 lpbq widths": (put(V100, f"{P}.compressed_bw", 8), "cannot be decompressed"),
    "100 no name": (put(V100, f"{A}.name", REMOVE), "activation_encodings[0]: missing is `name`"),
    "100 name in both sections": (put(V100, f"{P}.name", "act"), "'act' has two entries"),
    "100 object of 2.0.0": (put(V100, A, V200["encodings"][0]), "'act'"),
    "100 claims 2.0.0": (V100 | {"version": "2.0.0"}, "says version 2.0.0, but is laid out as version 1.0.0"),
    # 2.0.0
    "200 scale that overflows": (put(V200, "encodings.0.y_scale", 1e307), "beyond what a double can hold"),
    "100 lpbq scale that overflows": (put(V100, f"{P}.scale", [1e300, 1.0]), "beyond what a double can hold"),
    "200 infinite scale": (put(V200, "encodings.1.y_scale", [0.5, float("inf")]), "'w': the scale is inf at item 1"),
    "200 zero point off the grid": (put(V200, "encodings.0.y_zero_point", 256), "zero point 256 does not lie on"),
    "200 zero points differ": (put(V200, "encodings.1.y_zero_point", [0]), "but zero points of"),
    "200 list without axis": (put(V200, "encodings.1.axis", REMOVE), "no 'axis' says"),
    "200 null axis": (put(V200, "encodings.1.axis", None), "'w'.axis: Expected a whole number, got `null`"),
    "200 block axis out of range": (put(V200, "encodings.2.axis", 2), "axis 2 is out of range for 2 dimensions"),
    "200 flat blocks": (put(V200, "encodings.2.y_scale", [0.5, 0.5]), "must be nested"),
    "200 uneven blocks": (put(V200, "encodings.2.y_scale", [[0.5], [0.5, 0.25]]), "nested unevenly"),
    "200 uneven levels": (put(V200, "encodings.2.y_scale", [[0.5], 0.5]), "nested unevenly"),
    "200 empty blocks": (put(V200, "encodings.2.y_scale", [[], []]), "is empty"),
    "200 too deep": (put(V200, "encodings.2.y_scale", [[[[[[[[[0.5]]]]]]]]]), "deeper than"),
    "200 axis for one scale": (put(V200, "encodings.0.axis", 0), "must be a flat list"),
    "200 padded dtype": (put(V200, "encodings.0.output_dtype", "int08"), "'output_dtype'"),
    "200 float16": (put(V200, "encodings.0.output_dtype", "float16"), "'output_dtype' is 'float16'"),
    "200 float8 with a zero point": (put(V200, "encodings.0.output_dtype", "float8e5m2"), "must be left out or 0"),
    "200 unsigned lpbq": (put(V200, "encodings.3.output_dtype", "uint4"), "LPBQ weights are"),
    "200 lpbq without channels": (put(V200, "encodings.3.per_channel_float_scale", REMOVE), "is missing"),
    "200 lpbq shapes": (put(V200, "encodings.3.per_channel_float_scale", [[0.5]]), "the shape [2, 1] would fit"),
    "200 lpbq flat": (put(V200, "encodings.3.per_block_int_scale", [1, 2]), "'l'"),
    "200 scale object": (put(V200, "encodings.0.y_scale", {"x": 1}), "as from version 2.1.0 on"),
    "200 unknown key": (put(V200, "encodings.0.bw", 8), "'act': not a key of such an entry: `bw`"),
    "200 name twice": (put(V200, "encodings.1.name", "act"), "'act' has two entries"),
    "200 no scale": (put(V200, "encodings.0.y_scale", REMOVE), "'y_scale' is missing"),
    "200 encodings is null": (put(V200, "encodings", None), "'encodings' must be a list"),
    # the top
    "unknown version": (V200 | {"version": "3.0.0"}, "the version '3.0.0'"),
    "listed version": (V200 | {"version": ["2.0.0"]}, "the version a list"),
    "no version": (put(V200, "version", REMOVE), "no 'version'"),
    "producer of text": (V200 | {"producer": "me"}, "'producer' must be an object"),
}


def save(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@each_row(("document", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_content_is_refused(document: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(tmp_path, document)
    with pytest.raises(InputError) as caught:
        read_encodings(path)
    message = str(caught.value)
    assert str(path) in message and words in message
    assert caught.value.exit_status == 3


@pytest.mark.parametrize("document", [V061, V100, V200], ids=["0.6.1", "1.0.0", "2.0.0"])
def test_the_documents_that_were_broken_are_good(document: dict[str, Any], tmp_path: Path) -> None:
    assert len(read_encodings(save(tmp_path, document))) >= 2


OLD = "activation_encodings.act.0"

EDGES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "061 least width": (
        put(V061, "activation_encodings.act.0", {**WEIGHT, "bitwidth": 2, "offset": -2}),
        "act.bits",
        2,
    ),
    "061 greatest width": (
        put(V061, OLD, {**WEIGHT, "bitwidth": 32, "offset": -(2**31), "scale": 1e-9}),
        "act.bits",
        32,
    ),
    "061 least offset": (
        put(V061, OLD, {**ITEM_OF_GRID, "offset": -255}),
        "act.zero_point",
        255,
    ),
    "061 greatest offset": (
        put(V061, OLD, {**ITEM_OF_GRID, "offset": 0}),
        "act.zero_point",
        0,
    ),
    "061 signed offset": (V061, "w.zero_point", [0, 0]),
    "061 min a step away": (put(V061, f"{OLD}.min", -10.1), "act.zero_point", 100),
    "061 max a step away": (put(V061, f"{OLD}.max", 15.6), "act.zero_point", 100),
    "100 least shift": (put(V100, f"{A}.zero_point_shift", [0.0]), "act.zero_point", 100),
    "100 shift below a step": (put(V100, f"{A}.zero_point_shift", [0.75]), "act.zero_point", 99.25),
    "100 least width": (put(put(V100, f"{A}.bw", 2), f"{A}.offset", [-3]), "act.bits", 2),
    "100 greatest width": (put(put(V100, f"{A}.bw", 32), f"{A}.scale", [1e-9]), "act.bits", 32),
    "100 least block": (put(V100, f"{P}.block_size", 1), "w.block_size", 1),
    "100 least block scale": (put(V100, f"{P}.per_block_int_scale", [1, 1, 1, 1]), "w.block_size", 16),
    "100 float": (
        put(V100, A, {"bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR", "name": "act"}),
        "act.dtype",
        "float16",
    ),
    "100 block": (
        put(put(V100, f"{A}.enc_type", "PER_BLOCK"), f"{A}.block_size", 1),
        "act.block_size",
        1,
    ),
    "200 greatest zero point": (put(V200, "encodings.0.y_zero_point", 255), "act.zero_point", 255),
    "200 least zero point": (put(V200, "encodings.0.y_zero_point", 0), "act.zero_point", 0),
    "200 least block": (put(V200, "encodings.2.block_size", 1), "b.block_size", 1),
    "200 block axis from behind": (put(V200, "encodings.2.axis", -2), "b.block_axis", 0),
    "200 last block axis": (V200, "b.block_axis", 1),
    "200 the other axis has the channels": (V200, "b.axis", 0),
    "200 nearest axis": (put(V200, "encodings.1.axis", -64), "w.axis", -64),
    "200 farthest axis": (put(V200, "encodings.1.axis", 64), "w.axis", 64),
    "200 least lpbq block": (put(V200, "encodings.3.block_size", 1), "l.block_size", 1),
    "200 lpbq along the first axis": (
        put(put(V200, "encodings.3.axis", 0), "encodings.3.per_channel_float_scale", [[0.5, 0.5]]),
        "l.axis",
        1,
    ),
}
"""What lies just inside of what is allowed, and what becomes of it: (document, entry and property, value)."""


@each_row(("document", "what", "expected"), EDGES.values(), ids=EDGES.keys())
def test_what_is_just_allowed_is_read(document: dict[str, Any], what: str, expected: Any, tmp_path: Path) -> None:
    name, key = what.split(".")
    found = getattr(read_encodings(save(tmp_path, document)).entries[name].value, key)
    assert np.asarray(found).tolist() == expected


def test_a_negative_zero_is_a_zero(tmp_path: Path) -> None:
    value = read_encodings(save(tmp_path, put(V200, "encodings.0.y_zero_point", -0.0))).entries["act"].value
    assert not np.signbit(getattr(value, "zero_point"))  # noqa: B009


SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "length": ({"w": (3, 2)}, "2 scales for axis 0, which is 3 long in 3 x 2"),
    "axis": ({"w": ()}, "axis 0 is out of range for 0 dimensions"),
    "blocks": ({"b": (2, 32)}, "1 blocks of 16 for axis 1, which is 32 long"),
    "rank": ({"b": (2, 16, 1)}, "scales of 2 dimensions for a tensor of shape 2 x 16 x 1"),
    "channels": ({"b": (3, 16)}, "2 scales for axis 0, which is 3 long"),
    "lpbq": ({"l": (2, 16)}, "2 blocks of 16"),
}


@each_row(("shapes", "words"), SHAPES.values(), ids=SHAPES.keys())
def test_lengths_must_match_the_axis(shapes: dict[str, tuple[int, ...]], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        for name, shape in shapes.items():
            fit(read_encodings(save(tmp_path, V200)).entries[name], shape, "w.encodings")
    assert words in str(caught.value) and "w.encodings" in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def leaves(document: Any, path: str = "") -> list[str]:
    items = document.items() if isinstance(document, dict) else enumerate(document)
    found = []
    for key, value in items:
        here = f"{path}.{key}" if path else str(key)
        found.append(here)
        if isinstance(value, dict | list):
            found += leaves(value, here)
    return found


@settings(max_examples=150, deadline=None)
@given(base=st.sampled_from([V061, V100, V200]), data=st.data(), value=JSON)
def test_any_value_anywhere_reads_or_is_refused(
    base: dict[str, Any], data: st.DataObject, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = put(base, data.draw(st.sampled_from(leaves(base))), value)
    path = tmp_path_factory.mktemp("any") / "w.encodings"
    path.write_text(json.dumps(document), encoding="utf-8")
    try:
        read_encodings(path)
    except InputError as error:
        assert str(path) in str(error)


@settings(max_examples=60, deadline=None)
@given(
    cut=st.integers(0, 3000), mangle=st.sampled_from([lambda b: b, lambda b: b[::-1], lambda b: b.replace(b'"', b"'")])
)
def test_any_prefix_is_refused(
    cut: int, mangle: Callable[[bytes], bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = json.dumps(V100).encode()
    path = tmp_path_factory.mktemp("cut") / "w.encodings"
    path.write_bytes(mangle(data[: cut % len(data)]))
    with pytest.raises(InputError):
        read_encodings(path)

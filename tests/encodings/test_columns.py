"""Thousands of entries read as columns are what the reader of single entries makes of each, its refusals included."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.formats import v061, v100, v200
from deploykit.encodings.formats.reading import parse_encodings
from deploykit.encodings.values import Affine
from deploykit.errors import InputError
from deploykit.tables.reading import parse_json

PLAIN: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "1.0.0": (
        v100,
        {
            "name": "t",
            "enc_type": "PER_TENSOR",
            "dtype": "INT",
            "bw": 8,
            "is_sym": False,
            "scale": [0.5],
            "offset": [-3],
        },
    ),
    "0.6.1": (
        v061,
        {
            "bitwidth": 8,
            "dtype": "int",
            "is_symmetric": "False",
            "scale": 0.5,
            "offset": -3,
            "min": -1.5,
            "max": 126.0,
        },
    ),
    "2.0.0": (v200, {"name": "t", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 3}),
}

NUMBERS = [0, -0.0, 1, -1, 2, 8, 16, 32, 33, 0.5, -3, -3.5, 255, 256, -128, -32768, 65535, 1e-45, 1e300, 1e308, 1 << 60]
ODD: list[Any] = [
    *NUMBERS,
    *([number] for number in NUMBERS),
    True,
    None,
    "8",
    "",
    "PER_CHANNEL",
    "True",
    "int4",
    "uint40",
]
ODD += [[], [1, 2], [True], ["1"], {}, "FLOAT", "float", "int", "float8e4m3fn", "absent"]


def document(version: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """A file with these entries; in 0.6.1 each has the name of its position."""
    if version == "2.0.0":
        return {"version": version, "encodings": entries}
    if version == "1.0.0":
        return {"version": version, "activation_encodings": entries, "param_encodings": []}
    named = {f"t{i}": [entry] for i, entry in enumerate(entries)}
    return {"version": version, "activation_encodings": named, "param_encodings": {}}


def outcome(given: dict[str, Any]) -> Any:
    """Everything that is read, or every word of the refusal."""
    try:
        encodings = parse_encodings(copy.deepcopy(given), where="file")
    except InputError as error:
        return (error.what, error.why, error.next)
    return [(entry.name, entry.is_param, *fields(entry.value)) for entry in encodings]


def fields(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Affine):
        return (repr(value),)
    arrays = [(a.dtype.str, a.shape, a.tobytes()) for a in (value.scale, value.zero_point)]
    return (value.bits, value.signed, value.symmetric, value.axis, value.block_size, value.placed, *arrays)


def singly(module: ModuleType, work: Callable[[], Any]) -> Any:
    """The work with no entry taken for an ordinary one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_plain", lambda _: None)
        return work()


@pytest.mark.parametrize("version", PLAIN)
def test_an_ordinary_entry_is_read_as_a_column(version: str) -> None:
    module, entry = PLAIN[version]
    seen = module._plain([entry] if version == "0.6.1" else entry)
    assert seen is not None
    given = document(version, [entry])
    assert outcome(given) == singly(module, lambda: outcome(given))


@pytest.mark.parametrize("version", PLAIN)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_columns_and_single_entries_agree(version: str, data: st.DataObject) -> None:
    module, entry = PLAIN[version]
    entries = []
    for index in range(3):
        changed = {**copy.deepcopy(entry)} | ({"name": f"t{index}"} if "name" in entry else {})
        for key in data.draw(st.lists(st.sampled_from(sorted(changed)), max_size=2, unique=True)):
            value = data.draw(st.sampled_from(ODD))
            changed = {k: v for k, v in changed.items() if k != key} | ({} if value == "absent" else {key: value})
        entries.append(changed)
    given = document(version, entries)
    assert outcome(given) == singly(module, lambda: outcome(given))


def test_each_entry_has_numbers_of_its_own() -> None:
    """A change of one array must not reach another entry's, nor keep the numbers of a whole file alive."""
    entries = [{**PLAIN["1.0.0"][1], "name": f"t{index}"} for index in range(2)]
    first, second = parse_encodings(document("1.0.0", entries), where="file")
    assert isinstance(first.value, Affine) and isinstance(second.value, Affine)
    assert first.value.scale.base is None and not np.shares_memory(first.value.scale, second.value.scale)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 2}}',
        '[{"a": 1}, {"a": 1, "a": 1}]',
        '[1, {"a": 1, "a": 1}]',
        '{"a:": 1, "a:": 2}',
        '{"a": ":", "a": 2}',
        '{"a": "\\u003a", "a": 2}',
        '{"a\\u003A": 1, "b": 1, "b": 2}',
    ],
)
def test_a_key_that_occurs_twice_is_found_wherever_it_stands(text: str) -> None:
    with pytest.raises(InputError, match="occurs twice"):
        parse_json(text.encode(), where="file")


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(alphabet='a:\\"u03A ', max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="ab:", max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_what_says_no_key_twice_is_read_as_it_is(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert parse_json(text.encode(), where="file") == value


@settings(max_examples=300, deadline=None)
@given(
    bits=st.integers(2, 32),
    signed=st.booleans(),
    scale=st.floats(1e-300, 1e290),
    zero=st.floats(-300, 300),
    symmetric=st.sampled_from([True, False, None]),
)
def test_a_grid_of_one_scale_is_written_as_one_in_an_array(
    bits: int, signed: bool, scale: float, zero: float, symmetric: bool | None
) -> None:
    common: dict[str, Any] = {"bits": bits, "signed": signed, "symmetric": symmetric}
    single = Affine(scale=np.asarray(scale), zero_point=np.asarray(zero), **common)
    several = Affine(scale=np.asarray([scale]), zero_point=np.asarray([zero]), axis=0, **common)
    for module in (v061, v100):
        one, other = module.format_value(single), module.format_value(several)
        if module is v100:
            assert (one.pop("enc_type"), other.pop("enc_type")) == ("PER_TENSOR", "PER_CHANNEL")
        assert json.dumps(one) == json.dumps(other)

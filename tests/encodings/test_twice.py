"""What stands twice in a file of encodings is refused, wherever it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import InputError
from deploykit.tables.reading import parse_json
from tables import each_row

DROPS = {
    "a key of an entry": b'{"version": "2.0.0", "encodings": [{"name": "a", "output_dtype": "int8", "y_scale": 1, '
    b'"y_scale": 2}]}',
    "a tensor": b'{"version": "0.6.1", "param_encodings": {}, "activation_encodings": {"a": [], "a": []}}',
    "a section": b'{"version": "2.0.0", "encodings": [], "encodings": []}',
    "a key within what is kept": b'{"version": "2.0.0", "encodings": [], "x": {"a": 1, "a": 2}}',
    "a key written with an escape": b'{"version": "2.0.0", "encodings": [], "a\\u003ab": 1, "a:b": 2}',
}


@pytest.mark.parametrize("data", DROPS.values(), ids=DROPS.keys())
def test_nothing_that_occurs_twice_is_dropped(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.encodings"
    path.write_bytes(data)
    with pytest.raises(InputError, match="occurs twice"):
        read_encodings(path)


@each_row(
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

"""Text that is indented afterwards is the text that Python's encoder writes indented."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.system import indenting
from deploykit.system.indenting import indented

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@settings(max_examples=200, deadline=None)
@given(value=VALUES, plain=st.booleans())
def test_it_is_what_the_encoder_writes(value: Any, plain: bool) -> None:
    wanted = json.dumps(value, indent=1, ensure_ascii=plain)
    assert indented(json.dumps(value, ensure_ascii=plain)) == wanted


@pytest.mark.parametrize("value", [{}, [], {"a": {}, "é": [[], {}]}, 'a "quote"\\ ,:[]{}', 1e300, 10**400, -0.0])
def test_without_the_library_too(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indenting, "typed_json", lambda: None)
    for plain in (True, False):
        assert indented(json.dumps(value, ensure_ascii=plain)) == json.dumps(value, indent=1, ensure_ascii=plain)


def test_half_a_letter_is_left_to_whoever_writes_the_file() -> None:
    assert indented(json.dumps(["\ud800"], ensure_ascii=False)) == '[\n "\ud800"\n]'

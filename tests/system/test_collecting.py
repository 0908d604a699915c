"""Python's collector runs seldom inside a command, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from deploykit.system.collecting import collecting_seldom


def test_it_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with collecting_seldom():
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled() and gc.get_threshold()[1:] == before[1:]
    assert gc.get_threshold() == before


def test_after_a_failure_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no"), collecting_seldom():
        raise ValueError("no")
    assert gc.get_threshold() == before

"""Forty small models of many kinds, for whoever asks for a ``sample`` or for all ``models``."""

from __future__ import annotations

import pytest

from . import pictures, words
from .sketches import MODELS, Sample

DRAWN = (pictures, words)
"""Importing them enters their models, in this order."""

EVERY = 5
"""The quick run takes every fifth model, the heavy one all."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per model for whoever asks for a ``sample``; all at once for ``models``."""
    if "sample" in metafunc.fixturenames:
        cases = [
            pytest.param(model, id=model.name, marks=() if place % EVERY == 0 else pytest.mark.heavy)
            for place, model in enumerate(MODELS)
        ]
        metafunc.parametrize("sample", cases)


@pytest.fixture
def models() -> list[Sample]:
    """All forty."""
    return MODELS

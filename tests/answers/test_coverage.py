"""Every option, key, method and metric that ``data/compat_words.md`` names has an answer with a source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.backend.plugins import load_backends

PAGE = Path(__file__).parents[2] / "tests/data/compat_words.md"
SECTIONS = dict(part.partition("\n")[::2] for part in PAGE.read_text("utf-8").split("\n## ")[1:])


def words(section: str) -> list[str]:
    return re.findall(r"`([^`]+)`", SECTIONS[section])


def names(row: Any, word: str) -> bool:
    """True where an answer speaks of the word, and not of a longer one that it is a part of (``mAP``: mapped)."""
    told = " ".join((row.feature, *row.words, row.note, row.contradicts))
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", told, re.IGNORECASE) is not None


@pytest.fixture(scope="module", autouse=True)
def rows_made_once() -> Iterator[None]:
    """The rows of a backend are the same for every word, and making them takes a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        for backend in load_backends():
            rows = tuple(backend.compat())
            patch.setattr(type(backend), "compat", lambda self, rows=rows: rows)
        yield


EVERY = [pytest.param(1, marks=pytest.mark.heavy, id="all"), pytest.param(12, id="some")]


@pytest.mark.parametrize("step", EVERY)
def test_every_word_has_a_sourced_answer(step: int) -> None:
    found = [word for section in SECTIONS for word in words(section)]
    assert len(found) > 100
    for word in found[::step]:
        rows = deploykit.compat(word).rows
        known = [row for row in rows if row.source and row.confidence is not None and row.status != "unknown"]
        assert any(names(row, word) for row in known), word


def test_a_word_that_nobody_knows_is_not_answered() -> None:
    """Else the test above could not fail."""
    assert not [row for row in deploykit.compat("flibbertigibbet").rows if row.status != "unknown"]


def test_what_the_quantizer_s_options_run_is_said_with_the_method() -> None:
    (row,) = [row for row in deploykit.compat("SeqMSE").rows if row.feature == "seq-mse"]
    assert "--option seq_mse=" in row.note
    from deploykit_qualcomm.aimet import AIMET
    from deploykit_qualcomm.tables import tables

    named = {method.option for method in tables().methods} - {""}
    assert named <= {spec.name for spec in AIMET.options()}

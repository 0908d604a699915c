"""A row behind an earlier choice that was close is not lost; one that was clearly chosen is."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.accuracy.judge.near_choices import barely_chosen
from deploykit.accuracy.judge.rows import Chosen, Flat

CELLS, QUERIES, CLASSES = 50, 10, 3
INNER = Chosen(index="i", axis=1, size=CELLS)
ROWS = Chosen(index="best", axis=1, size=QUERIES * CLASSES, of=Flat(parts=((INNER, QUERIES), (None, CLASSES))))
VALUES = {"i": "v"}


def _side(cells: list[int], scores: np.ndarray) -> dict[str, np.ndarray]:
    """Every query's first class is a row."""
    best = np.arange(QUERIES) * CLASSES
    return {"i": np.asarray([cells]), "v": scores[None].astype(np.float32), "best": best[None]}


SCORES = np.linspace(1.0, 0.1, QUERIES)


def test_the_last_of_a_close_choice_was_barely_chosen() -> None:
    one = _side(list(range(QUERIES)), SCORES)
    two = _side([*range(QUERIES - 1), 40], SCORES + np.linspace(-0.02, 0.02, QUERIES))
    found = barely_chosen(ROWS, one, two, VALUES)
    assert found is not None
    assert np.flatnonzero(found).tolist() == [QUERIES - 1]


def test_the_first_was_not() -> None:
    one = _side(list(range(QUERIES)), SCORES)
    two = _side([40, *range(1, QUERIES)], SCORES + np.linspace(-0.02, 0.02, QUERIES))
    found = barely_chosen(ROWS, one, two, VALUES)
    assert found is not None
    assert not found.any()


def test_where_everything_moved_only_half_a_spread_is_close() -> None:
    one = _side(list(range(QUERIES)), SCORES)
    two = _side([*range(6), 40, 41, 42, 43], SCORES[::-1])
    found = barely_chosen(ROWS, one, two, VALUES)
    assert found is not None
    close = SCORES.min() + 0.5 * SCORES.std() >= SCORES
    assert np.flatnonzero(found).tolist() == [q for q in range(6, QUERIES) if close[q]]
    assert 0 < found.sum() < 4


@pytest.mark.parametrize("missing", ["i", "v"])
def test_what_nobody_shows_is_unknown(missing: str) -> None:
    one = _side(list(range(QUERIES)), SCORES)
    two = {name: value for name, value in one.items() if name != missing}
    assert barely_chosen(ROWS, one, two, VALUES) is None


def test_sides_that_share_little_did_not_choose_the_same() -> None:
    one = _side(list(range(QUERIES)), SCORES)
    two = _side([*range(4), 40, 41, 42, 43, 44, 45], SCORES)
    assert barely_chosen(ROWS, one, two, VALUES) is None

"""What every release that can be run does with the same models is still as evidence/compilers.md shows it: a sample.

After a change that is wanted, for one release, one model, or all of them where toolchains are installed:

    DEPLOYKIT_WRITE_DOCS=1 pytest -m "" -n 0 tests/lab/test_releases.py -k "2.36.1 and detr or page"
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from releases.cells import RELEASES, Cell, at_hand, cell, keep, recorded
from releases.page import table
from releases.subjects import SUBJECTS, asked

PAGE = Path(__file__).parents[2] / "tests" / "lab" / "evidence" / "compilers.md"
START, END = "<!-- recorded by tests/lab/test_releases.py -->\n", "<!-- end of what is recorded -->"
WRITES = bool(os.environ.get("DEPLOYKIT_WRITE_DOCS"))
HOW = "run: DEPLOYKIT_WRITE_DOCS=1 pytest -m '' -n 0 tests/lab/test_releases.py"
SPREAD = 1.5
"""Decibels by which a result may move without the table being wrong: another processor rounds float32 another way."""

ALL = [(subject, release) for release in RELEASES for subject in SUBJECTS]
SAMPLE = [
    ("cnn/w8a8", "2.51.0"),
    ("mlp/lpbq-w4a16", "2.50.40"),
    ("detr/w8a16", "2.48.40"),
    ("zoo/tracker", "2.47.0"),
    ("cnn/w8a16", "2.36.1"),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("subject", "release"), ALL if WRITES else SAMPLE)
def test_a_cell_is_as_recorded(subject: str, release: str, tmp_path: Path) -> None:
    ready, host = at_hand(release)
    if not ready:
        pytest.skip(f"the compiler of {release} is not here: deploykit toolchain install htp-{release}")
    (tmp_path / "given").mkdir()
    made = cell(subject, release, asked(subject, tmp_path / "given"), host, tmp_path)
    if WRITES:
        keep([made], release)
    (was,) = [one for one in recorded() if (one.subject, one.release) == (subject, release)]
    assert outcome(made) == outcome(was), HOW
    assert dict(made.decibels) == pytest.approx(dict(was.decibels), abs=SPREAD), HOW


def outcome(one: Cell) -> tuple[object, ...]:
    """What must not change with the machine."""
    return one.answer, [name for name, _, _ in one.refused], bool(one.not_run)


def test_the_page_is_what_was_recorded() -> None:
    before, rest = PAGE.read_text("utf-8").split(START)
    _, after = rest.split(END)
    wanted = before + START + table(recorded()) + END + after
    if WRITES:
        PAGE.write_text(wanted, "utf-8")
    assert PAGE.read_text("utf-8") == wanted, HOW


def test_every_model_was_tried_on_every_release_that_runs_natively() -> None:
    """2.36.1, whose preparation is still being worked on, is recorded as far as it was asked for."""
    tried = {(one.subject, one.release) for one in recorded()}
    assert tried <= set(ALL)
    assert tried >= {(subject, release) for subject, release in ALL if release != "2.36.1"}
    assert tried >= set(SAMPLE)

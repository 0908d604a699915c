"""Error lines of public issues: no all-clear, and the right cause where the known errors can say it.

The files were gathered one after the other, each with other searches, and frozen before any row was changed for them.
Rows have since been written from most of them (``READ``), so that only the others say how well unseen issues are
answered; ``docs/diagnose.md`` has the figures of each at the time of freezing.
"""

from __future__ import annotations

import dataclasses
import io
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deploykit.answers.diagnosis import diagnose
from deploykit.backend.known_errors import Catalog, KnownError, general_errors, merge_catalogs
from deploykit_qualcomm.known_errors import known_errors as qualcomm_errors
from deploykit_vitis_ai.known_errors import known_errors as vitis_errors

LOGS = Path(__file__).parents[1] / "data" / "logs"
OTHER_LINES = (
    *("other_lines_first_issues", "other_lines_second_issues", "other_lines_third_issues"),
    *("fourteenth_issues_ort", "phones_first_issues", "phones_second_issues", "fourteenth_vendors_issues"),
)
"""Of threads that rows cite or that a file above holds, but other lines (the later ones: half of them); read."""
UNREAD = {"fourth_issues": (0.4, 0.7), "seventh_issues": (0.2, 0.5)}
"""The least share of right, and of right or general answers: floors below what was measured."""
READ = tuple(
    name
    for name in sorted(path.stem for path in LOGS.glob("*_issues*.toml"))
    if name not in OTHER_LINES and name not in UNREAD
)
SETS = (*READ, *OTHER_LINES, *UNREAD)
CATALOGS = (general_errors(), qualcomm_errors(), vitis_errors())
TRACKER = re.compile(r"(?:https://github\.com/)?([\w.-]+/[\w.-]+)(?:#|/issues/|/pull/)\d+")


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """Lines of an issue, what it says was wrong, and the rows that say so, or that are at least true of it."""

    url: str
    text: str
    means: str
    right: tuple[str, ...] = ()
    general: tuple[str, ...] = ()

    @property
    def tracker(self) -> str:
        found = TRACKER.match(self.url)
        assert found, self.url
        return found[1].lower()


def excerpts(name: str) -> list[Excerpt]:
    rows = tomllib.loads((LOGS / f"{name}.toml").read_text("utf-8"))["excerpt"]
    return [
        Excerpt(row["url"], row["text"], row["means"], tuple(row.get("right", ())), tuple(row.get("general", ())))
        for row in rows
    ]


def judged(excerpt: Excerpt, catalogs: Sequence[Catalog]) -> str:
    """``right``, ``general`` (true, but no cause), ``unknown``, ``wrong`` or ``all-clear``: what the first cause is."""
    diagnosis = diagnose(io.BytesIO(excerpt.text.encode()), catalogs)
    if diagnosis.conclusion == "finished":
        return "all-clear"
    if not diagnosis.causes:
        return "unknown"
    first = diagnosis.causes[0].error
    if first.id in excerpt.right:
        return "right"
    return "general" if first.id in excerpt.general or first.root != "cause" else "wrong"


def without(catalogs: Sequence[Catalog], told_only_by: str) -> list[Catalog]:
    """The catalogs without the rows that no other source than one tracker speaks of."""
    return [
        dataclasses.replace(catalog, errors=tuple(row for row in catalog.errors if _others(row, told_only_by)))
        for catalog in catalogs
    ]


def _others(row: KnownError, tracker: str) -> bool:
    found = [(source, TRACKER.match(source)) for source in row.source]
    return any(match is None or match[1].lower() != tracker for _, match in found)


def every_excerpt() -> Iterator[Excerpt]:
    for name in SETS:
        yield from excerpts(name)


@pytest.mark.parametrize("name", SETS)
def test_no_issue_is_all_clear_and_none_is_answered_wrongly(name: str) -> None:
    answers = {excerpt.url: judged(excerpt, CATALOGS) for excerpt in excerpts(name)}
    assert [url for url, answer in answers.items() if answer in {"all-clear", "wrong"}] == []


@pytest.mark.parametrize("name", (*READ, *OTHER_LINES))
def test_four_of_five_issues_get_their_cause(name: str) -> None:
    """Of those that say what was wrong: where the lines are only a general word, no row can know more."""
    answers = [judged(excerpt, CATALOGS) for excerpt in excerpts(name) if excerpt.right]
    assert answers.count("right") >= 0.8 * len(answers)


@pytest.mark.parametrize("name", UNREAD)
def test_what_the_unread_issues_get(name: str) -> None:
    """Rows may be changed, but not so that this falls."""
    found = Counter(judged(excerpt, CATALOGS) for excerpt in excerpts(name))
    right, true = UNREAD[name]
    assert found["right"] >= right * found.total()
    assert found["right"] + found["general"] >= true * found.total()


def test_the_rows_of_other_trackers_answer_most_of_a_tracker() -> None:
    """Each tracker's issues, judged without the rows that only this tracker speaks of."""
    trackers = {excerpt.tracker for excerpt in every_excerpt()}
    catalogs = {tracker: without(CATALOGS, tracker) for tracker in trackers}
    found = Counter(judged(excerpt, catalogs[excerpt.tracker]) for excerpt in every_excerpt())
    assert not found["all-clear"]
    # True sentences that nobody labelled count as wrong here.
    assert found["wrong"] <= 0.035 * found.total()
    assert found["right"] >= 0.45 * found.total()
    assert found["right"] + found["general"] >= 0.7 * found.total()


def test_every_named_row_exists() -> None:
    merged = merge_catalogs(CATALOGS)
    known = {row.id for row in merged.errors}
    speakers = ["line", *(speaker.id for speaker in merged.speakers)]
    known |= {f"{speaker}/{kind.id}" for speaker in speakers for kind in merged.kinds}
    named = {row for excerpt in every_excerpt() for row in (*excerpt.right, *excerpt.general)}
    assert named <= known


def test_no_block_stands_twice() -> None:
    """A thread may be quoted at several places, also by several readers, but no block of it counts twice."""
    blocks = [(excerpt.url.split("#")[0], excerpt.text.strip()) for excerpt in every_excerpt()]
    assert len(blocks) == len(set(blocks))


def rows_of(stage: str) -> int:
    return sum(row.stage == stage for catalog in CATALOGS for row in catalog.errors)


def test_there_are_rows_for_every_stage() -> None:
    assert sum(len(catalog.errors) for catalog in CATALOGS) >= 250
    for stage in ("convert", "quantize", "compile", "context-binary", "load", "run"):
        assert rows_of(stage) >= 10, stage
    for stage in ("evaluate", "speed"):
        assert rows_of(stage) >= 5, stage

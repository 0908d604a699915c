from dataclasses import replace
from typing import Any

import pytest

from deploykit.answers.capability_answers import Query, answer, releases_between, search
from deploykit.errors import UnknownTargetError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from stub_backend import ROW
from tables import each_row


def row(feature: str, status: str = "supported", since: str = "", until: str = "", **more: Any) -> CompatRow:
    base = replace(ROW, feature=feature, backend="one", status=Status(status), confidence=Confidence.OBSERVED)
    return replace(base, **{"since": since, "until": until, "family": "kit" if since else "", **more})


ROWS = (
    row("fast-mode", "unsupported", "1.0", "1.1", tool="maker"),
    row("fast-mode", "unknown", "1.2", "1.2", tool="maker", contradicts="others say 1.3"),
    row("fast-mode", "supported", "1.3", tool="maker"),
    row("fast-mode", "broken", "1.3", tool="runner", arch="a2"),
    row("fast-mode-deluxe", "supported", "1.3"),
    row("flag --go_fast", since="1.0", tool="maker", words=("-f", "--speedy")),
    row("flag --quick", "unsupported", "1.0", renamed_to="flag --go_fast"),
    row("key devices[].cores[].id", since="1.0", tool="file"),
    row("always", note="what holds for ever"),
    row("release 1.0", since="1.0", until="1.0"),
    row("release 1.2", since="1.2", until="1.2", note="a change"),
    row("release 1.2", since="1.2", until="1.2", note="another change"),
    row("release 1.3", since="1.3", until="1.3", note="a late change"),
    row("other-kit", since="7.0", family="other", backend="two"),
)


def features(words: str) -> list[str]:
    return [found.feature for found in search(ROWS, words.split())]


@each_row(
    ("words", "found"),
    ("--quick", ["flag --quick", "flag --go_fast"]),
    ("cores.id", ["key devices[].cores[].id"]),
    ("two", ["other-kit"]),
    ("holds for ever", ["always"]),
    ("no such thing", []),
)
def test_words_are_sought_in_old_spellings_backends_paths_and_last_in_notes(words: str, found: list[str]) -> None:
    assert features(words) == found


@each_row(
    ("sdk", "status", "by"),
    ("1.0", "unsupported", "1.0"),
    ("1.1", "unsupported", "1.0"),
    ("1.2.5", "unknown", "1.2"),
    ("1.3.0.99", "supported", "1.3"),
    ("1.9", "supported", "1.3"),
)
def test_the_state_at_a_release(sdk: str, status: str, by: str) -> None:
    found = answer(ROWS, Query(words=("fast-mode",), tool="maker", sdk=sdk))
    assert [(r.status, r.sdk) for r in found.rows] == [(status, by)]
    assert found.to_json()["sdk"] == {"requested": sdk, "answered_by": {"kit": by}}


def test_rows_without_releases_hold_at_every_release_and_all_of_one_release_are_kept() -> None:
    assert [r.feature for r in answer(ROWS, Query(words=("always",), sdk="1.2")).rows] == ["always"]
    assert [r.note for r in answer(ROWS, Query(words=("release",), sdk="1.2")).rows] == ["a change", "another change"]


@each_row("sdk", "0.9", "9.0", "abc", "1..2")
def test_a_release_that_no_table_covers(sdk: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        answer(ROWS, Query(words=("fast-mode",), sdk=sdk))
    assert caught.value.exit_status == 4


def test_the_releases_in_between_say_what_they_changed() -> None:
    notes = [r.note for r in releases_between(ROWS, "1.0", "1.3", Query())]
    assert notes == ["a change", "another change", "a late change"]
    assert releases_between(ROWS, "1.3", "1.3", Query()) == ()

"""Every known error of the built-in backends is found by its public fragment, among unrelated lines."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path

import pytest

from deploykit.answers.diagnosis import Diagnosis, diagnose
from deploykit.answers.diagnosis.fragments import fragment_of
from deploykit.backend.known_errors import Catalog, KnownError, general_errors
from deploykit_qualcomm.known_errors import known_errors as qualcomm_errors
from deploykit_vitis_ai.known_errors import known_errors as vitis_errors

LOGS = Path(__file__).parents[1] / "data" / "logs"
CATALOGS = {"general": general_errors(), "qualcomm": qualcomm_errors(), "vitis": vitis_errors()}


def excerpts(area: str) -> dict[str, list[str]]:
    """The lines by which each row of an area has to be found."""
    found: dict[str, list[str]] = dict(tomllib.loads((LOGS / "known_errors.toml").read_text("utf-8")).get(area, {}))
    for path in sorted((LOGS / "known" / area).glob("*.toml")):
        found |= {row: texts["seen"] for row, texts in tomllib.loads(path.read_text("utf-8")).items()}
    return found


def near_misses(area: str) -> list[tuple[str, str]]:
    """Rows, each with a line of like words that is none of theirs."""
    files = [tomllib.loads(path.read_text("utf-8")) for path in sorted((LOGS / "known" / area).glob("*.toml"))]
    return [(row, text) for file in files for row, texts in file.items() for text in texts["near"]]


EXCERPTS = {area: excerpts(area) for area in CATALOGS}
CASES = [(area, row) for area, rows in EXCERPTS.items() for row in rows]
NEAR = [(area, row, text) for area in CATALOGS for row, text in near_misses(area)]
UNRELATED = [
    f"{i * 3.7:8.1f}ms [ INFO ] layer {i} of block {i % 7}: shape [1, {i}, 384], converted" for i in range(400)
]


def among_unrelated(text: str) -> bytes:
    return "\n".join([*UNRELATED[:250], text, *UNRELATED[250:], ""]).encode()


def ids(diagnosis: Diagnosis) -> set[str]:
    follow_ups = {follow_up.error.id for cause in diagnosis.causes for follow_up in cause.follow_ups}
    return follow_ups | {cause.error.id for cause in diagnosis.causes}


@pytest.mark.parametrize(("area", "row"), CASES, ids=[f"{area}-{row}" for area, row in CASES])
def test_found_among_unrelated_lines(area: str, row: str) -> None:
    for text in EXCERPTS[area][row]:
        diagnosis = diagnose(io.BytesIO(among_unrelated(text)), CATALOGS[area])
        assert row in ids(diagnosis), text
        shown = [cause for cause in diagnosis.causes if cause.error.id == row]
        assert all(cause.first_line > 250 for cause in shown), text


def test_unrelated_lines_alone_are_no_all_clear() -> None:
    diagnosis = diagnose(io.BytesIO(among_unrelated("done")), list(CATALOGS.values()))
    assert not diagnosis.causes
    assert diagnosis.conclusion == "not-understood"
    assert diagnosis.exit_status == 1
    assert diagnosis.tail
    assert diagnosis.lines == len(UNRELATED) + 1


@pytest.mark.parametrize("area", sorted(CATALOGS))
def test_every_row_and_every_fragment_has_an_excerpt(area: str) -> None:
    catalog = CATALOGS[area]
    assert {row.id for row in catalog.errors if row.match} == set(EXCERPTS[area])
    for row in catalog.errors:
        text = "\n".join(EXCERPTS[area].get(row.id, ())).lower().encode()
        assert [part for part in row.match if not fragment_of(part).pattern.search(text)] == [], row.id


@pytest.mark.parametrize("area", sorted(CATALOGS))
def test_every_row_says_what_to_do_and_who_says_so(area: str) -> None:
    for row in CATALOGS[area].errors:
        assert row.cause, row.id
        assert row.workaround, row.id
        assert row.source, row.id
        assert row.stage, row.id
        assert row.tools, row.id


@pytest.mark.parametrize(("area", "row", "text"), NEAR, ids=[f"{row}-{i}" for i, (_, row, _) in enumerate(NEAR)])
def test_a_near_miss_is_not_claimed(area: str, row: str, text: str) -> None:
    assert row not in ids(diagnose(io.BytesIO(text.encode()), CATALOGS[area]))


def test_no_id_stands_for_two_rows() -> None:
    every = [row.id for catalog in CATALOGS.values() for row in catalog.errors]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(("area", "other"), [("qualcomm", "vitis"), ("vitis", "qualcomm")])
def test_an_excerpt_of_another_backend_is_not_claimed(area: str, other: str) -> None:
    """No fragment is so general that it finds the other vendor's excerpts."""
    text = "\n".join(text for texts in EXCERPTS[other].values() for text in texts)
    assert ids(diagnose(io.BytesIO(text.encode()), CATALOGS[area])) == set()


def test_rows_without_a_message_are_found_by_words() -> None:
    silent = [row for catalog in CATALOGS.values() for row in catalog.errors if not row.match]
    assert len(silent) == 17
    assert all(row.symptom for row in silent)


def row_of(catalog: Catalog, name: str) -> KnownError:
    return next(row for row in catalog.errors if row.id == name)


def test_sources_are_spelled_out() -> None:
    source = row_of(CATALOGS["qualcomm"], "zero-encodings").source
    assert source == ("user lab notes, QAIRT 2.48 / SM8750, public repository",)

"""Rows that are kept between runs: the same answers, as long as the files that they follow from stay the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest

from deploykit.answers import asking, kept_rows
from deploykit.answers.capability_answers import Query, answer
from deploykit.backend.plugins import load_backends
from deploykit.findings import Confidence
from deploykit.system.entries import cache_folder
from deploykit.tables.capabilities import CompatRow, Status
from stub_backend import StubBackend

ROW = CompatRow(
    feature="",
    backend="files",
    tool="",
    sdk="",
    status=Status.SUPPORTED,
    since="",
    until="",
    note="",
    source=("a test",),
    confidence=Confidence.REPORTED,
)


class FromFiles(StubBackend):
    """A backend with one file: a feature per line; it counts how often it was asked."""

    id = "files"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = 0

    def compat(self) -> Iterator[CompatRow]:
        self.asked += 1
        for line in (self.folder / "features").read_text("utf-8").splitlines():
            yield replace(ROW, feature=line)

    def answered_from(self) -> tuple[Path, ...]:
        return (self.folder,)


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FromFiles:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "features").write_text("speed\nnoise, loud\n", "utf-8")
    another_run(monkeypatch)
    return FromFiles(folder)


def another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that starts long after the last change."""
    kept_rows._seen.cache_clear()
    monkeypatch.setattr(kept_rows, "READ_FROM", time.time_ns() + 10 * kept_rows._SETTLED)


def features(backend: FromFiles) -> tuple[list[str], list[str]]:
    """What the index says and what the rows say."""
    shelf = kept_rows.shelf_of(cast("Any", backend))
    return list(shelf.features), [row.feature for row in shelf.rows()]


@cache
def every_row() -> tuple[CompatRow, ...]:
    """What the installed backends say, asked of themselves."""
    return tuple(row for backend in load_backends() for row in backend.compat())


def the_entry() -> Path:
    (path,) = (cache_folder() / "rows").iterdir()
    return path


def forge(old: bytes, new: bytes) -> None:
    """An entry whose digest is right, and whose content deploykit never wrote."""
    path = the_entry()
    data = path.read_bytes().partition(b"\n")[2]
    assert old in data
    path.write_bytes(sha256(data.replace(old, new)).hexdigest().encode() + b"\n" + data.replace(old, new))


def test_what_was_kept_is_not_asked_for_again(backend: FromFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features(backend)
    another_run(monkeypatch)
    assert features(backend) == first == (["speed", "noise, loud"],) * 2
    assert backend.asked == 1


@pytest.mark.parametrize("change", ["edited", "added", "removed", "same size and time"])
def test_a_change_is_seen_at_once(backend: FromFiles, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    (backend.folder / "other").touch()
    features(backend)
    table = backend.folder / "features"
    if change == "edited":
        table.write_text("speed\n", "utf-8")
    elif change == "added":
        (backend.folder / "more").touch()
    elif change == "removed":
        (backend.folder / "other").unlink()
    else:
        times = (table.stat().st_atime_ns, table.stat().st_mtime_ns)
        table.write_text("peeds\nnoise, loud\n", "utf-8")
        os.utime(table, ns=times)
    another_run(monkeypatch)
    assert features(backend)[1] == table.read_text("utf-8").splitlines()
    assert backend.asked == 2


def test_what_changed_just_now_is_not_kept(backend: FromFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "READ_FROM", time.time_ns())
    assert features(backend) == features(backend)
    assert backend.asked == 2
    assert not cache_folder().exists()


def test_without_the_cache_nothing_is_kept(backend: FromFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_NO_CACHE", "1")
    assert features(backend) == features(backend)
    assert backend.asked == 2
    assert not cache_folder().exists()


def test_where_nothing_can_be_kept_the_answer_is_the_same(backend: FromFiles, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file where the folder would be")
    assert features(backend) == features(backend) == (["speed", "noise, loud"],) * 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'["speed"', b'["speed'),  # no JSON
        (b'["speed","files"', b'["speed"'),  # no row
        (b'"supported"', b'"splendid"'),
        (b'{"features":["speed",', b'{"features":['),  # not as many as there are rows
        (b'{"features"', b'{"feature"'),
        (b'{"features":["speed"', b'{"features":[7'),  # no word
    ],
)
def test_an_entry_that_deploykit_did_not_write_is_none(
    backend: FromFiles, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes
) -> None:
    first = features(backend)
    forge(old, new)
    another_run(monkeypatch)
    assert features(backend) == first


def test_a_damaged_entry_is_none(backend: FromFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features(backend)
    path = the_entry()
    path.write_bytes(path.read_bytes()[:-5])
    another_run(monkeypatch)
    assert features(backend) == first
    assert backend.asked == 2


@pytest.mark.parametrize(
    "words",
    [
        ("lpbq",),
        ("float", "fallback"),
        ("float_fallback",),
        ("--act_bw",),
        ("op", "GridSample"),
        ("v2",),
        ("encodings", "2.0.0"),
        ("converter",),
        ("a word that is nowhere",),
        ("refuses",),
        ("-",),
        (),
    ],
)
@pytest.mark.parametrize("filters", [{}, {"tool": "quark"}, {"archs": ("v75",)}, {"backends": ("ort-qnn",)}])
def test_the_rows_that_words_name_answer_as_all_rows_do(words: tuple[str, ...], filters: dict[str, Any]) -> None:
    query = Query(words=words, **filters)
    assert asking._answered(query) == answer(every_row(), query)


def test_the_backends_here_say_what_their_rows_follow_from() -> None:
    for backend in load_backends():
        assert Path(sys.modules[type(backend).__module__].__file__ or "").parent in backend.answered_from()

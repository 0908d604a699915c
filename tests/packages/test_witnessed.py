"""A digest is remembered for a large file that nobody wrote to, and for nothing else."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from deploykit.backend.backend import CopiedFile
from deploykit.errors import InputError
from deploykit.packages import manifests as module
from deploykit.packages.manifests import Look, Witnessed
from deploykit.packages.verifying import verify_package
from deploykit.packages.writing import PackageWriter

LIE = (4, "not the digest")
"""A remembered answer that reading the file would never give."""


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 4)


def old(path: Path, content: bytes = b"abcd") -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    return path


def later(monkeypatch: pytest.MonkeyPatch, seconds: float = 10) -> None:
    """The clock is that much ahead and stands; the file system's is not."""
    now = time.time_ns() + int(seconds * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: now)


def test_an_untouched_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    later(monkeypatch)
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    assert seen.hash(path) == LIE


def test_a_file_written_to_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    later(monkeypatch)
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    old(path, b"efgh")  # the same size, and the time of the last write as before
    assert seen.hash(path) == (4, hashlib.sha256(b"efgh").hexdigest())


def test_a_file_written_to_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    assert seen.hash(path) != LIE


def test_an_old_file_whose_names_changed_a_moment_ago_waits_for_the_clock_only(tmp_path: Path) -> None:
    path = old(tmp_path / "a")
    (tmp_path / "b").hardlink_to(path)  # as `--link` gives it names, and whoever deletes the package takes them away
    if not path.stat().st_ctime_ns % 10_000_000:
        pytest.skip("the times of this disk are coarse")
    assert not Look.at(path.stat()).settled
    time.sleep(0.2)
    assert Look.at(path.stat()).settled


def test_times_of_whole_seconds_are_trusted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 1_700_000_000
    times = SimpleNamespace(st_mtime_ns=second * 10**9, st_ctime_ns=second * 10**9)
    status = cast("os.stat_result", times)
    monkeypatch.setattr(time, "time_ns", lambda: (second + 1) * 10**9)
    assert not Look.at(status).settled
    monkeypatch.setattr(time, "time_ns", lambda: (second + 3) * 10**9)
    assert Look.at(status).settled


def test_a_long_reading_does_not_settle_what_was_written_just_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    before = Look.at(path.stat())
    later(monkeypatch)
    seen.note_read(before, path.stat(), *LIE)
    assert seen.hash(path) != LIE


def test_a_file_that_changed_while_it_was_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    later(monkeypatch)
    before = Look.at(path.stat())
    old(path, b"efgh")
    seen.note_read(before, path.stat(), *LIE)
    assert seen.hash(path) != LIE


def test_a_small_file_is_read_each_time(tmp_path: Path) -> None:
    path, seen = old(tmp_path / "a", b"abc"), Witnessed()
    seen.note_written(path, 3, "not the digest")
    assert seen.hash(path) == (3, hashlib.sha256(b"abc").hexdigest())


def test_a_file_larger_than_it_is_said_to_be_is_refused_as_before(tmp_path: Path) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    seen.note_written(path, *LIE)
    with pytest.raises(InputError):
        seen.hash(path, size=3)


def test_a_package_tampered_with_before_it_is_checked_does_not_verify(tmp_path: Path) -> None:
    source = old(tmp_path / "weights", b"0123456789")
    with PackageWriter(tmp_path / "out") as writer:
        writer.add([CopiedFile(path="model/weights", source=source)])
        writer.seal({"schema": 1, "deploykit": "0.1.0", "backend": "qnn-htp"})
        (writer.folder / "model/weights").write_bytes(b"9876543210")
        report = verify_package(writer.folder, witnessed=writer.witnessed)
        assert [check.id for check in report.checks if not check.ok] == ["files-unchanged"]
        writer.publish()

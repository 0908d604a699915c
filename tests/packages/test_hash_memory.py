"""What was read once is not read again unless it may have changed."""

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from deploykit.backend.backend import CopiedFile
from deploykit.packages import manifests as module
from deploykit.packages.manifests import HashMemory, Look
from deploykit.packages.verifying import verify_package
from deploykit.packages.writing import PackageWriter
from tables import each_row

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


def test_a_file_written_to_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = old(tmp_path / "a"), HashMemory()
    later(monkeypatch)
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    old(path, b"efgh")  # the same size, and the time of the last write as before
    assert seen.hash(path) == (4, hashlib.sha256(b"efgh").hexdigest())


def test_a_file_written_to_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    path, seen = old(tmp_path / "a"), HashMemory()
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    assert seen.hash(path) != LIE


@each_row(
    ("before", "linked", "size", "known"),
    ({}, False, 4, True),
    ({"st_ctime_ns": 1}, True, 4, True),  # another name changes the last time of a file, and nothing else
    ({"st_ctime_ns": 1}, False, 4, False),
    ({"st_mtime_ns": 2}, True, 4, False),
    ({}, False, 5, False),
)
def test_only_what_was_the_same_all_the_while_is_remembered(
    before: dict[str, int], linked: bool, size: int, known: bool, tmp_path: Path
) -> None:
    path, seen = old(tmp_path / "a"), HashMemory()
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    status = SimpleNamespace(**{name: getattr(path.stat(), name) for name in names} | before)
    look = Look(status=cast("os.stat_result", status), settled=True)
    seen.note_read(look, path.stat(), size, LIE[1], linked=linked)
    assert (seen.hash(path) == LIE) is known and seen.hash(path, size=9) != LIE


def test_times_of_whole_seconds_are_trusted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 1_700_000_000
    times = SimpleNamespace(st_mtime_ns=second * 10**9, st_ctime_ns=second * 10**9)
    status = cast("os.stat_result", times)
    monkeypatch.setattr(time, "time_ns", lambda: (second + 1) * 10**9)
    assert not Look.at(status).settled
    monkeypatch.setattr(time, "time_ns", lambda: (second + 3) * 10**9)
    assert Look.at(status).settled
    times.st_mtime_ns = (second + 2) * 10**9  # written after the last other change
    assert not Look.at(status).settled
    times.st_mtime_ns, times.st_ctime_ns = 0, (second + 3) * 10**9 - 100_000_001
    assert Look.at(status).settled, "a clock that tells more than hundredths is trusted after a tenth"
    times.st_ctime_ns += 1
    assert not Look.at(status).settled


def test_a_package_tampered_with_before_it_is_checked_does_not_verify(tmp_path: Path) -> None:
    source = old(tmp_path / "weights", b"0123456789")
    with PackageWriter(tmp_path / "out") as writer:
        writer.add([CopiedFile(path="model/weights", source=source)])
        writer.seal({"schema": 1, "deploykit": "0.1.0", "backend": "qnn-htp"})
        (writer.folder / "model/weights").write_bytes(b"9876543210")
        report = verify_package(writer.folder, witnessed=writer.witnessed)
        assert [check.id for check in report.checks if not check.ok] == ["files-unchanged"]
        writer.publish()

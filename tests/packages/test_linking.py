"""`--link`: a large file gets a second name, the package has the same bytes, and nothing else is given up for it."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from deploykit.backend.backend import CopiedFile
from deploykit.errors import PackageError
from deploykit.packages import manifests, writing
from deploykit.packages.verifying import verify_package
from deploykit.packages.writing import PackageWriter

CONTENT = b"weights" * 100


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_WORTH_LINKING", 16)
    monkeypatch.setattr(manifests, "_LARGE", 16)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.data"
    path.write_bytes(CONTENT)
    path.chmod(0o600)
    os.utime(path, ns=(1, 1))
    return path


@pytest.fixture
def told() -> list[str]:
    return []


def written(source: Path, out: Path, told: list[str], *, link: bool = True) -> PackageWriter:
    with PackageWriter(out, link=link, tell=told.append) as writer:
        writer.add([CopiedFile(path="model/model.data", source=source)])
        writer.seal({"schema": 1, "backend": "qnn-htp", "deploykit": "0"})
        writer.publish()
    return writer


def test_the_package_is_the_same_and_takes_no_room(source: Path, tmp_path: Path, told: list[str]) -> None:
    linked, copied = (written(source, tmp_path / name, told, link=name == "a") for name in "ab")
    assert linked.digest == copied.digest
    place = tmp_path / "a" / "model" / "model.data"
    assert place.stat().st_ino == source.stat().st_ino
    assert source.stat().st_mode & 0o777 == 0o600, "the user's file keeps its rights"
    assert len(told) == 1 and "changes the package" in told[0]


def test_what_is_written_to_the_source_later_is_found(source: Path, tmp_path: Path, told: list[str]) -> None:
    written(source, tmp_path / "p", told)
    with source.open("r+b") as file:
        file.write(b"W")
    found = {check.id: check for check in verify_package(tmp_path / "p").checks}
    assert not found["files-unchanged"].ok and "model/model.data" in found["files-unchanged"].detail


def test_a_link_is_followed(source: Path, tmp_path: Path, told: list[str]) -> None:
    name = tmp_path / "cache.data"
    name.symlink_to(source)
    written(name, tmp_path / "p", told)
    place = tmp_path / "p" / "model" / "model.data"
    assert not place.is_symlink() and place.read_bytes() == CONTENT


def test_another_disk_is_refused(
    source: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(_source: Path, _place: Path) -> bool:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", apart)
    with pytest.raises(PackageError, match="cannot be linked") as refused:
        written(source, tmp_path / "p", told)
    assert refused.value.why == "they lie on different file systems"
    assert not (tmp_path / "p").exists()


@pytest.mark.skipif(os.name == "nt", reason="there are no such rights")
def test_a_file_that_can_run_is_refused(source: Path, tmp_path: Path, told: list[str]) -> None:
    source.chmod(0o755)
    with pytest.raises(PackageError, match="may be executed"):
        written(source, tmp_path / "p", told)


def test_small_files_are_copied(tmp_path: Path, told: list[str]) -> None:
    small = tmp_path / "model.onnx"
    small.write_bytes(b"short")
    written(small, tmp_path / "p", told)
    assert (tmp_path / "p" / "model" / "model.data").stat().st_ino != small.stat().st_ino


def test_a_linked_file_is_read_once(
    source: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = source.stat().st_ctime_ns + 10_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    seen = written(source, tmp_path / "p", told).witnessed
    monkeypatch.setattr(manifests, "hash_file", lambda *_a, **_k: (0, "read again"))
    assert seen.hash(source) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    with source.open("r+b") as file:
        file.write(b"W")
    assert seen.hash(source) == (0, "read again")

"""What is copied is what is hashed, whichever way the system copies."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from deploykit.system import copying
from deploykit.system.copying import copy_hashed
from deploykit.system.files import open_regular

CONTENT = bytes(range(251)) * 40_000
"""Ten megabytes: several stretches of the size that the tests set."""


def copied(source: Path, target: Path) -> tuple[int, str]:
    with open_regular(source) as stream, target.open("w+b") as sink:
        return copy_hashed(stream, sink)


@pytest.mark.parametrize("length", [0, 1, (1 << 20) + 1, len(CONTENT)])
@pytest.mark.parametrize("inside", [True, False, "refused", "says nothing"])
def test_the_copy_has_the_bytes_and_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, inside: bool | str
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(copying, "_STRETCH", 3 << 20)
    if inside is False:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif inside is not True:
        monkeypatch.setattr(os, "copy_file_range", refused if inside == "refused" else lambda *_: 0, raising=False)
    (tmp_path / "source").write_bytes(CONTENT[:length])
    assert copied(tmp_path / "source", tmp_path / "copy") == (length, hashlib.sha256(CONTENT[:length]).hexdigest())
    assert (tmp_path / "copy").read_bytes() == CONTENT[:length]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    (tmp_path / "source").write_bytes(CONTENT)
    with pytest.raises(OSError, match="no space"):
        copied(tmp_path / "source", tmp_path / "copy")


def test_a_copy_that_somebody_shortens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(OSError, match="shortened"):
        copied(tmp_path / "source", tmp_path / "copy")


def test_a_file_that_grows_ends_where_it_was_when_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    monkeypatch.setattr(copying, "_STRETCH", 3 << 20)
    real = copying._copy

    def growing(*arguments: object) -> int:
        with (tmp_path / "source").open("ab") as more:
            more.write(b"more")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "_copy", growing)
    assert copied(tmp_path / "source", tmp_path / "copy") == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

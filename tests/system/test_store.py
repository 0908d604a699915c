"""Answers that are kept between runs."""

import io
import os
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from deploykit.system.store import Store, cache_folder, clear, code_digest, is_off, key_of, limit, rooms


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "here"))
    return tmp_path / "here"


def test_an_answer_is_found_again_by_another_run_unless_it_is_damaged(folder: Path) -> None:
    Store("kind").put("key", {"answer": [1, "two"]})
    assert Store("kind").get("key") == {"answer": [1, "two"]}
    assert Store("other kind").get("key") is None
    assert [path.name for path in (folder / "kind").iterdir()] == ["key.json"]
    for damaged in ("", "{", "[1]", "null", "\x00"):
        (folder / "kind" / "key.json").write_text(damaged, "utf-8")
        assert Store("kind").get("key") is None


def test_a_key_depends_on_the_content_and_on_what_was_asked() -> None:
    keys = {key_of(content, asked) for content in (b"a", b"b") for asked in ({"x": 1}, {"x": 2})}
    assert len(keys) == 4
    assert key_of(b"a", {"x": 1, "y": 2}) == key_of(b"a", {"y": 2, "x": 1})


def test_code_and_tables_of_a_folder_have_a_digest(tmp_path: Path) -> None:
    digests = set()
    for number, names in enumerate(((), ("a.py",), ("b.py",), ("a.py", "b.toml"), ("a.py", "c.txt"))):
        files(tmp_path / str(number), **dict.fromkeys(names, b"1"))
        digests.add(code_digest(tmp_path / str(number)))
    assert len(digests) == 4


def test_the_users_cache_folder_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DEPLOYKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "deploykit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parts[-2:] == (".cache", "deploykit")


KEY = "0" * 64
OTHER = "1" * 64


def files(folder: Path, **contents: bytes) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return list(contents)


def test_files_come_back_as_they_were(folder: Path, tmp_path: Path) -> None:
    store = Store("kind")
    (tmp_path / "made" / "inner").mkdir(parents=True)
    (tmp_path / "made" / "inner" / "b").write_bytes(b"\0\1")
    names = [*files(tmp_path / "made", a=b"text"), "inner/b"]
    store.keep(KEY, tmp_path / "made", names)
    assert store.take(KEY, tmp_path / "back")
    assert {name: (tmp_path / "back" / name).read_bytes() for name in names} == {"a": b"text", "inner/b": b"\0\1"}
    assert not store.take(OTHER, tmp_path / "none")


@pytest.mark.parametrize("place", [0, 70, -1])
def test_one_changed_byte_makes_files_no_answer(folder: Path, tmp_path: Path, place: int) -> None:
    store = Store("kind")
    store.keep(KEY, tmp_path / "made", files(tmp_path / "made", a=b"text"))
    entry = folder / "kind" / f"{KEY}.zip"
    data = bytearray(entry.read_bytes())
    data[place] ^= 1
    entry.write_bytes(data)
    assert not store.take(KEY, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_no_entry_writes_outside_of_its_folder(folder: Path, tmp_path: Path) -> None:
    """Whole and sealed, but of names that deploykit never writes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("../outside", b"!")
    store = Store("kind")
    store.put(OTHER, {})
    seal = sha256(made.getvalue()).hexdigest().encode()
    (folder / "kind" / f"{KEY}.zip").write_bytes(seal + b"\n" + made.getvalue())
    assert not store.take(KEY, tmp_path / "back")
    assert not (tmp_path / "outside").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs the rights of POSIX")
def test_a_folder_that_others_may_write_to_is_neither_read_nor_written(folder: Path) -> None:
    store = Store("kind")
    store.put(KEY, {"answer": 1})
    assert (folder / "kind").stat().st_mode & 0o777 == 0o700
    (folder / "kind").chmod(0o770)
    assert store.get(KEY) is None
    store.put(OTHER, {"answer": 2})
    (folder / "kind").chmod(0o700)
    assert store.get(KEY) == {"answer": 1} and store.get(OTHER) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs the rights of POSIX")
def test_a_folder_of_another_user_and_a_link_in_its_place_are_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("kind")
    store.put(KEY, {"answer": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: (folder / "kind").stat().st_uid + 1)
        assert store.get(KEY) is None
    assert store.get(KEY) is not None
    (folder / "kind").rename(tmp_path / "elsewhere")
    (folder / "kind").symlink_to(tmp_path / "elsewhere")
    assert store.get(KEY) is None


def test_what_was_not_used_for_the_longest_time_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, large = Store("kind"), {"answer": "x" * 1000}
    keys = [f"{number:064x}" for number in range(4)]
    for age, key in enumerate(keys[:3]):
        store.put(key, large)
        os.utime(folder / "kind" / f"{key}.json", ns=(age, age))
    assert store.get(keys[0]) == large  # used now: no longer the oldest
    monkeypatch.setenv("DEPLOYKIT_CACHE_LIMIT", "3500")
    store.put(keys[3], large)
    assert [store.get(key) is not None for key in keys] == [True, False, True, True]


def test_nothing_is_kept_beyond_the_limit_or_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("kind")
    store.put(KEY, {"answer": 1})
    for variable, value, entry in (("DEPLOYKIT_NO_CACHE", "1", {}), ("DEPLOYKIT_CACHE_LIMIT", "99", {"a": "x" * 1000})):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert (store.get(KEY) is None) is (variable == "DEPLOYKIT_NO_CACHE")
            store.put(OTHER, entry)
        assert store.get(KEY) == {"answer": 1} and store.get(OTHER) is None


def test_what_switches_off_and_what_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, off in {"": False, "0": False, "False": False, "NO": False, "1": True, "yes": True}.items():
        monkeypatch.setenv("DEPLOYKIT_NO_CACHE", word)
        assert is_off() is off, word
    for said, most in {
        "": 2 << 30,
        "99": 99,
        "many": 2 << 30,
        "-1": 2 << 30,
        os.fsdecode("²".encode()): 2 << 30,
    }.items():
        monkeypatch.setenv("DEPLOYKIT_CACHE_LIMIT", said)
        assert limit() == most, said


def test_clearing_deletes_entries_and_nothing_else(folder: Path) -> None:
    for kind in ("one", "two"):
        Store(kind).put(KEY, {"answer": 1})
    (folder / "toolchains" / "aimet").mkdir(parents=True)
    foreign = [folder / "one" / "notes.json", folder / "toolchains" / "aimet" / f"{KEY}.json", folder / f"{KEY}.json"]
    for path in foreign:
        path.write_text("{}", "utf-8")
    foreign.append(folder / "one" / f"{OTHER}.json")
    foreign[-1].symlink_to(foreign[0])
    size = 65 + len('{"answer": 1}')  # a digest and the end of its line
    assert [room.to_json() for room in rooms()] == [
        {"kind": kind, "entries": 1, "bytes": size} for kind in ("one", "two")
    ]
    assert [room.kind for room in clear()] == ["one", "two"]
    assert rooms() == ()
    assert all(path.exists() for path in foreign)


def test_a_user_whom_the_system_does_not_know_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DEPLOYKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    kept = Store("answers")
    kept.put("a" * 64, {"answer": 1})
    assert kept.get("a" * 64) is None
    assert rooms() == ()
    assert clear() == ()

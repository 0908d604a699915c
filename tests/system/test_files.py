"""Opening, copying and writing files; folders of a process's own; programs; values as JSON."""

import io
import json
import os
import signal
import socket
import sys
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import DeploykitError, InputError, PackageError, ToolError
from deploykit.findings.records import Published
from deploykit.system import folders
from deploykit.system.files import copy_hashed, open_regular, paths_below, read_regular, regular_size, write_files
from deploykit.system.folders import abandoned, discard, exchange, holding, scratch, workspace
from deploykit.system.jobs import Begun, Steps, prefixed
from deploykit.system.processes import run
from told import check_file


def told(error: DeploykitError, folder: Path) -> tuple[str, str, str]:
    texts = (error.what, error.why, error.next)
    what, why, then = (text.replace(str(folder), "HERE") for text in texts)
    return what, why, then


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")

    def refusal(question: str) -> list[str]:
        """``NAME LIMIT=VALUE``."""
        name, *words = question.split()
        asked = {key: json.loads(value) for key, value in (word.split("=") for word in words)}
        with pytest.raises(InputError) as refused:
            read_regular(tmp_path / name, **asked)
        return [*told(refused.value, tmp_path)]

    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(tmp_path)  # the name of a socket is short
        listening.bind("socket")
        os.chdir(here)
        check_file(Path(__file__).with_name("files.told"), refusal)


def test_a_file_of_the_size_that_is_asked_for_is_read_and_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link", size=4, limit=4) == b"text" and regular_size(tmp_path / "link") == 4
    with pytest.raises(InputError, match="no file name"):
        open_regular(tmp_path / "a\0b")
    sink = io.BytesIO()
    with open_regular(tmp_path / "file") as stream:
        assert copy_hashed(stream, sink) == (4, sha256(b"text").hexdigest())
    assert sink.getvalue() == b"text"
    with open_regular(tmp_path / "file") as opened:
        growing = io.BytesIO(b"text and what was written meanwhile")
        growing.fileno = opened.fileno  # type: ignore[method-assign]
        assert copy_hashed(growing, io.BytesIO()) == (4, sha256(b"text").hexdigest())


def test_paths_are_listed_with_folders_that_hold_nothing(tmp_path: Path) -> None:
    for name in ("b/file", "b/c/file", "a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    assert list(paths_below(tmp_path)) == ["a", "link", "b/file", "b/c/file"]
    assert list(paths_below(tmp_path, with_empty=True)) == ["a", "link", "b/file", "empty/", "b/c/file"]
    assert list(paths_below(tmp_path / "none")) == ["./"]


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.write_text("before")
    with pytest.raises(PackageError) as kept:
        write_files({one: "1", two: "2"}, force=False)
    assert told(kept.value, tmp_path) == (
        "HERE/two: exists and was kept",
        "",
        "name another file, or replace it with --force",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"] and two.read_text() == "before"
    write_files({one: "é\n", two: "2"}, force=True)
    assert (one.read_bytes(), two.read_text()) == ("é\n".encode(), "2")
    with pytest.raises(PackageError) as folder:
        write_files({tmp_path: ""}, force=True)
    assert told(folder.value, tmp_path) == ("HERE: is a folder", "", "name a file")
    with pytest.raises(PackageError) as lost:
        write_files({one: "new", tmp_path / "none/file": ""}, force=True)
    assert told(lost.value, tmp_path) == ("HERE/none/file: cannot be written", "No such file or directory", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"] and one.read_text() == "é\n"


def test_a_folder_of_a_process_goes_with_it_and_one_of_a_dead_process_is_found(tmp_path: Path) -> None:
    with workspace(tmp_path, "out") as made:
        assert made.name.startswith(".out.deploykit-") and made.stat().st_mode & 0o777 == 0o700
        assert list(abandoned(tmp_path, "out")) == [], "it is held"
        with holding(made) as alone:
            assert not alone
    assert list(tmp_path.iterdir()) == []
    left, other = tmp_path / ".out.deploykit-1", tmp_path / ".outer.deploykit-1"
    for folder in (left, other):
        folder.mkdir()
    (tmp_path / ".out.deploykit-file").touch()
    (tmp_path / ".out.deploykit-link").symlink_to(other)
    for found in abandoned(tmp_path, "out"):
        assert found == left and list(abandoned(tmp_path, "out")) == []
    with holding(tmp_path / "none") as alone:
        assert not alone
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
        assert list(abandoned(tmp_path, "out")) == [], "it is somebody else's"
    (tmp_path / ".scratch.deploykit-1").mkdir()
    with scratch(tmp_path) as one:
        assert one.is_dir() and not (tmp_path / ".scratch.deploykit-1").exists()
    with workspace(tmp_path, "x" * 201) as short, workspace(tmp_path, "x" * 200) as whole:
        assert (len(short.name), len(whole.name)) == (60, 228)


def test_a_folder_takes_the_place_of_another_or_nothing_changes(tmp_path: Path) -> None:
    fresh, place, aside = (tmp_path / name for name in ("fresh", "place", "aside"))
    place.mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(fresh, place, aside)
    assert place.is_dir() and not aside.exists()
    fresh.mkdir()
    (fresh / "file").touch()
    renamed = Path.rename

    def interrupted(at: str, path: Path, to: Path) -> None:
        renamed(path, to)
        if path.name in (at, "aside"):
            raise KeyboardInterrupt

    for at, new in (("place", False), ("fresh", True)):  # a signal is told once the rename is done
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "rename", lambda path, to, at=at: interrupted(at, path, to))
            exchange(fresh, place, aside)
        assert (place / "file").exists() == new and place.is_dir()
    assert aside.is_dir() and not fresh.exists()
    (tmp_path / folders.GONE).mkdir()  # what an earlier one was removing
    discard(place)
    assert [path.name for path in tmp_path.iterdir()] == ["aside"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_a_program_is_given_and_what_is_taken_of_it(tmp_path: Path) -> None:
    heard: list[str] = []
    code = "import os, sys; print(os.environ['GIVEN'], os.getcwd()); print(sys.stdin.read(), file=sys.stderr)"
    done = run(python(code), cwd=tmp_path, env={"GIVEN": "a"}, given=b"in", log=tmp_path / "log", on_line=heard.append)
    lines = [f"a {tmp_path}", "in"]
    assert (sorted(done.tail), sorted(heard)) == (sorted(lines), sorted(lines)) and done.ok
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(lines)
    assert done.argv == tuple(python(code)) and done.seconds > 0 and (done.peak_rss_mb or 0) > 1
    (tmp_path / "file").write_text("stored")
    done = run(
        python(code), env={"GIVEN": "b"}, given=tmp_path / "file", output=tmp_path / "output", log=tmp_path / "log"
    )
    assert (tmp_path / "log").read_text().splitlines()[2:] == ["stored"]
    assert done.tail == ("stored",) and (tmp_path / "output").read_text() == f"b {Path.cwd()}\n"
    assert run(python("import sys; print(repr(sys.stdin.read()))")).tail == ("''",)
    assert run(python("for i in range(500): print(i)")).tail == tuple(str(i) for i in range(100, 500))
    with pytest.raises(ToolError) as refused:
        run(["/no/such/program"])
    assert (refused.value.what, refused.value.why) == (
        "/no/such/program: cannot be started",
        "No such file or directory",
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="elsewhere the system tells no sizes")
def test_a_program_that_takes_too_much_memory_is_ended() -> None:
    assert run(python("import mmap, time; held = mmap.mmap(-1, 1 << 30); time.sleep(0.3)"), memory=200 << 20).ok
    done = run(python("import time; held = b'x' * (80 << 20); time.sleep(600)"), memory=60 << 20)
    assert (done.grown, done.timed_out, done.returncode, done.ok) == (True, False, -signal.SIGKILL, False)


def test_steps_are_told_in_their_order() -> None:
    heard: list[str] = []
    steps = Steps(names=("read", "render", "seal"), tell=prefixed("a", heard.append))
    for name in ("read", "seal", "none", "read"):
        steps.begin(name)
    prefixed("a", heard.append)("news")
    assert heard == ["a: [1/3] read", "a: [3/3] seal", "a: [1/3] read", "a: news"]
    assert [isinstance(line, Begun) for line in heard] == [True, True, True, False]


class Kind(Enum):
    ONE = "one"


class Told(Published, frozen=True, kw_only=True):
    WITHOUT = ("hidden",)
    ALSO = ("twice",)
    name: str
    hidden: int
    values: tuple[Any, ...]

    @property
    def twice(self) -> str:
        return self.name * 2


def test_values_are_published_as_json_has_them() -> None:
    inner = Told(name="b", hidden=2, values=())
    made = Told(name="a", hidden=1, values=(float("nan"), 1.5, None, Path("x"), Kind.ONE, {"k": [inner, float("inf")]}))
    assert made.to_json() == {
        "name": "a",
        "values": [None, 1.5, None, "x", "Kind.ONE", {"k": [{"name": "b", "values": [], "twice": "bb"}, None]}],
        "twice": "aa",
    }

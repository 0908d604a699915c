"""deploykit without what only POSIX has: as far as this can be told on a machine that is no Windows."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploykit.system import platforms
from deploykit.system.platforms import end_tree, hold, on_disk, python_of, reap, shell_script, sites_of

ROOT = Path(__file__).parents[2]
PLACES = ("deploykit", "backends", "templates")
MISSING = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
"""Modules of the standard library that Windows lacks."""
ONLY_POSIX = {"fork", "wait4", "killpg", "setsid", "getuid", "geteuid", "getpgid", "statvfs", "mkfifo", "SIGKILL"}
"""Names of ``os`` and ``signal`` that Windows lacks."""

AS_ON_WINDOWS = f"""
import os, shutil, signal, subprocess, sys, types
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda *_: None, LK_NBLCK=2, LK_UNLCK=0)
shutil.disk_usage = lambda path: types.SimpleNamespace(total=2**40, used=0, free=2**40)
subprocess.Popen.kill = lambda self: os.kill(self.pid, 9)  # there: TerminateProcess
for name in {MISSING!r}:
    sys.modules[name] = None
for name in {sorted(ONLY_POSIX)!r}:
    for module in (os, signal):
        if hasattr(module, name):
            delattr(module, name)
"""


def run_without(code: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A Python in which nothing is left of what Windows lacks; ``code`` follows."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / place) for place in (".", *PLACES[1:]))}
    argv = [sys.executable, "-c", AS_ON_WINDOWS + code, *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)


COMMAND = "from deploykit.cli import main; sys.exit(main())"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["compat", "wheel", "--sdk", "2.33", "--json"],
        ["targets", "sc8380xp", "--json"],
        ["doctor", "--json"],
        ["toolchain", "list", "--json"],
        ["check", "--plan", "MODEL", "--encodings", "ENCODINGS", "--target", "sc8380xp", "--sdk", "2.33", "--json"],
        ["check", "MODEL", "--encodings", "ENCODINGS", "--target", "sc8380xp", "--sdk", "2.33", "--json"],
    ],
    ids=lambda words: words[0],
)
def test_commands_work_without_what_windows_lacks(words: list[str], tmp_path: Path) -> None:
    cnn = ROOT / "tests/data/aimet/cnn"
    places = {"MODEL": str(cnn / "model.onnx"), "ENCODINGS": str(cnn / "w8a8.v1.0.0.encodings")}
    done = run_without(COMMAND, *(places.get(word, word) for word in words), folder=tmp_path)
    # The doctor answers 1 where something on this machine is not right, which is no matter of the system.
    assert done.returncode in ((0, 1) if words[0] == "doctor" else (0,)), done.stderr[-2000:]
    assert done.stdout.startswith("{" if "--json" in words else "Usage")


def test_a_package_is_made_and_verified_without_it(tmp_path: Path) -> None:
    code = "import deploykit; made = deploykit.package(sys.argv[1], target='sc8380xp', sdk='2.33', "
    code += "encodings=sys.argv[2], backend='qnn-htp', route='provider-context', out='out')\n"
    code += "report = deploykit.verify(made.package); print(report.ok, made.plan.route.id)"
    cnn = ROOT / "tests/data/aimet/cnn"
    done = run_without(code, str(cnn / "model.onnx"), str(cnn / "w8a8.v1.0.0.encodings"), folder=tmp_path)
    assert done.stdout.split() == ["True", "provider-context"], done.stderr[-2000:]


def test_programs_are_run_and_ended_without_it(tmp_path: Path) -> None:
    code = "from deploykit.system.processes import run\n"
    code += "done = run([sys.executable, '-c', 'print(7)'])\n"
    code += "late = run([sys.executable, '-c', 'import time; time.sleep(60)'], timeout=1.0)\n"
    code += "print(done.returncode, done.tail, done.peak_rss_mb, late.timed_out)"
    started = time.monotonic()
    done = run_without(code, folder=tmp_path)
    assert done.stdout.strip() == "0 ('7',) None True", done.stderr[-2000:]
    assert time.monotonic() - started < 30


def uses(path: Path) -> set[str]:
    """What a module uses of the names that Windows lacks, outside of a ``try`` and of a question for them."""
    tree = ast.parse(path.read_text("utf-8"))
    guarded = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in guarded:
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found |= set(names) & set(MISSING)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "signal"):
            found |= {node.attr} & ONLY_POSIX
    return found


def test_one_module_alone_uses_what_windows_lacks() -> None:
    modules = [path for place in PLACES for path in sorted((ROOT / place).rglob("*.py"))]
    assert len(modules) > 100
    using = {path.relative_to(ROOT).as_posix(): found for path in modules if (found := uses(path))}
    assert set(using) == {"deploykit/system/platforms.py"}, using


class Windows:
    """The locks of ``msvcrt``: the first byte of a file, for one holder."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self) -> None:
        self.held = False
        self.calls: list[int] = []

    def locking(self, _: int, mode: int, count: int) -> None:
        assert count == 1
        self.calls.append(mode)
        if mode == self.LK_NBLCK and self.held:
            raise OSError(13, "Permission denied")
        self.held = mode == self.LK_NBLCK


def test_locks_of_windows_are_held_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows()
    monkeypatch.setattr(platforms, "fcntl", None)
    monkeypatch.setattr(platforms, "msvcrt", windows, raising=False)
    with (tmp_path / "lock").open("w") as file:
        with hold(file, shared=False):
            assert windows.held
            with pytest.raises(BlockingIOError), hold(file, shared=True):
                pass
        assert not windows.held
        with hold(file, shared=True):
            assert not windows.held
    assert windows.calls == [2, 2, 0, 2, 0]


def test_a_lock_of_posix_keeps_another_process_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = "import sys; from deploykit.system.platforms import hold\n"
    other += "with open(sys.argv[1]) as file, hold(file, shared=True): print('free')"
    argv = [sys.executable, "-c", other, str(path)]
    with path.open("w") as file, hold(file, shared=False):
        assert subprocess.run(argv, capture_output=True, check=False).returncode != 0
    assert subprocess.run(argv, capture_output=True, check=False).stdout == b"free\n"


def test_windows_ends_children_by_its_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.delattr(os, "killpg")
    monkeypatch.delattr(os, "wait4")
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: asked.append(argv))
    end_tree(process)
    status, peak = reap(process)
    assert asked == [("taskkill", "/T", "/F", "/PID", str(process.pid))]
    assert status != 0 and peak is None


def test_the_layout_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    assert (python_of(tmp_path), sites_of(tmp_path)) == (tmp_path / "bin/python", (site,))
    monkeypatch.setattr(os, "name", "nt")
    assert str(python_of(tmp_path)).endswith("python.exe")
    assert [path.parts[-2:] for path in sites_of(tmp_path)] == [("Lib", "site-packages")]


def test_a_size_where_blocks_are_not_counted() -> None:
    class Status:
        st_size = 700

    assert on_disk(Status()) == 700  # type: ignore[arg-type]
    Status.st_blocks = 8  # type: ignore[attr-defined]
    assert on_disk(Status()) == 4096  # type: ignore[arg-type]


def test_scripts_are_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "build.ps1").touch()
    assert shell_script(tmp_path, "build") == ("bash", "build.sh")
    monkeypatch.setattr(os, "name", "nt")
    assert shell_script(tmp_path, "build")[-2:] == ("-File", "build.ps1")
    assert shell_script(tmp_path / "elsewhere", "build") == ("bash", "build.sh")

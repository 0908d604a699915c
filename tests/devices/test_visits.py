"""A visit to this machine: what it says of itself, what is pushed and left there, and every way in which it fails."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deploykit.backend.on_device import DeviceFile, DeviceJob
from deploykit.devices.connection import Connection, connection_to
from deploykit.devices.places import DeviceRow
from deploykit.devices.visit import Visit, visiting
from deploykit.errors import ToolError, UsageError
from told import check_file, check_told

PROGRAM = b"""#!/bin/sh
mkdir -p out
cat 'in put' > out/result
echo "$MARK"
exit ${STATUS:-0}
"""
JOB = DeviceJob(
    files=(
        DeviceFile(path="pro'gram", source=PROGRAM, executable=True),
        DeviceFile(path="in put", source=b"0123456789"),
        DeviceFile(path="sub/copy", source=b"0123456789"),
    ),
    argv=("./pro'gram",),
    environment={"MARK": "it's $HOME"},
    results=("out/result",),
    optional=("out/more",),
    timeout=60.0,
)
DIGESTS = {name: hashlib.sha256(data).hexdigest() for name, data in (("program", PROGRAM), ("input", b"0123456789"))}


def test_what_is_pushed_run_and_pulled(tmp_path: Path) -> None:
    told: list[str] = []
    with visiting(DeviceRow(at="local", python="sh"), tmp_path, tell=told.append) as visit:
        place = visit.place
        root, _, name = place.folder.rpartition("/runs/")
        assert (place.kind, place.system, place.machine) == ("local", os.uname().sysname, os.uname().machine)
        told_too = (place.release, place.python, place.abi, visit.held)
        assert told_too == (os.uname().release, "/usr/bin/sh", "", frozenset())
        assert root == str(tmp_path / "device") and f"-{os.getpid()}-" in name and len(place.serial) == 12
        assert place.free_bytes and place.free_bytes % 1024 == 0
        ended = visit.run(JOB, tmp_path)
        assert (ended.status, ended.log.read_text("utf-8"), ended.took_s > 0) == (0, "it's $HOME\n", True)
        pulled = [str(path.relative_to(ended.pulled)) for path in sorted(ended.pulled.rglob("*"))]
        assert (pulled, (ended.pulled / "out/result").read_bytes()) == (["out", "out/result"], b"0123456789")
        left = {str(path.relative_to(place.folder)) for path in Path(place.folder).rglob("*") if path.is_file()}
        assert left == {"pro'gram", "in put", "sub/copy", "out/result"}
        assert Path(place.folder, "pro'gram").stat().st_mode & 0o777 == 0o700
    assert told == ["looking at local", "pushing 2 of 3 files, 0.0 MiB", "running", "pulling the outputs"]
    files = tmp_path / "device/files"
    assert {path.name for path in files.iterdir()} == set(DIGESTS.values())
    assert list((tmp_path / "device/runs").iterdir()) == []
    # What is held is not pushed again, unless it is not what its name says, or lay there for long.
    told.clear()
    old = tmp_path / "device/files/0000"
    old.write_bytes(b"old")
    os.utime(old, (0, 0))
    again = tmp_path / "again"
    again.mkdir()
    with visiting(DeviceRow(at="local"), tmp_path, keep=True, tell=told.append) as visit:
        assert visit.held == set(DIGESTS.values()) and visit.place.python == sys.executable and not old.exists()
        ended = visit.run(replace(JOB, environment={"STATUS": "7"}), again)
        assert (ended.status, list(ended.pulled.iterdir()), ended.temperature) == (7, [], None)
    kept = visit.place.folder
    assert told[1:] == ["pushing 0 of 3 files, 0.0 MiB", "running", f"kept on the device: {kept}"]
    assert "/runs/kept-" in kept and Path(kept, "sub/copy").read_bytes() == b"0123456789"


def _after(visit: Visit, change: dict[str, Any], scratch: Path) -> str:
    with pytest.raises(ToolError) as caught:
        replace(visit, **change).run(JOB, scratch)
    return f"{caught.value.what}; {caught.value.why}; {caught.value.next}"


def test_what_fails_is_said(tmp_path: Path) -> None:
    with visiting(DeviceRow(at="local"), tmp_path, tell=lambda _: None) as visit:
        full = replace(visit.place, free_bytes=1 << 20)
        assert _after(visit, {"place": full}, tmp_path).endswith(": has 1 MiB free, 64 are needed; ; make room there")
        other = frozenset({*DIGESTS.values()})
        broken = _after(visit, {"held": other}, tmp_path)
        assert broken.startswith("local: a step on the device failed (status 1); "), "what is held is not there"
        files = tmp_path / "device/files"
        (files / DIGESTS["input"]).write_bytes(b"spoilt")
        said = _after(visit, {"held": frozenset({DIGESTS["input"]})}, tmp_path)
        assert said == "local: in put did not arrive as it is here; ; run it again"
        assert not (files / DIGESTS["input"]).exists()
        job = replace(JOB, results=("out/missing",))
        with pytest.raises(ToolError, match="local: gave no outputs") as caught:
            visit.run(job, tmp_path)
        assert caught.value.why == "its program ended well, but left no out/missing"


def test_what_runs_that_were_killed_left_there_is_removed(tmp_path: Path) -> None:
    """Of this machine and user, by a process that is no more; what is kept, alive or of somebody else stays."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    with visiting(DeviceRow(at="local"), tmp_path, tell=lambda _: None) as visit:
        mine = visit.place.folder.rpartition("/")[2].partition("-")[0]
    runs = tmp_path / "device/runs"
    names = [f"{mine}-{ended.pid}-a", f"{mine}-{os.getpid()}-b", f"kept-{ended.pid}-c", f"other-{ended.pid}-d"]
    for name in [*names, f"{mine}-word-e", f"{mine}-{10**30}-f"]:
        (runs / name).mkdir()
    with visiting(DeviceRow(at="local"), tmp_path, tell=lambda _: None):
        pass
    assert {path.name for path in runs.iterdir()} == {*names[1:], f"{mine}-word-e", f"{mine}-{10**30}-f"}


def test_what_a_client_says_before_it_reached_a_device(tmp_path: Path) -> None:
    """Of each kind of place, where its client does so, all of the error."""
    shell = tmp_path / "shell"

    def refused(question: str) -> list[str]:
        kind, _, script = question.partition(": ")
        shell.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        shell.chmod(0o755)
        connection = replace(connection_to("local", folder=""), kind=kind, words=(str(shell),))
        with pytest.raises(ToolError) as caught:
            connection.ask("true", timeout=5.0)
        told = {"why": caught.value.why, "next": caught.value.next}
        return [str(caught.value.what), *(f"  {name}: {words}" for name, words in told.items() if words)]

    check_file(Path(__file__).with_name("clients.told"), refused)


def test_what_a_device_is_given_to_do(tmp_path: Path) -> None:
    """The whole script of each step, with its bounds of time, at a place whose shell keeps it and fails."""
    shell, told = tmp_path / "shell", dict[str, list[str]]()
    shell.write_text('#!/bin/sh\nprintf %s "$1" > "$0.told"\nexit 3\n', "utf-8")
    shell.chmod(0o755)
    given: Any = {"folder": "in to", "environment": {"A": "b c"}, "log": tmp_path / "log", "timeout": 90.0}
    steps: dict[str, Callable[[Connection], object]] = {
        "ask": lambda there: there.ask("echo one", timeout=5.0),
        "ask, without a limit of its own": lambda there: there.ask("echo one"),
        "push": lambda there: there.push({"a b": shell}, "in to", tmp_path / "in.tar", "echo then"),
        "pull": lambda there: there.pull(["y", "z z"], "out of", tmp_path, tmp_path / "out.tar", "echo also"),
        "run": lambda there: there.run(("./go", "a b"), **given),
    }
    for kind, (step, asked) in product(("local", "ssh"), steps.items()):
        with pytest.raises(ToolError):
            asked(replace(connection_to("local", folder=""), kind=kind, words=(str(shell),)))
        script = (tmp_path / "shell.told").read_text("utf-8")
        told[f"{kind}: {step}"] = re.sub(r"deploykit-end-\w+", "END", script).splitlines()
    check_told(Path(__file__).with_name("scripts.told"), told)


def test_answers_are_short_and_so_are_their_lines(tmp_path: Path) -> None:
    here = connection_to("local", folder=str(tmp_path))
    assert here.ask("echo one; echo; echo ' two '; echo three >&2") == ["one", " two ", "three"]
    assert len(here.ask("seq 19998")) == 19998
    for script in ("seq 20001", "printf '%5000s\\n' x"):
        with pytest.raises(ToolError, match="answers garbage") as caught:
            here.ask(script)
        assert caught.value.why.startswith("it begins with")
    with pytest.raises(ToolError, match=r"a step on the device failed \(status 4\)") as caught:
        here.ask("for n in 1 2 3 4 5 6; do echo $n; done; exit 4")
    assert caught.value.why == "3 | 4 | 5 | 6"


def _place(question: str) -> list[str]:
    """A place, then the folder and variables of the environment that are set."""
    where, _, rest = question.partition("; ")
    folder, *variables = rest.split("; ")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DEPLOYKIT_DEVICE_FOLDER", "DEPLOYKIT_SSH_CONFIG"):
            patch.delenv(name, raising=False)
        for name, _, value in (variable.partition("=") for variable in variables):
            patch.setenv(f"DEPLOYKIT_{name}", value)
        try:
            found = connection_to(where, folder=folder)
        except UsageError as error:
            return [str(error.what)]
    return [f"{found.kind} {found.where}, in {found.folder}: {' '.join(found.words)}"]


def test_the_client_of_each_place() -> None:
    check_file(Path(__file__).with_name("places.told"), _place)

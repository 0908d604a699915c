"""The end that plays a device, with the real adb client: what the tests of runs over adb stand on."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adb_device import AdbDevice, attached, reattach

pytestmark = pytest.mark.skipif(shutil.which("adb") is None, reason="adb is not installed (Debian: adb)")
Attached = tuple[AdbDevice, dict[str, str]]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    folder = tmp_path_factory.mktemp("adb")
    programs = {"getprop": 'case "$1" in ro.soc.model) echo SM8650 ;; esac'}
    with AdbDevice(folder / "device", programs=programs) as device, attached(device, folder / "home") as environment:
        yield device, environment


def adb(at: Attached, *words: str, given: bytes = b"", timeout: float = 30.0) -> subprocess.CompletedProcess[bytes]:
    device, environment = at
    argv = ["adb", "-s", device.serial, *words]
    return subprocess.run(argv, env=environment, input=given, capture_output=True, timeout=timeout, check=False)


def test_a_program_has_its_input_both_outputs_and_its_status(at: Attached) -> None:
    data = os.urandom(1 << 20)
    done = adb(at, "shell", "-T", "cat; echo wrong >&2; exit 7", given=data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"wrong\n", 7)
    assert adb(at, "shell", "-T", "getprop ro.soc.model").stdout == b"SM8650\n"
    assert adb(at, "shell", "-T", "echo 'a  b' \"c'd\"").stdout == b"a  b c'd\n"
    assert adb(at, "get-state").stdout == b"device\n"


def test_files_and_folders_go_there_and_back(at: Attached, tmp_path: Path) -> None:
    names = ["plain", "a blank", "qu'ote", "grüße.bin"]
    (tmp_path / "there/deep").mkdir(parents=True)
    for name in names:
        (tmp_path / "there/deep" / name).write_bytes(os.urandom(100_000))
    (tmp_path / "there/empty").write_bytes(b"")
    (tmp_path / "there/run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "there/run.sh").chmod(0o755)
    assert adb(at, "push", str(tmp_path / "there"), "/data/local/tmp/").returncode == 0
    assert (at[0].folder / "there/deep/a blank").read_bytes() == (tmp_path / "there/deep/a blank").read_bytes()
    assert adb(at, "shell", "-T", "/data/local/tmp/there/run.sh").stdout == b"ran\n"
    assert adb(at, "pull", "/data/local/tmp/there", str(tmp_path / "back")).returncode == 0
    for path in (tmp_path / "there").rglob("*"):
        if path.is_file():
            assert (tmp_path / "back" / path.relative_to(tmp_path / "there")).read_bytes() == path.read_bytes()
    assert adb(at, "pull", "/data/local/tmp/absent", str(tmp_path)).returncode != 0


def test_a_client_that_is_killed_ends_the_input_of_its_program(at: Attached) -> None:
    device, environment = at
    mark = device.folder / "ended"
    command = f"cat > /dev/null; echo > {mark}"
    client = subprocess.Popen(
        ["adb", "-s", device.serial, "shell", "-T", command], env=environment, stdin=subprocess.PIPE
    )
    while command not in device.started:
        time.sleep(0.01)
    assert not mark.exists()
    client.kill()
    client.communicate()
    limit = time.monotonic() + 10
    while not mark.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert mark.exists()


def test_faults_reach_the_client(at: Attached, tmp_path: Path) -> None:
    device, environment = at
    device.file_limit = 4096
    assert adb(at, "shell", "-T", "head -c 100000 /dev/zero > large").returncode != 0
    (tmp_path / "large").write_bytes(bytes(100_000))
    done = adb(at, "push", str(tmp_path / "large"), "/data/local/tmp/large")
    assert done.returncode != 0 and b"No space left" in done.stdout + done.stderr
    device.file_limit = None
    device.spoil = lambda frame: bytes(len(frame))
    assert adb(at, "shell", "-T", "echo fine").stdout != b"fine\n"
    device.spoil = None
    device.cut_after = device.passed + 300_000
    done = adb(at, "shell", "-T", "cat > kept; echo whole", given=bytes(1 << 20))
    assert done.stdout == b"" and device.cuts == 1
    reattach(device, environment)
    assert adb(at, "shell", "-T", "echo again").stdout == b"again\n"

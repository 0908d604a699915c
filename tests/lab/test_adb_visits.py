"""Pushing, running and pulling through the real adb client, with every fault at every stage."""

import hashlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adb_device import AdbDevice, attached, is_there, reattach
from deploykit.backend.on_device import DeviceFile, DeviceJob
from deploykit.devices.places import DeviceRow
from deploykit.devices.visit import VisitEnd, visiting
from deploykit.errors import ToolError
from seeds import WHOLE

pytestmark = pytest.mark.skipif(shutil.which("adb") is None, reason="adb is not installed (Debian: adb)")
PROPERTIES = {"ro.soc.model": "SM8650", "ro.product.cpu.abi": "arm64-v8a", "ro.serialno": "a1b2c3"}
GETPROP = "case $1 in {} esac".format(" ".join(f"{key}) echo {value} ;;" for key, value in PROPERTIES.items()))
# What a program of the vendor does: reads its inputs, leaves outputs, says something.
PROGRAM = b"""#!/bin/sh
echo began
mkdir -p 'out put'
cat 'in puts/a file' >> 'out put/result'
sleep ${SLEEP:-0}
echo "$MARK"
exit ${STATUS:-0}
"""
INPUT = bytes(range(256)) * 2000
RESULT = "out put/result"


@pytest.fixture(scope="module")
def plugged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AdbDevice, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("adb")
    programs = {"getprop": GETPROP}
    with AdbDevice(folder / "device", programs=programs) as device, attached(device, folder / "home") as environment:
        yield device, environment


@pytest.fixture
def device(plugged: tuple[AdbDevice, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[AdbDevice]:
    """The device, in order again after each test; this process sees it through its own server."""
    one, environment = plugged
    for name in ("HOME", "TMPDIR", "ANDROID_ADB_SERVER_PORT"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("DEPLOYKIT_DEVICE_FOLDER", str(one.folder / "deploykit"))
    # What a client may still put in order when it is ended: nobody has to wait for it here.
    monkeypatch.setattr("deploykit.system.processes._GRACE", 0.2)
    yield one
    one.file_limit = one.spoil = one.cut_after = None
    if not is_there(one, environment):
        reattach(one, environment)
    shutil.rmtree(one.folder / "deploykit", ignore_errors=True)


def run(device: AdbDevice, scratch: Path, data: bytes = INPUT, timeout: float = 60.0, **environment: str) -> VisitEnd:
    scratch.mkdir()
    job = DeviceJob(
        files=(
            DeviceFile(path="pro'gram", source=PROGRAM, executable=True),
            DeviceFile(path="in puts/a file", source=data),
        ),
        argv=("./pro'gram",),
        environment={"MARK": "it's $HOME", **environment},
        results=(RESULT,),
        timeout=timeout,
    )
    with visiting(DeviceRow(at=f"adb:{device.serial}"), scratch, tell=lambda _: None) as visit:
        return visit.run(job, scratch)


def nothing_runs(device: AdbDevice) -> bool:
    """Whether every program that was started there comes to its end, with all that it started itself."""
    limit = time.monotonic() + 20
    while device.running():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def test_files_go_there_a_program_runs_and_its_results_come_back(device: AdbDevice, tmp_path: Path) -> None:
    ended = run(device, tmp_path / "one")
    assert (ended.status, (ended.pulled / RESULT).read_bytes()) == (0, INPUT)
    assert ended.log.read_text("utf-8").splitlines() == ["began", "it's $HOME"]
    held = {path.name for path in (device.folder / "deploykit/files").iterdir()}
    assert held == {hashlib.sha256(data).hexdigest() for data in (PROGRAM, INPUT)}
    assert not list((device.folder / "deploykit/runs").iterdir())
    before = device.passed
    run(device, tmp_path / "two")
    assert device.passed - before < len(INPUT) + 20_000  # the result alone: nothing was pushed again
    assert nothing_runs(device)


def test_a_program_that_does_not_end_is_ended(device: AdbDevice, tmp_path: Path) -> None:
    with pytest.raises(ToolError):
        run(device, tmp_path / "one", timeout=0.5, SLEEP="600")
    assert nothing_runs(device)


def cut_at(device: AdbDevice, environment: dict[str, str], folder: Path, place: int) -> None:
    """The cable is pulled after so many bytes; then nothing runs, and the next run is as if nothing had been."""
    device.cut_after = device.passed + place
    data = os.urandom(300_000)
    try:
        ended = run(device, folder / f"cut-{place}", data)
    except ToolError:
        assert device.cut_after is None or device.cuts
    else:
        assert (ended.pulled / RESULT).read_bytes() == data
    device.cut_after = None
    assert nothing_runs(device)
    reattach(device, environment)
    again = run(device, folder / f"again-{place}", data)
    assert (again.pulled / RESULT).read_bytes() == data
    # What a cut run left is removed when its process is no more, and this one is not.
    left = [path.name for path in (device.folder / "deploykit/runs").iterdir()]
    assert len(left) <= 1 and all(f"-{os.getpid()}-" in name for name in left)
    shutil.rmtree(device.folder / "deploykit")


# Of a run of 600,000 bytes: in the look, the push.
@pytest.mark.parametrize("place", [pytest.param(900, marks=pytest.mark.heavy), 150_000])
def test_a_cable_that_is_pulled(
    place: int, device: AdbDevice, plugged: tuple[AdbDevice, dict[str, str]], tmp_path: Path
) -> None:
    cut_at(device, plugged[1], tmp_path, place)


@pytest.mark.heavy
def test_a_cable_pulled_anywhere(device: AdbDevice, plugged: tuple[AdbDevice, dict[str, str]], tmp_path: Path) -> None:
    source, more = random.Random(0), 93 if WHOLE else 13
    for place in [0, 1, 2500, 20_000, 305_000, 330_000, 620_000, *(source.randrange(640_000) for _ in range(more))]:
        cut_at(device, plugged[1], tmp_path, place)


def test_a_cable_that_is_pulled_while_the_program_runs(
    device: AdbDevice, plugged: tuple[AdbDevice, dict[str, str]], tmp_path: Path
) -> None:
    def pull() -> None:
        while not list((device.folder / "deploykit").glob("runs/*/out put/result")):
            time.sleep(0.02)
        device.cut()

    waiting = threading.Thread(target=pull)
    waiting.start()
    with pytest.raises(ToolError, match="cut"):
        run(device, tmp_path / "one", SLEEP="600")
    waiting.join()
    assert nothing_runs(device)
    reattach(device, plugged[1])


def test_a_device_without_room(device: AdbDevice, tmp_path: Path) -> None:
    device.file_limit = 100_000
    with pytest.raises(ToolError):
        run(device, tmp_path / "one")
    device.file_limit = None
    assert (run(device, tmp_path / "two").pulled / RESULT).read_bytes() == INPUT


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: bytes(len(frame)),
        pytest.param(lambda frame: frame[:-1] + b"!", marks=pytest.mark.heavy),
    ],
    ids=["zeros", "last"],
)
def test_a_device_that_answers_garbage(spoil: Callable[[bytes], bytes], device: AdbDevice, tmp_path: Path) -> None:
    device.spoil = spoil
    with pytest.raises(ToolError):
        run(device, tmp_path / "one", timeout=5.0)
    device.spoil = None
    assert nothing_runs(device)


def test_without_the_device_there_is_one_clear_error(device: AdbDevice, tmp_path: Path) -> None:
    gone = pytest.raises(ToolError, match=r"adb:127\.0\.0\.1:1: no such device is attached")
    with gone, visiting(DeviceRow(at="adb:127.0.0.1:1"), tmp_path, tell=print):
        raise AssertionError("nobody is there")

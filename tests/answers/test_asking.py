"""Questions without a model: capabilities, and what this machine has."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deploykit.answers.asking as oracle
from deploykit.answers.machine import examine, examine_core
from deploykit.backend.probes import CheckLine, Probe, Surroundings, start
from deploykit.backend.targets import find_device
from deploykit.errors import InputError, UsageError
from deploykit.findings import Confidence
from deploykit.system.processes import ProgramEnd
from deploykit.tables.capabilities import CompatRow
from deploykit.tables.devices import Device, Fact
from stub_backend import ROW, StubBackend
from told import check_told

BASE = replace(ROW, since="1.0", family="kit")


def device(name: str, *backends: str, arch: str | None) -> Device:
    fact = Fact(value=arch or "", source=("a test",), confidence=Confidence.REPORTED)
    return Device(
        schema=1, id=name, name=name, vendor="V", backends=backends, facts={} if arch is None else {"arch": fact}
    )


class FakeBackend(StubBackend):
    """Answers with a few rows; ``binaries`` says whether it knows anything about binaries."""

    def __init__(self, backend_id: str, *rows: CompatRow) -> None:
        self.id = backend_id
        self.rows = rows

    def compat(self) -> Iterable[CompatRow]:
        return (replace(row, backend=self.id) for row in self.rows)


class BinaryBackend(FakeBackend):
    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterator[CompatRow]:
        yield replace(BASE, backend=self.id, feature="binary", note=f"{built_with} {built_for} {runtime} {arch}")


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = replace(BASE, feature="speed")
    installed: dict[str, Any] = {
        "one": FakeBackend("one", speed, replace(speed, arch="a1"), replace(speed, arch="a2", since="2.0")),
        "two": BinaryBackend("two", replace(speed, feature="speed-of-two")),
    }
    devices = (device("chip1", "one", arch="a1"), device("chip2", "two", arch=None))
    monkeypatch.setattr(oracle, "load_backends", lambda: tuple(installed.values()))
    monkeypatch.setattr(oracle, "load_backend", installed.__getitem__)
    monkeypatch.setattr(oracle, "device_named", lambda name: find_device(devices, name))


def test_every_backend_answers_or_the_one_that_is_asked() -> None:
    rows = oracle.ask(["speed"]).rows
    assert [(row.feature, row.arch) for row in rows] == [
        *(("speed", a) for a in ("", "a1", "a2")),
        ("speed-of-two", ""),
    ]
    assert [row.backend for row in oracle.ask(["speed"], backend="two").rows] == ["two"]
    assert [row.backend for row in oracle.ask(["speed"], arch="a2", sdk="1.0").rows] == ["one", "two"]


def test_a_target_without_words_shows_the_device_too() -> None:
    for chip, status in (("chip1", "supported"), ("chip2", "unknown")):
        (row,) = [row for row in oracle.ask(target=chip).rows if row.feature == f"device {chip} arch"]
        assert row.status == status


def test_binaries_are_asked_of_those_who_know() -> None:
    (row,) = oracle.ask_binary("1.0", "a1", "2.0", target="chip1").rows
    assert (row.backend, row.note) == ("two", "1.0 a1 2.0 a1")
    (unknown,) = oracle.ask_binary("1.0", "a1", "2.0", target="chip2").rows
    assert unknown.note == "1.0 a1 2.0 "
    for runtime, target in (("", "chip1"), ("2.0", "")):
        with pytest.raises(UsageError):
            oracle.ask_binary("1.0", "a1", runtime, target=target)


def around(tmp_path: Path, *, programs: tuple[str, ...] = (), code: int = 0) -> Surroundings:
    return Surroundings(
        env={},
        home=tmp_path,
        root=tmp_path,
        which=lambda name: f"/bin/{name}" if name in programs else None,
        run=lambda argv, **_: ProgramEnd(argv=("x",), returncode=code, tail=("boom",), seconds=0.0),
    )


class Probing(StubBackend):
    def __init__(self, *probes: Probe) -> None:
        self._probes = probes

    def probes(self) -> tuple[Probe, ...]:
        return self._probes


def by_id(lines: object) -> dict[str, CheckLine]:
    return {line.id: line for line in lines}  # type: ignore[attr-defined]


def test_what_the_core_looks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int | None] = [None]

    def usage(_: object) -> Any:
        if left[0] is None:
            raise PermissionError(13, "denied")
        return SimpleNamespace(free=left[0])

    monkeypatch.setattr("platform.python_version", lambda: "3.12.1")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("shutil.disk_usage", usage)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.{len(name)}")
    monkeypatch.setattr("sys.executable", "python")
    monkeypatch.chdir(tmp_path)
    told = {}
    for name, free, machine, programs, code in (
        ("good", 5 << 30, "x86_64", ("g++", "clang++"), 0),
        ("with little room", (5 << 30) - 1, "x86_64", (), 3),
        ("of another kind", None, "arm", ("clang++",), 0),
    ):
        left[0] = free
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        lines = examine_core(around(tmp_path, programs=programs, code=code))
        shown = [f"{line.id}: {line.state}: {line.detail}{' -> ' * bool(line.next)}{line.next}" for line in lines]
        told[name] = [one.replace(str(tmp_path), "HERE") for one in shown]
    check_told(Path(__file__).with_name("machine.told"), told)


def test_probes_run_once_and_backends_without_them_are_left_out(tmp_path: Path) -> None:
    calls = []

    def probe(_: Surroundings) -> Iterator[CheckLine]:
        calls.append(1)
        yield CheckLine(id="one", state="ok", detail="d")

    lines = examine([Probing(probe), StubBackend(), Probing(probe)], around(tmp_path))
    assert [line.id for line in lines].count("one") == len(calls) == 1


def test_a_probe_that_fails_is_a_line(tmp_path: Path) -> None:
    def probe_files(_: Surroundings) -> Iterator[CheckLine]:
        yield CheckLine(id="never", state="ok", detail="")
        raise InputError("sdk.yaml: not readable")

    def probe_disk(_: Surroundings) -> Iterator[CheckLine]:
        raise PermissionError(13, "denied")

    lines = by_id(examine([Probing(probe_files, probe_disk)], around(tmp_path)))
    assert lines["probe_files"].state == "problem" and "sdk.yaml" in lines["probe_files"].detail
    assert "denied" in lines["probe_disk"].detail


def test_a_program_runs_or_its_failure_is_an_answer() -> None:
    missing = start(Surroundings(), "/no/such/program")
    assert missing.returncode == 127 and missing.tail
    assert start(Surroundings(), sys.executable, "-c", "print('here')").tail == ("here",)

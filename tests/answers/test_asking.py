"""Questions without a model: capabilities, and what this machine has."""

import shlex
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.version import Version

import deploykit.answers.asking as oracle
import deploykit.answers.binaries as binaries
import deploykit.backend.plugins as plugins
from deploykit.answers.machine import examine, examine_core
from deploykit.backend.probes import CheckLine, Probe, Surroundings, start
from deploykit.backend.targets import find_device
from deploykit.errors import DeploykitError, InputError, ToolError
from deploykit.findings import Confidence
from deploykit.system.processes import ProgramEnd
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.devices import Device, Fact
from stub_backend import ROW, StubBackend
from told import check_file, check_told

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
    def inspect(self, path: Path) -> dict[str, Any]:
        fits = {"ok": False} if path.suffix == ".big" else {"ok": None}
        return {
            "release": "1.2",
            "arch": "" if path.stem == "any" else "a1",
            "graphs": [{"fits": None}, {"fits": fits}],
        }

    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterator[CompatRow]:
        told = {"whole": "", "release": Version(runtime) < Version(built_with), "arch": built_for != arch}
        told["whole"] = told["release"] or told["arch"]
        for name, bad in told.items():
            status = Status.UNSUPPORTED if bad else Status.SUPPORTED
            note = f"{built_with} for {built_for or '?'} on {runtime}, {arch or '?'}"
            yield replace(BASE, backend=self.id, feature=name, status=status, note=note)

    def devices(self) -> tuple[Device, ...]:
        return DEVICES


DEVICES = (device("chip1", "one", arch="a1"), device("chip2", "two", arch=None), device("chip3", "two", arch="a2"))
RELEASES = {"release 1.0": "1.0", "release 1.2": "1.2", "release 1.10": "1.10", "wheel kit 2": "1.10", "wheel old": ""}


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = replace(BASE, feature="speed")
    installed: dict[str, Any] = {
        "one": FakeBackend("one", speed, replace(speed, arch="a1"), replace(speed, arch="a2", since="2.0")),
        "two": BinaryBackend(
            "two",
            replace(speed, feature="speed-of-two"),
            replace(speed, feature="pace", tool="t"),
            *(replace(BASE, feature=feature, since=since) for feature, since in RELEASES.items()),
        ),
    }
    for room in (oracle, plugins):
        monkeypatch.setattr(room, "load_backends", lambda: tuple(installed.values()))
        monkeypatch.setattr(room, "load_backend", installed.__getitem__)
    monkeypatch.setattr(oracle, "device_named", lambda name: find_device(DEVICES, name))


def said(question: str) -> list[str]:
    """``ask WORDS``, ``load BUILT-WITH BUILT-FOR RUNTIME`` or ``read FILE``, each with what else is asked for."""
    kind, *words = shlex.split(question)
    given: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    try:
        if kind == "read":
            asked: dict[str, Any] = {"backend": None, "runtime": "", "target": ""}
            found = binaries.report_binary(Path(words[0]), **asked | given)
            told = [f"{one.release}: {' '.join([one.status, *one.carriers])}" for one in found.runtimes]
            return [
                f"refused {found.refused}",
                *told,
                *(f"{row.feature} {row.status}: {row.note}" for row in found.loads),
            ]
        answer = oracle.ask(words, **given) if kind == "ask" else oracle.ask_binary(*words, **{"target": "", **given})
    except DeploykitError as error:
        return [*str(error).splitlines(), f"status {error.exit_status}"]
    parts = ((row.backend, row.feature, row.tool, row.arch, row.sdk, row.status, row.note) for row in answer.rows)
    return [*(" | ".join(filter(None, map(str, row))) for row in parts), f"near {', '.join(answer.near) or 'nothing'}"]


def test_backends_are_asked() -> None:
    check_file(Path(__file__).with_name("asking.told"), said)


def around(tmp_path: Path, *, programs: tuple[str, ...] = (), code: int = 0) -> Surroundings:
    return Surroundings(
        env={},
        home=tmp_path,
        root=tmp_path,
        which=lambda name: f"/bin/{name}" if name in programs else None,
        run=lambda argv, **_: ProgramEnd(argv=("x",), returncode=code, tail=("first", " boom", " "), seconds=0.0),
    )


def probing(*probes: Probe) -> Any:
    return SimpleNamespace(probes=lambda: probes)


@pytest.mark.parametrize("why", ["no such file", ""])
def test_a_program_that_cannot_be_started_has_said_why(why: str, tmp_path: Path) -> None:
    def run(argv: Any, *, timeout: float, env: Any) -> ProgramEnd:
        assert (timeout, env["MORE"]) == (9.0, "1") and len(env) > 1
        raise ToolError("x cannot be started", why=why)

    end = start(replace(around(tmp_path), run=run), "x", "y", timeout=9.0, env={"MORE": "1"})
    assert (end.argv, end.returncode, end.tail) == (("x", "y"), 127, (why or "x cannot be started",))


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
    lacks: list[str] = []

    def version(name: str) -> str:
        if name in lacks:
            raise PackageNotFoundError
        return f"1.{len(name)}"

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("sys.executable", "python")
    monkeypatch.chdir(tmp_path)
    told = {}
    for name, free, machine, programs, code in (
        ("good", 5 << 30, "x86_64", ("g++", "clang++"), 0),
        ("with little room", (5 << 30) - 1, "x86_64", (), 3),
        ("of another kind", None, "arm", ("clang++",), 0),
    ):
        left[0], lacks[:] = free, ["click"] if free is None else []
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        lines = examine_core(around(tmp_path, programs=programs, code=code))
        shown = [f"{line.id}: {line.state}: {line.detail}{' -> ' * bool(line.next)}{line.next}" for line in lines]
        told[name] = [one.replace(str(tmp_path), "HERE") for one in shown]
    check_told(Path(__file__).with_name("machine.told"), told)


def test_probes_run_once_and_one_that_fails_is_a_line(tmp_path: Path) -> None:
    def probe(_: Surroundings) -> Iterator[CheckLine]:
        yield CheckLine(id="one", state="ok", detail="d")

    def files(_: Surroundings) -> Iterator[CheckLine]:
        yield from ()
        raise InputError("sdk.yaml: not readable")

    def disk(_: Surroundings) -> Iterator[CheckLine]:
        raise PermissionError(13, "denied")

    lines = examine([probing(probe), StubBackend(), probing(probe, files, disk)], around(tmp_path))
    assert [f"{line.id} {line.state}: {line.detail}" for line in lines if line.id in ("one", "files", "disk")] == [
        "one ok: d",
        "files problem: sdk.yaml: not readable",
        "disk problem: [Errno 13] denied",
    ]


def test_a_program_runs_or_its_failure_is_an_answer() -> None:
    missing = start(Surroundings(), "/no/such/program")
    assert missing.returncode == 127 and missing.tail
    assert start(Surroundings(), sys.executable, "-c", "print('here')").tail == ("here",)

"""The core's checks, and how probes of backends are run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploykit.answers.machine import examine, examine_core
from deploykit.backend.probes import CheckLine, Probe, Surroundings, start
from deploykit.errors import InputError
from deploykit.system.processes import ProgramEnd
from stub_backend import StubBackend


def ended(code: int = 0, *tail: str) -> ProgramEnd:
    return ProgramEnd(argv=("x",), returncode=code, tail=tail, seconds=0.0)


def around(tmp_path: Path, *, programs: tuple[str, ...] = (), code: int = 0) -> Surroundings:
    return Surroundings(
        env={},
        home=tmp_path,
        root=tmp_path,
        which=lambda name: f"/bin/{name}" if name in programs else None,
        run=lambda argv, **_: ended(code, "boom"),
    )


class Probing(StubBackend):
    def __init__(self, *probes: Probe) -> None:
        self._probes = probes

    def probes(self) -> tuple[Probe, ...]:
        return self._probes


def by_id(lines: object) -> dict[str, CheckLine]:
    return {line.id: line for line in lines}  # type: ignore[attr-defined]


def test_the_core_looks_at_its_own_machine_and_says_what_to_do_unless_all_is_well() -> None:
    lines = by_id(examine_core(Surroundings()))
    assert lines["python"].state == "ok"
    assert lines["packages"].state == "ok"
    assert "numpy" in lines["packages"].facts
    assert lines["disk-here"].facts["free_bytes"] > 0
    for line in lines.values():
        assert line.detail
        assert line.next or line.state == "ok"
        assert set(line.to_json()) == {"id", "state", "detail", "next", "facts"}


def test_packages_that_do_not_load_are_a_problem(tmp_path: Path) -> None:
    line = by_id(examine_core(around(tmp_path, code=1)))["packages"]
    assert line.state == "problem"
    assert "boom" in line.detail
    assert line.next


@pytest.mark.parametrize(("programs", "state"), [(("g++",), "ok"), ((), "absent")])
def test_the_compiler_is_found_by_any_of_its_names(tmp_path: Path, programs: tuple[str, ...], state: str) -> None:
    line = by_id(examine_core(around(tmp_path, programs=programs)))["c++"]
    assert line.state == state
    assert bool(line.next) == (state != "ok")


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
    assert lines["probe_files"].state == "problem"
    assert "sdk.yaml" in lines["probe_files"].detail
    assert "denied" in lines["probe_disk"].detail


def test_a_program_runs_or_its_failure_is_an_answer() -> None:
    missing = start(Surroundings(), "/no/such/program")
    assert missing.returncode == 127
    assert missing.tail
    assert start(Surroundings(), sys.executable, "-c", "print('here')").tail == ("here",)

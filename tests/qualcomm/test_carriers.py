"""Wheels as carriers of compilers: where each runs, which runtime it serves, what its binaries and toolchains are."""

import importlib.util
import re
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deploykit.backend.probes import Surroundings
from deploykit_qualcomm.carriers import RULES, Carried, carrier_for, machines, probe_hosts
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.tables import DATA, Wheel, tables
from rule_cases import check_pairs
from tables import each_row

RUNNER = DATA.parent / "runner"


def wheel(version: str) -> Wheel:
    return next(wheel for wheel in tables().wheels if wheel.version == version)


def carried(version: str, device: str = "sm8650", runtime: str = "", *, insisted: bool = False) -> Carried:
    return Carried(wheel=wheel(version), device=qualcomm_device(device), runtime=runtime, insisted=insisted)


CASES: dict[str, tuple[Any, Any]] = {
    "QNN295": (carried("1.22.0"), carried("1.22.2")),
    "QNN296": (carried("1.22.0", "sc8380xp"), carried("2.7.0")),
    "QNN297": (carried("1.22.0", runtime="2.34"), carried("1.22.2", runtime="2.36.1")),
    "QNN298": (carried("1.23.2", "sc8380xp"), carried("1.22.2")),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, RULES)


@each_row(
    ("runtime", "version"),
    *(("2.33", "1.22.0"), ("2.33.2", "1.22.0"), ("2.33.0.250327", "1.21.1"), ("2.34.0", "1.22.0")),
    *(("2.36", "1.22.2"), ("2.36.0", "1.22.0"), ("2.37.1", "1.23.2"), ("2.42", "1.24.3"), ("2.46.0", "1.24.3")),
    *(("2.47", "2.3.0"), ("2.51", "2.7.0"), ("2.60", "2.7.0"), ("2.21", None)),
)
def test_a_runtime_is_served_by_the_newest_wheel_that_is_not_newer(runtime: str, version: str | None) -> None:
    found = carrier_for(runtime)
    assert (None if found is None else found.version) == version


def test_a_series_may_be_older_than_its_compiler() -> None:
    assert not list(RULES["QNN296"].run(carried("1.18.1"))), "its compiler runs under Wine"
    series, other = (next(iter(RULES["QNN297"].run(carried("1.22.0", runtime=one)))) for one in ("2.33", "2.35"))
    told = "the compiler is of QAIRT 2.33.2"
    assert series.message == f"{told}: a runtime of 2.33 that is older than 2.33.2 does not load it"
    assert other.message == f"{told}, the nearest in public wheels that is not newer than 2.35"


@each_row(
    ("version", "where"),
    ("1.22.0", "Windows on ARM"),
    *((old, "Linux x86-64 under Wine or Windows x86-64") for old in ("1.22.2", "1.18.1")),
    ("2.7.0", "Linux x86-64"),
)
def test_the_machines_of_a_wheel_are_those_that_can_be_used(version: str, where: str) -> None:
    assert machines(wheel(version)) == where


def test_doctor_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path))
    *lines, last = probe_hosts(Surroundings(which=lambda name: None))
    first = next(line for line in lines if line.id == "htp-2.36.1")
    assert first.state == "absent" and "absent; wine is not installed" in first.detail
    assert "apt-get install" in first.next and first.next.endswith("deploykit toolchain install htp-2.36.1")
    assert last.id == "htp-elsewhere" and "2.33.2 (wheel 1.22.0)" in last.detail and "2.36.1" not in last.detail
    with_wine, *_ = probe_hosts(Surroundings(which=lambda name: f"/usr/bin/{name}"))
    assert with_wine.next == "deploykit toolchain install htp-2.22.0"


@pytest.fixture
def program() -> ModuleType:
    found = importlib.util.spec_from_file_location("runner_install", RUNNER / "install.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pip_is_given_the_tables_hash(program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host,), asked = wheel("1.22.2").host, list[tuple[str, ...]]()

    def pip(*words: str) -> None:
        place = Path(words[words.index("-d") + 1])
        asked.append(tuple(word.replace(str(place), "PLACE") for word in words))
        assert (place / "wanted.txt").read_text("utf-8") == f"onnxruntime-qnn==1.22.2 --hash=sha256:{host.sha256}\n"
        with zipfile.ZipFile(place / host.file, "w") as archive:
            for name in ("capi/QnnHtp.dll", "capi/training/x.dll", "capi/module.pyd", "Qualcomm_LICENSE.pdf", "a.py"):
                archive.writestr(f"onnxruntime/{name}", name)

    monkeypatch.setattr(program, "pip", pip)
    program.main("libraries", "1.22.2", str(tmp_path / "libraries"))
    made = {path.name: path.read_text() for path in (tmp_path / "libraries").iterdir()}
    assert made == {"QnnHtp.dll": "capi/QnnHtp.dll", "Qualcomm_LICENSE.pdf": "Qualcomm_LICENSE.pdf"}
    assert [path.name for path in tmp_path.iterdir()] == ["libraries"], "the wheel itself is gone"
    words = "download --no-deps --require-hashes --platform win_amd64 --python-version 311 --only-binary=:all:"
    assert asked == [(*words.split(), "-d", "PLACE", "-r", "PLACE/wanted.txt")]


@each_row(
    ("step", "made"),
    ("runner", {"runner.exe": "runner.c json.c npy.c", "dxcore.dll": "dxcore.c"}),
    (
        "relay",
        {
            "runner.exe": "runner.c json.c npy.c",
            "dxcore.dll": "dxcore.c",
            "QnnHtp.dll": "recorder.c record_writing.c json.c platform.c",
        },
    ),
)
def test_programs_are_compiled_by_a_compiler_with_its_hash(
    step: str, made: dict[str, str], program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], dict[str, Any]]] = []

    def run(argv: Any, **given: Any) -> None:
        asked.append((list(argv[1:]), given))
        if "-o" in argv:
            Path(argv[argv.index("-o") + 1]).touch()

    monkeypatch.setattr(program.subprocess, "run", run)
    program.main(step, "0.17.1", str(tmp_path / step))
    (installed, _), *compiled = asked
    place = installed[installed.index("--target") + 1]
    words = "-m pip --disable-pip-version-check install --require-hashes --only-binary=:all: --target"
    assert installed == [*words.split(), place, "--requirement", str(DATA / "toolchains/ziglang-0.17.1.lock")]
    flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-s"]
    start = ["-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", *flags]
    assert [argv for argv, _ in compiled] == [
        [*start, *(["-shared"] if name.endswith("dll") else []), "-o", f"{place}/{name}", *sources.split()]
        for name, sources in made.items()
    ]
    given = compiled[0][1]
    assert all(one["check"] for _, one in asked) and given["cwd"] == RUNNER and given["env"]["PYTHONPATH"] == place
    assert sorted(path.name for path in (tmp_path / step).iterdir()) == sorted(made) and not Path(place).exists()
    lock = (DATA / "toolchains/ziglang-0.17.1.lock").read_text("utf-8").replace("\\\n", "").splitlines()[1].split()
    assert lock[0] == "ziglang==0.17.1"
    assert len(lock) == 7 and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in lock[1:])


@each_row(
    ("status", "said", "ends"),
    (0, '{"event":"runtime","version":"1.22.2"}', ""),
    (0, '{"event":"log"}', "error: the runner cannot load ONNX Runtime: status 0, [{'event': 'log'}]"),
    (1, '{"event":"runtime","version":"1"}', "status 1"),
)
def test_a_runner_that_loads_nothing_is_an_error(
    status: int, said: str, ends: str, program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wine").write_text(f"#!/bin/sh\n[ \"$1\" = wineboot.exe ] && exit 0\necho '{said}'\nexit {status}\n")
    (tmp_path / "wine").chmod(0o755)
    if ends:
        with pytest.raises(SystemExit, match=re.escape(ends)):
            program.wine(str(tmp_path / "wine"), tmp_path)
    else:
        program.wine(str(tmp_path / "wine"), tmp_path)
        assert capsys.readouterr().out == "the runner loads ONNX Runtime 1.22.2\n"

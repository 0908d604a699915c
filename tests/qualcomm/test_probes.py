"""Qualcomm's probes on machines that are made for the test: SDK folders of scripts, and answers of programs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.probes import CheckLine, Surroundings
from deploykit.system.processes import ProgramEnd, run
from deploykit_qualcomm.probes import probe_adb, probe_ndk, probe_sdks, probe_wheel
from tables import each_row

TOOLS = "bin/x86_64-linux-clang"


def completed(code: int, *tail: str) -> ProgramEnd:
    return ProgramEnd(argv=("x",), returncode=code, tail=tail, seconds=0.0)


def sdk(folder: Path, *, tools: Mapping[str, str], version: str = "") -> Path:
    """An SDK folder whose tools are shell scripts with these bodies."""
    (folder / TOOLS).mkdir(parents=True)
    if version:
        (folder / "sdk.yaml").write_text(f"name: qairt\nversion: {version}\n")
    for name, body in tools.items():
        path = folder / TOOLS / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return folder


def around(
    tmp_path: Path,
    *,
    env: Mapping[str, str] | None = None,
    programs: tuple[str, ...] = (),
    answer: Callable[..., ProgramEnd] = run,
) -> Surroundings:
    (tmp_path / "home").mkdir(exist_ok=True)
    return Surroundings(
        env=env or {},
        home=tmp_path / "home",
        root=tmp_path,
        which=lambda name: f"/bin/{name}" if name in programs else None,
        run=answer,
    )


def by_kind(lines: list[CheckLine]) -> dict[str, CheckLine]:
    return {line.id.partition(":")[0]: line for line in lines}


def named(folder: Path, **roots: Path) -> Surroundings:
    return around(folder, env={name: str(root) for name, root in roots.items()}, programs=("python3.10",))


def test_no_sdk_is_no_problem_and_one_whose_tools_start_is_told_with_its_release(tmp_path: Path) -> None:
    (line,) = probe_sdks(around(tmp_path))
    assert (line.id, line.state) == ("qairt", "absent") and "QAIRT_SDK_ROOT" in line.next
    root = sdk(tmp_path / "any-name", tools={"qnn-net-run": "echo usage"}, version="2.33.0.250327")
    lines = by_kind(list(probe_sdks(named(tmp_path, QAIRT_SDK_ROOT=root))))
    assert lines["qairt"].facts == {"root": str(root), "version": "2.33.0.250327"}
    assert lines["qairt"].state == lines["tools"].state == lines["python"].state == "ok"
    assert lines["tools"].detail == f"1 of 6 host tools start; missing: {', '.join(lines['tools'].facts['missing'])}"
    assert lines["python"].detail == "the converters of 2.33.0.250327 need Python 3.10; found: 3.10"


@each_row(
    ("body", "state", "word"),
    ("echo usage >&2; exit 1", "ok", "1 of 6"),
    ("echo 'x: error while loading shared libraries: libc++.so.1' >&2; exit 127", "problem", "libc++"),
    ("echo 'qnn: python3.10: not found' >&2; exit 127", "problem", "python3.10"),
    ("echo \"ModuleNotFoundError: No module named 'yaml'\" >&2; exit 1", "problem", "yaml"),
)
def test_what_counts_as_starting(tmp_path: Path, body: str, state: str, word: str) -> None:
    root = sdk(tmp_path / "s", tools={"qairt-converter": body}, version="2.47.0")
    line = by_kind(list(probe_sdks(around(tmp_path, env={"QNN_SDK_ROOT": str(root)}))))["tools"]
    assert line.state == state and word in line.detail


def test_two_variables_name_one_sdk_or_disagree(tmp_path: Path) -> None:
    first = sdk(tmp_path / "opt/qcom/aistack/qairt/2.37.0.250724", tools={"qnn-net-run": "true"})
    lines = list(probe_sdks(named(tmp_path, QAIRT_SDK_ROOT=first, QNN_SDK_ROOT=first)))
    assert sum(line.id.startswith("qairt:") for line in lines) == 1 and "qairt-variables" not in by_kind(lines)
    second = sdk(tmp_path / "b", tools={"qnn-net-run": "true"}, version="2.33.0")
    lines = list(probe_sdks(named(tmp_path, QAIRT_SDK_ROOT=first, QNN_SDK_ROOT=second)))
    assert by_kind(lines)["qairt-variables"].state == "problem"


@pytest.mark.parametrize(
    ("name", "version", "word"),
    [("gone", None, "no folder"), ("sdk", "", "tells a version"), ("sdk", "99.0.0", "99.0.0")],
)
def test_roots_that_are_no_sdk(tmp_path: Path, name: str, version: str | None, word: str) -> None:
    root = tmp_path / name
    if version is not None:
        sdk(root, tools={}, version=version)
    line = next(
        line for line in probe_sdks(around(tmp_path, env={"QAIRT_SDK_ROOT": str(root)})) if line.id.startswith("qairt:")
    )
    assert line.state == "problem" and word in line.detail and line.next


def test_ndk_and_clang(tmp_path: Path) -> None:
    def told(**machine: Any) -> list[tuple[str, str, str]]:
        return [(line.id, line.state, line.detail) for line in probe_ndk(around(tmp_path, **machine))]

    no_clang = ("clang", "absent", "no clang++")
    assert told() == [("ndk", "absent", "no Android NDK (ANDROID_NDK_ROOT, ndk-build)"), no_clang]
    assert told(programs=("ndk-build", "clang++")) == [("ndk", "ok", "/bin/ndk-build"), ("clang", "ok", "/bin/clang++")]
    gone = str(tmp_path / "gone")
    assert told(env={"ANDROID_NDK": gone}) == [("ndk", "problem", f"ANDROID_NDK names {gone}, no folder"), no_clang]
    assert told(env={"ANDROID_NDK_HOME": str(tmp_path)}) == [("ndk", "ok", str(tmp_path)), no_clang]


@each_row(
    ("end", "told"),
    (completed(0, "List", "8a1b\tdevice"), ("ok", "devices: 8a1b", "", {"devices": ["8a1b"]})),
    (completed(0, "List", "a\toffline", "b\tdevice"), ("ok", "devices: b", "", {"devices": ["b"]})),
    (
        completed(0, "List", "8a1b\tunauthorized"),
        ("problem", "8a1b is unauthorized", "unlock the device and allow debugging", {"devices": []}),
    ),
    (completed(0, "List"), ("absent", "no device", "connect one, with debugging switched on", {"devices": []})),
    (completed(1, "a\tdevice"), ("problem", "/bin/adb ends with 1", "run it by hand", {})),
)
def test_adb(tmp_path: Path, end: ProgramEnd, told: tuple[Any, ...]) -> None:
    (line,) = probe_adb(around(tmp_path, programs=("adb",), answer=lambda argv, **_: end))
    assert (line.state, line.detail, line.next, line.facts) == told
    assert next(iter(probe_adb(around(tmp_path)))).state == "absent"


def wheel_machine(registers: ProgramEnd) -> Callable[..., ProgramEnd]:
    """Answers the questions for versions with 1.28.0 and 2.3.0, and the attempt to load with what is given."""

    def answer(argv: tuple[str, ...], **_: object) -> ProgramEnd:
        if "importlib.metadata" not in argv[-1]:
            return registers
        return completed(0, "2.3.0" if "onnxruntime-qnn" in argv[-1] else "1.28.0")

    return answer


NO_LIBRARY = "OSError: libatomic.so.1: cannot open shared object file: No such file or directory"


@each_row(
    ("end", "told"),
    (completed(0, '{"registered": true}'), ""),
    (completed(1, "OrtEp has invalid ort_version_supported=0"), "seen to work"),
    (completed(1, '{"registered": false}'), "seen to work"),
    (completed(-11), "seen to work"),
    (completed(1, NO_LIBRARY), "apt-get install libatomic1"),
)
def test_a_pair_that_does_not_load_is_answered_with_one_that_does(end: ProgramEnd, told: str, tmp_path: Path) -> None:
    (line,) = probe_wheel(around(tmp_path, answer=wheel_machine(end)))
    assert line.state == ("problem" if told else "ok") and told in line.next
    assert told or line.facts == {"onnxruntime": "1.28.0", "onnxruntime_qnn": "2.3.0", "sdk": "2.47.0"}

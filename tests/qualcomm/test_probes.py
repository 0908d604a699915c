"""Qualcomm's probes on machines that are made for the test: SDK folders of scripts, and answers of programs."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deploykit.backend.probes import CheckLine, Surroundings
from deploykit.system.processes import ProgramEnd, run
from deploykit_qualcomm.probes import probe_adb, probe_ndk, probe_sdks, probe_wheel
from told import check_told

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


# How a tool answers a call for its help.
BODIES = {
    "A tool that starts": "echo usage",
    "One that calls that an error": "echo usage >&2; exit 125",
    "One that the shell cannot start": "echo ' no permission ' >&2; echo; exit 126",
    "One that says nothing": "kill -6 $$",
    "One without its library": "echo 'x: error while loading shared libraries: libc++.so.1' >&2; exit 1",
    "One without a module": "echo \"ModuleNotFoundError: No module named 'yaml'\" >&2; exit 1",
    "Its places": "echo $QNN_SDK_ROOT $QAIRT_SDK_ROOT $PYTHONPATH $LD_LIBRARY_PATH | sed 's#[^ ]*/sdk#sdk#g'; exit 126",
}
NO_LIBRARY = "OSError: libatomic.so.1: cannot open shared object file: No such file or directory"
LOADS = {
    "A pair that loads": completed(0, '{"registered": true}'),
    "A pair that does not": completed(1, "OrtEp has invalid ort_version_supported=0"),
    "A pair that is not registered": completed(0, '{"registered": false}'),
    "A pair that dies": completed(-11),
    "A pair without a library": completed(1, NO_LIBRARY),
    "A pair whose library is none": completed(1, "Unable to load backend, error: libQnnHtp.so: invalid ELF header"),
}
DEVICES = {
    "Devices": completed(0, "List", "8a1b\tdevice", "9c\tdevice "),
    "A device that does not trust": completed(0, "List", "8a1b\tunauthorized", "b\toffline"),
    "No device": completed(0, "List"),
    "An adb that fails": completed(1, "a\tdevice"),
}


def test_what_is_said_of_machines(tmp_path: Path) -> None:
    told = dict[str, list[str]]()

    def look(
        title: str, probe: Callable[[Surroundings], Iterable[CheckLine]], *, only: str = "", **machine: Any
    ) -> None:
        """All that is said, without this machine's folders, and without pairs that later wheels add to."""
        lines = (line for line in probe(around(tmp_path, **machine)) if line.id.startswith(only))
        facts = "" if only == "tools" else "; {}"
        about = ((one, facts.format(json.dumps(one.facts))) for one in lines)
        said = (f"{one.id} {one.state}: {one.detail}; next: {one.next}{more}" for one, more in about)
        told[title] = [re.sub(r"to work: .*; {", "to work: ...; {", one.replace(str(tmp_path), "$PWD")) for one in said]

    look("No SDK", probe_sdks)
    for number, (title, body) in enumerate(BODIES.items()):
        root = sdk(tmp_path / f"sdk{number}", tools={"qairt-converter": body, "qnn-net-run": "true"}, version="2.47.0")
        only = "tools" if number else ""
        env = {"QNN_SDK_ROOT": str(root), "PYTHONPATH": "/own"}
        look(title, probe_sdks, only=only, env=env, programs=("python3.10",))
    for version in ("", "v2.33.0.250327", "99.0.0", "2.52"):
        root = sdk(tmp_path / f"version{version}", tools={}, version=version)
        look(f"The version {version or '(none)'}", probe_sdks, only="qairt", env={"SNPE_ROOT": str(root)})
    look("A variable that names nothing", probe_sdks, env={"QAIRT_SDK_ROOT": str(tmp_path / "gone")})
    # What lies in the usual folders is found; where a variable names it, too, it is one.
    first, second = sdk(tmp_path / "opt/qcom/aistack/qairt/2.37.0.250724", tools={}), str(tmp_path / "sdk0")
    (tmp_path / "opt/qcom/aistack/qairt/2.38.0").mkdir()
    look("A usual folder", probe_sdks)
    look(
        "Two variables for one",
        probe_sdks,
        only="qairt",
        env={"QAIRT_SDK_ROOT": str(first), "QNN_SDK_ROOT": str(first)},
    )
    look("Two variables for two", probe_sdks, only="qairt", env={"QAIRT_SDK_ROOT": str(first), "QNN_SDK_ROOT": second})
    look("No NDK", probe_ndk)
    look("An NDK among the programs", probe_ndk, programs=("ndk-build", "clang++"))
    look("An NDK that is gone", probe_ndk, env={"ANDROID_NDK": str(tmp_path / "gone")}, programs=("ndk-build",))
    look("An NDK by its folder", probe_ndk, env={"ANDROID_NDK_HOME": str(tmp_path)})
    look("No adb", probe_adb)
    for title, end in DEVICES.items():
        look(title, probe_adb, programs=("adb",), answer=lambda argv, end=end, **_: end)
    for title, end in LOADS.items():
        look(title, probe_wheel, answer=wheel_machine(end))
    look("A wheel that no table has", probe_wheel, answer=wheel_machine(LOADS["A pair that loads"], "9.9.0"))
    look("No wheel", probe_wheel, answer=lambda argv, **_: completed("onnxruntime-qnn" in argv[-1], "1.28.0"))
    look("No runtime", probe_wheel, answer=lambda argv, **_: completed("onnxruntime'" in argv[-1], "2.7.0"))
    check_told(Path(__file__).with_name("machines.told"), told)


def wheel_machine(registers: ProgramEnd, wheel: str = "2.3.0") -> Callable[..., ProgramEnd]:
    """Answers the questions for versions with 1.28.0 and this, and the attempt to load with what is given."""

    def answer(argv: tuple[str, ...], **_: object) -> ProgramEnd:
        if "importlib.metadata" not in argv[-1]:
            return registers
        return completed(0, wheel if "onnxruntime-qnn" in argv[-1] else "1.28.0")

    return answer

"""What the installation of an old compiler fetches and unpacks; pip is replaced, nothing is downloaded here."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from deploykit_qualcomm.tables import DATA, tables
from deploykit_qualcomm.toolchains import qualcomm_toolchains

RUNNER = DATA.parent / "runner"


@pytest.fixture
def program() -> ModuleType:
    found = importlib.util.spec_from_file_location("runner_install", RUNNER / "install.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pip_is_given_the_hash_of_the_table(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel,) = [wheel for wheel in tables().wheels if wheel.version == "1.22.2"]
    (host,) = wheel.host
    asked: list[tuple[str, ...]] = []

    def pip(*words: str) -> None:
        asked.append(words)
        place = Path(words[words.index("-d") + 1])
        assert (place / "wanted.txt").read_text("utf-8") == f"onnxruntime-qnn==1.22.2 --hash=sha256:{host.sha256}\n"
        with zipfile.ZipFile(place / host.file, "w") as archive:
            for name in ("capi/QnnHtp.dll", "capi/training/x.dll", "capi/module.pyd", "Qualcomm_LICENSE.pdf", "a.py"):
                archive.writestr(f"onnxruntime/{name}", name)

    monkeypatch.setattr(program, "pip", pip)
    program.main("libraries", "1.22.2", str(tmp_path / "libraries"))
    assert sorted(path.name for path in (tmp_path / "libraries").iterdir()) == ["QnnHtp.dll", "Qualcomm_LICENSE.pdf"]
    assert [path.name for path in tmp_path.iterdir()] == ["libraries"], "the wheel itself is gone"
    assert "--require-hashes" in asked[0] and "--no-deps" in asked[0]


def test_a_wheel_for_another_machine_is_not_installed(program: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(StopIteration):
        program.main("libraries", "1.22.0", str(tmp_path / "libraries"))


def test_every_source_of_a_program_is_there(program: ModuleType) -> None:
    for sources in program.RELAY.values():
        assert all((RUNNER / source).is_file() for source in sources)


def test_a_change_of_any_source_makes_the_toolchain_install_again() -> None:
    headers = {path.name for path in RUNNER.glob("*.h")}
    for spec in qualcomm_toolchains("ort-qnn"):
        for stage in spec.stages:
            named = {Path(name).name for name in stage.inputs}
            for source in (name for name in named if name.endswith(".c")):
                text = RUNNER.joinpath(source).read_text("utf-8")
                needed = {header for header in headers if f'#include "{header}"' in text}
                assert stage.id != "runner" or needed <= named, source


@pytest.mark.heavy
def test_recorder_and_replayer_are_built_for_windows_on_arm(program: ModuleType, tmp_path: Path) -> None:
    """Built with warnings as errors, and looked at; nothing here can execute them."""
    target, sources = program.MACHINES["windows-arm64"]
    program.compiled("0.17.1", [(target, tmp_path / "arm64", sources)])
    for name in ("recorder.dll", "replayer.exe"):
        data = (tmp_path / "arm64" / name).read_bytes()
        header = int.from_bytes(data[0x3C:0x40], "little")
        assert data[header : header + 6] == b"PE\0\0" + (0xAA64).to_bytes(2, "little")
        assert b"QnnInterface_getProviders" in data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arm64"], "the compiler is gone"

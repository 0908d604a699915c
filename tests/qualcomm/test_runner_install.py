"""What the installation of an old compiler fetches and unpacks; pip is replaced, nothing is downloaded here."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from deploykit_qualcomm.carriers import qualcomm_toolchains
from deploykit_qualcomm.tables import DATA, tables

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


def test_the_compiler_is_fetched_by_its_hash(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(program, "pip", lambda *words: asked.append(words))
    monkeypatch.setattr(program.subprocess, "run", lambda argv, **given: Path(argv[argv.index("-o") + 1]).touch())
    program.main("relay", "0.17.1", str(tmp_path / "programs"))
    (words,) = asked
    assert "--require-hashes" in words
    entry = Path(words[words.index("--requirement") + 1]).read_text("utf-8").replace("\\\n", "").splitlines()[1].split()
    assert entry[0] == "ziglang==0.17.1"
    assert len(entry) == 7 and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in entry[1:])


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

"""What lies where a command is started: files beside a stranger's model are read when they are named, and never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attacks.kinds import AIMET, MODEL
from deploykit.backend.probes import Surroundings, start
from deploykit.system.processes import ONLY_INSTALLED, run

PLANTED = (
    *("numpy", "onnx", "onnxruntime", "onnxruntime_qnn", "json", "zipfile", "click", "jinja2", "pip"),
    *("deploykit_ort_qnn", "deploykit_qualcomm", "sitecustomize", "usercustomize"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "doctor": ("doctor",),
    "check": ("check", str(MODEL), "--target", "sm8650"),
    "compile": ("check", str(MODEL), "--target", "sm8650", "--backend", "ort-qnn", "--encodings"),
    "inspect": ("explain", "some.bin"),
    "quantize": ("quantize", str(MODEL), "--target", "sm8650", "--sdk", "2.33", "--with", "ort", "-o", "out"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("command", COMMANDS)
def test_modules_in_the_working_folder_are_not_imported(command: str, tmp_path: Path) -> None:
    """``doctor`` ran a file called onnx.py that came with a model."""
    proof = tmp_path / "pwned"
    here = tmp_path / "download"
    here.mkdir()
    for name in PLANTED:
        (here / f"{name}.py").write_text(f"open({str(proof)!r}, 'a').write({name!r}); raise SystemExit(9)")
    (here / "some.bin").write_bytes(bytes(range(256)) * 8)
    words = COMMANDS[command]
    if words[-1] == "--encodings":
        words = (*words, str(AIMET / "cnn" / "w8a8.v1.0.0.encodings"))
    if command == "quantize":
        words = (*words, "--calibration", str(_samples(tmp_path)))
    # As an installed command starts: its own folder is on the path, the working folder is not.
    argv = [sys.executable, "-P", "-m", "deploykit", *words]
    done = subprocess.run(argv, cwd=here, capture_output=True, text=True, check=False, env=_environment())
    assert not proof.exists(), (proof.read_text(), done.stdout, done.stderr)
    assert done.returncode in (0, 1, 3), done.stderr


def _environment() -> dict[str, str]:
    """Where deploykit is found when it runs from a checkout."""
    places = [str(Path(__file__).parents[2] / name) for name in ("", "backends", "templates")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def _samples(folder: Path) -> Path:
    from attacks.kinds import Ground

    return Ground(folder).data()


def test_a_probe_imports_installed_modules_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnx.py").write_text("print('planted')")
    monkeypatch.chdir(tmp_path)
    around = Surroundings()
    assert "planted" not in start(around, around.python, "-c", "import onnx").tail
    assert run([sys.executable, "-c", "import onnx"]).tail == ("planted",)  # what the variable is there for
    assert run([sys.executable, "-c", "import onnx"], env=ONLY_INSTALLED).tail == ()

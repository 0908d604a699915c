"""Programs end with whoever started them, and what lies in the working folder is not imported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploykit.backend.probes import Surroundings, start
from deploykit.system.processes import ONLY_INSTALLED, run
from victims import AIMET, MODEL, two_samples

PARENT = """
import signal, sys
# Ignored where the tests run in the background of a shell, or under nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)
from deploykit.system.processes import run
run([sys.executable, "-c", sys.argv[1], sys.argv[2]], on_line=lambda line: print(line, flush=True))
"""
CHILD = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a program may take no polite word; its children inherit that
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), grandchild.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who is alive")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_children_and_grandchildren_end_with_their_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, "x"], stdout=subprocess.PIPE, encoding="utf-8")
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert all(map(alive, pids))
    os.kill(parent.pid, how)
    parent.wait(30)
    parent.stdout.close()
    assert gone(pids)


def test_a_signal_that_a_library_turns_into_another_error_still_ends_the_run() -> None:
    """As C code does whose import it meets: ImportError, which nobody would take for an end."""
    import click

    from deploykit.cli.frame import run

    @click.command()
    def importing() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            raise ImportError("numpy.core.multiarray failed to import") from None

    assert run(importing, []) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
        words = (*words, "--calibration", str(two_samples(tmp_path)))
    # As an installed command starts: its own folder is on the path, the working folder is not.
    argv = [sys.executable, "-P", "-m", "deploykit", *words]
    done = subprocess.run(argv, cwd=here, capture_output=True, text=True, check=False, env=_environment())
    assert not proof.exists(), (proof.read_text(), done.stdout, done.stderr)
    assert done.returncode in (0, 1, 3), done.stderr


def _environment() -> dict[str, str]:
    """Where deploykit is found when it runs from a checkout."""
    places = [str(Path(__file__).parents[2] / name) for name in ("", "backends", "templates")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def test_a_probe_imports_installed_modules_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "click.py").write_text("print('planted')")
    monkeypatch.chdir(tmp_path)
    around = Surroundings()
    assert "planted" not in start(around, around.python, "-c", "import click").tail
    assert run([sys.executable, "-c", "import click"]).tail == ("planted",)  # what the variable is there for
    assert run([sys.executable, "-c", "import click"], env=ONLY_INSTALLED).tail == ()

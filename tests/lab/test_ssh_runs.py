"""Runs behind a real OpenSSH server on loopback: connections and commands that are cut, a key that is another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.errors import ToolError
from deploykit.packages.manifests import read_manifest
from ssh_end import WANTED, SshEnd, is_here, processes_in, ssh_end
from text_models import text_model

QUICK: dict[str, Any] = {"iterations": 12, "warmup": 1, "seconds": 2.0}


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A package that is compiled and emulated here."""
    pytest.importorskip("onnxruntime_qnn")
    weight = np.random.default_rng(0).normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
    model = text_model("float[1,3,16,16] x", "c = Conv (x, w)  y = Relu (c)", "float[1,8,14,14] y", w=weight)
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(1).normal(size=(12, 1, 3, 16, 16)).astype(np.float32))
    asked: dict[str, Any] = {"target": "sm8650", "backend": "ort-qnn", "calibration": tmp_path / "data.npz"}
    made = deploykit.package(tmp_path / "net.onnx", out=tmp_path / "compiled package", **asked)
    assert made.exit_status == 0
    return tmp_path / "compiled package"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshEnd]:
    """An ssh server on loopback that the client of this test knows."""
    if not is_here():
        pytest.skip(WANTED)
    folder = tmp_path / "ssh"
    folder.mkdir()
    with ssh_end(folder) as end:
        monkeypatch.setenv("DEPLOYKIT_SSH_CONFIG", str(end.client))
        monkeypatch.setenv("DEPLOYKIT_DEVICE_FOLDER", str(end.home))
        yield end


def test_another_key_of_the_server_is_not_taken(compiled: Path, server: SshEnd) -> None:
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(ToolError, match="not the one that is known") as refused:
        deploykit.run(compiled, on=server.where, python=sys.executable)
    assert "Host key verification failed" in refused.value.why


@pytest.mark.parametrize("how", ["connection", "command"])
def test_whatever_is_cut_nothing_is_left_running_or_half_recorded(compiled: Path, server: SshEnd, how: str) -> None:
    """Cuts and kills at many moments of a run: an earlier run stays, and the next one resumes."""
    deploykit.run(compiled, on=server.where, python=sys.executable, **QUICK)
    argv = [sys.executable, "-m", "deploykit", "run", str(compiled), "--on", server.where, "--python", sys.executable]
    argv += ["--iterations", "1000000", "--seconds", "60", "--no-profile"]
    for number in range(int(os.environ.get("DEPLOYKIT_CUTS", "6"))):
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(0.6 + 0.7 * number % 5)
        if how == "connection":
            while process.poll() is None:
                server.cut()
                time.sleep(0.2)
        else:
            process.kill()
        said = process.communicate()[1].decode()
        assert process.returncode == (5 if how == "connection" else -signal.SIGKILL), said
        until = time.monotonic() + 30  # the script there may have begun to hash
        while processes_in(server.home) and time.monotonic() < until:
            time.sleep(0.1)
        assert processes_in(server.home) == []
        assert len(read_manifest(compiled)["runs"]) == 1
    # The second clears what a script made that had just begun when its connection went.
    for _ in range(2):
        assert deploykit.run(compiled, on=server.where, python=sys.executable, **QUICK).record is not None
    assert list((server.home / "runs").iterdir()) == []
    assert len(read_manifest(compiled)["runs"]) == 3 and deploykit.verify(compiled).ok

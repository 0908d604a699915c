"""The program that plays qnn-net-run: the vendor's command line and files, on the HTP emulator of the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.devices.measure import summarize
from deploykit.devices.profiles import origins_of
from deploykit_qualcomm.profiles import read_profile_csv

ROOT = Path(__file__).parents[1]
CNN = ROOT / "data/aimet/cnn"
PLAYER = ROOT / "standins/qairt/standin.py"


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is on a device: libraries, a real context binary, five samples."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("net-run")
    asked: dict[str, Any] = {"encodings": CNN / "w8a8.v1.0.0.encodings", "backend": "ort-qnn", "audit": "off"}
    deploykit.package(CNN / "model.onnx", target="sm8650", out=folder / "package", **asked)
    shutil.copytree(folder / "package/artifacts", folder / "artifacts")
    for name in ("libQnnHtp.so", "libQnnHtpV75Skel.so"):
        (folder / name).write_bytes(b"stand-in")
    source = np.random.default_rng(0)
    (folder / "inputs").mkdir()
    for number in range(5):
        source.normal(size=(1, 3, 16, 16)).astype(np.float32).tofile(folder / f"inputs/{number}.raw")
    lines = [f"input:=inputs/{number}.raw" for number in range(5)]
    (folder / "input_list.txt").write_text("\n".join([*lines, ""]))
    return folder


def play(folder: Path, tool: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PLAYER), tool, "2.33.0", *words]
    environment = {**os.environ, "ADSP_LIBRARY_PATH": ".;/vendor/dsp/cdsp", **env}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)


RUN = [
    "--backend",
    "libQnnHtp.so",
    "--retrieve_context",
    "artifacts/model_ctx_qnn.bin",
    "--input_list",
    "input_list.txt",
]


@pytest.mark.heavy
def test_it_computes_what_the_emulator_computes_and_leaves_a_profile(device: Path) -> None:
    level = ["--profiling_level", "detailed", "--num_inferences", "12", "--perf_profile", "burst"]
    done = play(device, "qnn-net-run", *RUN, "--output_dir", "output", *level)
    assert done.returncode == 0, done.stdout + done.stderr
    made = [np.fromfile(device / f"output/Result_{number}/logits.raw", np.float32) for number in range(12)]
    np.savez(device / "one.npz", input=np.fromfile(device / "inputs/0.raw", np.float32).reshape(1, 3, 16, 16))
    script = [sys.executable, "package/scripts/run.py", "one.npz", "-o", "out.npz"]
    subprocess.run(script, cwd=device, check=True, capture_output=True)
    with np.load(device / "out.npz") as wanted:
        assert np.array_equal(made[0], wanted["logits"].reshape(-1))
    assert np.array_equal(made[5], made[0]) and not np.array_equal(made[1], made[0])
    log = ["--input_log", "output/qnn-profiling-data_0.log", "--output", "profile.csv"]
    assert play(device, "qnn-profile-viewer", *log).returncode == 0
    found = read_profile_csv(device / "profile.csv", origins_of(CNN / "model.onnx"))
    assert len(found.execute_us) == 12 and found.init_us
    assert summarize(found.execute_us).count == 12
    assert {"/relu/Relu", "/fc/Gemm"} < {one.node for one in found.operators if one.value}


@pytest.mark.parametrize(
    ("words", "env", "told"),
    [
        (["--perf_profile", "quick"], {}, "Invalid perf profile"),
        ([], {"ADSP_LIBRARY_PATH": "/vendor/dsp:."}, "qnn_open failed"),
        ([], {"STANDIN_DSP": "[ ERROR ] untrusted app trying to offload to signed remote process"}, "untrusted app"),
        (["--backend", "libQnnGpu.so"], {}, "Unable to load backend"),
        (["--tomorrow"], {}, "unrecognized arguments"),
    ],
)
def test_what_goes_wrong_on_devices_goes_wrong_here(
    tmp_path: Path, words: list[str], env: dict[str, str], told: str
) -> None:
    for name in ("libQnnHtp.so", "libQnnHtpV75Skel.so"):
        (tmp_path / name).write_bytes(b"stand-in")
    done = play(tmp_path, "qnn-net-run", *RUN, "--output_dir", "output", *words, **env)
    assert done.returncode != 0 and told in done.stdout + done.stderr
